"""Removing old releases from a real registry, and what its store then gives back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from strix_finetune.netconf import NetSettings
from strix_finetune.oci.descriptor import Descriptor
from strix_finetune.prune_remote import carry_out, read
from strix_finetune.registry import client, referrers, repository
from strix_finetune.supply import attached
from tests.engine.conftest import Depot
from tests.unit.test_prune_remote import Shop

pytestmark = pytest.mark.engine
TIMES = 500


def collect_garbage(depot: Depot) -> None:
    """As whoever runs a registry does: it is off meanwhile."""
    depot.kill()
    program = shutil.which("docker-registry")
    assert program
    subprocess.run(
        [program, "garbage-collect", str(depot.folder / "config.yml")], check=True, capture_output=True, timeout=60
    )
    depot.start()


def test_the_store_shrinks_by_what_was_told(depot: Depot, tmp_path: Path) -> None:
    registry = client.connect(repository.parse(f"{depot.address}/x/demo"), NetSettings(), {"HOME": str(tmp_path)})
    shop = Shop(registry)
    old = shop.release(1, 30, times=TIMES)
    current = shop.release(2, 10, "cpu", times=TIMES)
    statement = b"s" * 300_000
    for image in read(registry).images:
        served = registry.manifest(image.digest)
        assert served
        attached.attach(registry, served.descriptor, [("x", statement + image.digest.encode())])
    plan = shop.plan()
    assert len(plan.going) == 3
    before = depot.stored()
    assert carry_out(registry, plan.going) == 3
    collect_garbage(depot)
    # with what was attached to two images, and some files that the registry keeps about each
    freed = before - depot.stored()
    assert plan.size + 2 * len(statement) <= freed < plan.size + 2 * len(statement) + 20_000
    assert registry.manifest(old) is None
    assert not shop.plan().going
    served = registry.manifest(current)
    assert served
    for image in read(registry).images:
        for number, (digest, size) in enumerate(image.blobs.items()):
            registry.download(Descriptor("x/y", digest, size), tmp_path / f"{image.layer}{number}", lambda count: None)
        [row] = referrers.attached(registry, image.digest)
        assert row.artifact_type == attached.ARTIFACT
        assert attached.fetch(registry, image.digest) == [statement + image.digest.encode()]
