"""Pulling from a real registry what was pushed there; what fails must never look like success, on either way."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strix_finetune.engine import wire
from strix_finetune.engine.client import SdkEngine
from strix_finetune.engine.select import connect
from strix_finetune.engine.size import compressed_size
from strix_finetune.errors import EngineError
from strix_finetune.netconf import NetSettings
from strix_finetune.registry import client
from strix_finetune.registry.faults import Unreachable
from strix_finetune.registry.repository import parse
from tests.engine.publish import publish

if TYPE_CHECKING:
    from tests.engine.conftest import Bench

pytestmark = pytest.mark.engine


def untag_all(engine: SdkEngine, image: str) -> None:
    """Remove an image with all of its names: one of them may be that by digest."""
    if engine.info.kind == "podman":
        wire.call(engine.api, "POST", f"/libpod/images/{image}/untag", "untag")
        engine.remove(image)
    else:
        engine.api.remove_image(image, force=True)
    assert engine.image(image) is None


def test_a_round_trip(bench: Bench, registry: str) -> None:
    engine = bench.engine
    image = bench.build(f"FROM {{base}}\nRUN echo {time.time()} > /unique\n")
    _, unique = bench.run("cat", "/unique", image=image, network="none")
    name = f"{registry}/strix/{engine.info.kind}"
    digest = publish(engine, image, f"{name}:1")
    engine.remove(image)
    status: list[str] = []
    pulled = engine.pull(f"{name}:1", status.append)
    assert 0 < len(status) < 200
    assert f"{name}:1" in pulled.tags
    assert digest in pulled.digests
    assert bench.run("cat", "/unique", image=pulled.id, network="none")[1] == unique
    assert engine.pull(f"{name}@{digest}", status.append).id == pulled.id
    untag_all(engine, pulled.id)


def test_a_short_name_is_looked_up_by_the_engines_own_settings(
    podman_bench: Bench, registry: str, tmp_path: Path
) -> None:
    """Podman's registries.conf says where it is, and how to speak to that; the digest is the registry's own."""
    name = f"strix-short-{os.getpid()}"
    image = podman_bench.build(f"FROM {{base}}\nRUN echo {time.time()} > /unique\n")
    digest = publish(podman_bench.engine, image, f"{registry}/strix/{name}:1")
    podman_bench.engine.remove(image)
    settings = tmp_path / "registries.conf"
    place = f"[[registry]]\nlocation = '{registry}'\ninsecure = true\n"
    settings.write_text(f"{place}[aliases]\n'{name}' = '{registry}/strix/{name}'\n")
    configured = connect("podman", {**os.environ, "CONTAINERS_REGISTRIES_CONF": str(settings)})
    assert isinstance(configured, SdkEngine)
    try:
        by_tag = configured.pull(f"{name}:1", lambda text: None)
        assert digest in by_tag.digests
        assert configured.pull(f"{name}@{digest}", lambda text: None).id == by_tag.id
        with pytest.raises(EngineError, match=f"could not pull {name}-missing:1: "):
            configured.pull(f"{name}-missing:1", lambda text: None)
        untag_all(configured, by_tag.id)
    finally:
        configured.close()


def test_a_second_push_names_the_same_digest(bench: Bench, registry: str) -> None:
    name = f"{registry}/strix/again-{bench.engine.info.kind}:1"
    assert publish(bench.engine, bench.base, name) == publish(bench.engine, bench.base, name)


def test_the_compressed_size_is_what_the_registry_holds(bench: Bench, registry: str) -> None:
    import requests

    name = f"strix/size-{bench.engine.info.kind}"
    digest = publish(bench.engine, bench.base, f"{registry}/{name}:1")
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    manifest = requests.get(f"http://{registry}/v2/{name}/manifests/{digest}", headers=accept, timeout=10).json()
    held = sum(layer["size"] for layer in manifest["layers"])
    # what is pushed is written by libdeflate, which packs programs a few percent tighter than zlib
    assert held <= compressed_size(bench.engine, bench.base) < 1.1 * held


def test_pushing_to_where_nobody_listens_raises(bench: Bench) -> None:
    with pytest.raises(Unreachable, match=r"could not push to localhost:1/strix/dead: .*connection refused"):
        publish(bench.engine, bench.base, "localhost:1/strix/dead:1")


def test_pushing_what_is_not_there_raises(bench: Bench, registry: str) -> None:
    with pytest.raises(EngineError, match="strix-engine-test/never:1"):
        publish(bench.engine, "localhost/strix-engine-test/never:1", f"{registry}/strix/never-built:1")
    assert client.connect(parse(f"{registry}/strix/never-built"), NetSettings(), {}).manifest("1") is None


def test_pulling_what_is_not_there_raises(bench: Bench, registry: str) -> None:
    with pytest.raises(EngineError, match="could not pull"):
        bench.engine.pull(f"{registry}/strix/never-pushed:1", lambda text: None)
    with pytest.raises(EngineError, match="could not pull"):
        bench.engine.pull("localhost:1/strix/dead:1", lambda text: None)
