"""Layers that repeat: two clean builds, on both engines; what a registry stores of them; an engine runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strix_finetune.netconf import NetSettings
from strix_finetune.oci import layout, whole
from strix_finetune.oci.difference import compare
from strix_finetune.registry.client import connect
from strix_finetune.registry.repository import parse
from tests.engine.conftest import PREFIX
from tests.engine.publish import EPOCH, send

if TYPE_CHECKING:
    from tests.engine.conftest import Bench

pytestmark = pytest.mark.engine

# a mounted folder, a log, a clock, links, modes, something that a later step takes back
MIDDLE = """\
FROM {base}
RUN --mount=type=bind,target=/mnt date +%s%N > /tmp/now; mkdir -p /var/log /opt/tool; date +%s%N > /var/log/made.log; \\
    cat /mnt/Dockerfile > /opt/tool/waste; echo one > /opt/tool/a
COPY data /opt/tool/data
"""
TOP = """\
FROM {middle}
RUN mkdir -p /mnt /opt/unsloth; echo two > /opt/unsloth/b; echo 1 > /opt/tool/a; test -e /opt/tool/waste
ENV WHERE=/opt/tool
CMD ["cat", "/opt/unsloth/b"]
"""
GROUPS = {"image": {"unsloth": ["opt/unsloth"]}}


def build(bench: Bench, tag: str) -> tuple[str, str]:
    """A stack of two layers on the base, every step anew; returns their names."""
    middle, top = f"{PREFIX}/oci-middle:{tag}", f"{PREFIX}/oci-top:{tag}"
    for ref, text in ((middle, MIDDLE), (top, TOP.replace("{middle}", middle))):
        image = bench.build(text, {"data": b"x" * 100_000}, use_cache=False, network="none")
        bench.engine.tag(image, ref)
    return middle, top


@pytest.fixture
def twice(bench: Bench) -> Iterator[list[tuple[str, str]]]:
    """Two clean builds of the same, some time apart."""
    made = [build(bench, tag) for tag in ("1", "2")]
    yield made
    for middle, top in made:
        bench.engine.untag(top)
        bench.engine.untag(middle)


def export(bench: Bench, refs: tuple[str, str], folder: Path) -> layout.Layout:
    middle, top = refs
    return layout.export(bench.engine, top, (bench.base, middle), folder, epoch=EPOCH, groups=GROUPS)


def test_a_clean_rebuild_moves_nothing_and_runs_where_it_is_pulled(
    bench: Bench, twice: list[tuple[str, str]], registry: str, tmp_path: Path
) -> None:
    engine = bench.engine
    one, other = (export(bench, refs, tmp_path / str(number)) for number, refs in enumerate(twice))
    ids = [engine.configuration(top) for _, top in twice]
    # the engine's own layers are others: there was something to do
    assert ids[0] is not None
    assert ids[1] is not None
    assert ids[0]["rootfs"] != ids[1]["rootfs"]
    assert one.packed[twice[0][1]].digest == other.packed[twice[1][1]].digest
    to = connect(parse(f"{registry}/oci-{engine.info.kind}"), NetSettings(), {})
    assert send(one.packed[twice[0][1]], to, "one")[1] > 0
    assert send(other.packed[twice[1][1]], to, "other")[1] == 0

    ref = f"{registry}/oci-{engine.info.kind}:other"
    pulled = engine.pull(ref, lambda line: None)
    try:
        _, said = bench.run("sh", "-c", "cat $WHERE/a; ls /var/log /tmp", image=pulled.id, network="none")
        assert said.split() == ["1", "/tmp:", "/var/log:"]
        result, said = bench.run("cat", "/opt/unsloth/b", "/opt/tool/data", image=pulled.id, network="none")
        assert result.exit_code == 0
        assert said == "two\n" + "x" * 100_000
        # the engine holds it, and it is the same as what was built, but for times and the log
        found = compare(whole.local(engine, twice[0][1]), whole.local(engine, ref))
        assert (found.same, found.files, found.settings) == (True, (), ())
        assert found.noise >= 2
        assert compare(whole.pushed(to, "one"), whole.pushed(to, "other")).times == 0
    finally:
        engine.untag(ref)


def test_both_engines_make_the_same_layers(docker_bench: Bench, podman_bench: Bench, tmp_path: Path) -> None:
    found = []
    for bench in (docker_bench, podman_bench):
        refs = build(bench, "both")
        made = export(bench, refs, tmp_path / bench.engine.info.kind)
        found.append([(layer.part, layer.diff_id, layer.content.descriptor) for layer in made.layers[refs[1]]])
        bench.engine.untag(refs[1])
        bench.engine.untag(refs[0])
    assert found[0] == found[1]
    assert [part for part, _, _ in found[0]] == ["rest", "rest", "rest", "unsloth"]
