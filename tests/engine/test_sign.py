"""Signing what was pushed, and checking what was pulled: a small stack, a real registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strix_finetune import names
from strix_finetune.engine.base import Engine
from strix_finetune.oci.descriptor import MANIFEST
from tests.engine.conftest import Depot
from tests.engine.test_push_pull import NAME, Shelf, error_of, forget, push
from tests.engine.test_stack import TARGET, connection, diamond

__all__ = ["connection"]
# what engines do differently is tried where they build, push and pull
pytestmark = [pytest.mark.engine, pytest.mark.parametrize("connection", ["podman"], indirect=True)]

STATUS = "Package: busybox\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
HOLDS = [(name, "ok") for name in ("signature", "digest", "key", "contents", "provenance", "smoke")]


def test_what_is_signed_after_a_push_holds_after_a_pull(connection: Engine, depot: Depot, tmp_path: Path) -> None:
    place = diamond(tmp_path / "stack", "podman")
    place.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    (place.images / "root/files/var/lib/dpkg").mkdir(parents=True)
    (place.images / "root/files/var/lib/dpkg/status").write_text(STATUS)
    assert place.strix("build").returncode == 0
    push(place, depot.address)
    where = f"{depot.address}/{NAME}"
    done = place.strix("sign", "--parents", "--to", where)
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(":")[2].partition("-")[0] for line in done.stdout.splitlines()] == ["top", "left", "root"]

    # another image in the place of ours: it calls itself by the same key, and nobody signs it unseen
    shelf = Shelf(depot)
    tag = next(tag for tag in shelf.tags() if tag.startswith(f"top-{TARGET}-"))
    document, _ = shelf.manifest(tag)
    good = json.dumps(document)
    config = json.loads(shelf.blob(document["config"]["digest"])) | {"author": "somebody else"}
    content = json.dumps(config).encode()
    document["config"] |= {"digest": shelf.put_blob(content), "size": len(content)}
    shelf.put(tag, document, MANIFEST)
    assert "is another image than" in error_of(place.strix("sign", "--to", where))
    shelf.put(tag, json.loads(good), MANIFEST)

    forget(place)
    # the key that signed lies in the folder of those that are trusted: nothing else is taken now
    trusted = tmp_path / "config/strix-finetune/trusted"
    trusted.mkdir()
    (trusted.parent / "signing.pub").rename(trusted / "builder.pub")
    done = place.strix("pull", "--from", where)
    assert done.returncode == 0, done.stderr
    assert "is signed by" in done.stderr
    done = place.strix("verify", "--from", where)
    checks = [tuple(reversed(line.split()[:2])) for line in done.stdout.splitlines()]
    assert checks == HOLDS, done.stdout + done.stderr
    assert connection.image(names.final_ref(TARGET))
