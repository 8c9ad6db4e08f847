"""Push and pull against a real registry; a push can fail in many ways and must never look like success."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strix_finetune.engine import registry as registries
from strix_finetune.engine import wire
from strix_finetune.engine.client import SdkEngine
from strix_finetune.engine.select import connect
from strix_finetune.engine.size import compressed_size
from strix_finetune.errors import EngineError

if TYPE_CHECKING:
    from tests.engine.conftest import Bench

pytestmark = pytest.mark.engine


def test_a_round_trip(bench: Bench, registry: str) -> None:
    image = bench.build(f"FROM {{base}}\nRUN echo {time.time()} > /unique\n")
    ref = f"{registry}/strix/{bench.engine.info.kind}:1"
    bench.engine.tag(image, ref)
    status: list[str] = []
    digest = bench.engine.push(ref, status.append)
    assert digest == registries.manifest_digest(*ref.rsplit(":", 1))
    assert status
    assert len(status) < 200
    bench.engine.untag(ref)
    bench.engine.remove(image)
    assert bench.engine.image(ref) is None
    pulled = bench.engine.pull(ref, status.append)
    assert ref in pulled.tags
    assert pulled.id == image
    by_digest = bench.engine.pull(f"{registry}/strix/{bench.engine.info.kind}@{digest}", status.append)
    assert by_digest.id == image
    bench.engine.untag(ref)


def test_a_short_name_is_looked_up_by_the_engines_own_settings(
    podman_bench: Bench, registry: str, tmp_path: Path
) -> None:
    """Podman's registries.conf says where it is, and how to speak to that; the digest is the registry's own."""
    engine = podman_bench.engine
    name = f"strix-short-{os.getpid()}"
    ref = f"{registry}/strix/{name}:1"
    image = podman_bench.build(f"FROM {{base}}\nRUN echo {time.time()} > /unique\n")
    engine.tag(image, ref)
    digest = engine.push(ref, lambda text: None)
    engine.untag(ref)
    assert engine.image(image) is None
    settings = tmp_path / "registries.conf"
    place = f"[[registry]]\nlocation = '{registry}'\ninsecure = true\n"
    settings.write_text(f"{place}[aliases]\n'{name}' = '{registry}/strix/{name}'\n")
    configured = connect("podman", {**os.environ, "CONTAINERS_REGISTRIES_CONF": str(settings)})
    assert isinstance(configured, SdkEngine)
    try:
        by_tag = configured.pull(f"{name}:1", lambda text: None)
        assert by_tag.id == image
        assert digest in by_tag.digests
        assert configured.pull(f"{name}@{digest}", lambda text: None).id == by_tag.id
        with pytest.raises(EngineError, match=f"could not pull {name}-missing:1: "):
            configured.pull(f"{name}-missing:1", lambda text: None)
    finally:
        # all of its names: one of them is that by digest
        wire.call(configured.api, "POST", f"/libpod/images/{image}/untag", "untag")
        configured.remove(image)
        configured.close()


def test_a_second_push_sends_nothing_and_names_the_same_digest(bench: Bench, registry: str) -> None:
    ref = f"{registry}/strix/again-{bench.engine.info.kind}:1"
    bench.engine.tag(bench.base, ref)
    assert bench.engine.push(ref, lambda text: None) == bench.engine.push(ref, lambda text: None)
    bench.engine.untag(ref)


def test_the_compressed_size_is_what_the_registry_holds(bench: Bench, registry: str) -> None:
    import requests

    ref = f"{registry}/strix/size-{bench.engine.info.kind}:1"
    bench.engine.tag(bench.base, ref)
    digest = bench.engine.push(ref, lambda text: None)
    bench.engine.untag(ref)
    accept = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
    address = f"http://{registry}/v2/strix/size-{bench.engine.info.kind}/manifests/{digest}"
    manifest = requests.get(address, headers={"Accept": accept}, timeout=10).json()
    held = sum(layer["size"] for layer in manifest["layers"])
    # The engines' own deflate, written in Go, packs programs a few percent less tightly than zlib at the same level.
    assert 0.92 * held < compressed_size(bench.engine, bench.base) < 1.02 * held


def test_a_push_to_a_dead_port_raises(bench: Bench) -> None:
    ref = "localhost:1/strix/dead:1"
    bench.engine.tag(bench.base, ref)
    try:
        with pytest.raises(EngineError, match=r"could not push localhost:1/strix/dead:1: .*refused"):
            bench.engine.push(ref, lambda text: None)
    finally:
        bench.engine.untag(ref)


def test_pushing_what_is_not_there_raises(bench: Bench, registry: str) -> None:
    with pytest.raises(EngineError, match="could not push"):
        bench.engine.push(f"{registry}/strix/never-built:1", lambda text: None)


def test_pulling_what_is_not_there_raises(bench: Bench, registry: str) -> None:
    with pytest.raises(EngineError, match="could not pull"):
        bench.engine.pull(f"{registry}/strix/never-pushed:1", lambda text: None)
    with pytest.raises(EngineError, match="could not pull"):
        bench.engine.pull("localhost:1/strix/dead:1", lambda text: None)


def test_a_registry_that_cannot_be_asked_is_told_so(registry: str) -> None:
    with pytest.raises(EngineError, match="status 404"):
        registries.manifest_digest(f"{registry}/strix/never-pushed", "1")
    with pytest.raises(EngineError, match="could not be asked"):
        registries.manifest_digest("localhost:1/x", "1")
