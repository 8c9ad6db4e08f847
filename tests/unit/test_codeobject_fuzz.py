"""Whatever the bytes are: a report, or one sentence. Never another exception, never a hang."""

from __future__ import annotations

import functools
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strix_finetune.codeobject import CodeObjectError, Limits, scan
from strix_finetune.codeobject import msgpack as walker
from tests.unit.codeobject_forge import (
    blob,
    bundle,
    ccob,
    gfx942,
    gfx1030,
    host_elf,
    kpack,
    pack,
    reference,
    two_targets,
)

TIGHT = Limits(work=64 << 20, metadata=1 << 20, one_table=1 << 18, objects=500)
# How many examples is the profile's choice; one folder for all examples of a test is meant so.
FOLDER = settings(suppress_health_check=list(HealthCheck))


@functools.cache
def seeds() -> list[bytes]:
    """One file of every kind."""
    names = ("plain.so", "two-zstd.so", "v2.hsaco", "features-v3.hsaco", "bare-gfx942.hsaco", "rdc.o")
    archives = [
        kpack([("a#0", "gfx942", gfx942()), ("b#0", "gfx1030", gfx1030())], scheme)
        for scheme in ("none", "zstd-per-kernel")
    ]
    packed = [ccob(two_targets(), version, method) for version in (1, 2, 3) for method in ("zlib", "zstd")]
    split = host_elf({".rocm_kpack_ref": reference("a", ["file"]), ".hip_fatbin": bytes(64) + packed[0]}, align=16)
    return [blob(name) for name in names] + archives + packed + [two_targets(), split]


def check(folder: Path, content: bytes) -> None:
    path = folder / "file"
    path.write_bytes(content)
    faults: list[CodeObjectError] = []
    try:
        for report in scan(path, faults.append, TIGHT):
            assert report.path.startswith(str(path))
            assert all(item.size <= report.size or report.containers for item in report.code_objects)
            report.to_json()
    except CodeObjectError as error:
        faults.append(error)
    assert not any("\n" in str(error) for error in faults)
    assert all(str(error).startswith(str(path)) for error in faults)


@FOLDER
@given(content=st.binary(max_size=600), seed=st.integers(0, 13), keep=st.integers(0, 200))
def test_anything_behind_a_real_beginning(content: bytes, seed: int, keep: int, tmp_path: Path) -> None:
    check(tmp_path, seeds()[seed][:keep] + content)


@FOLDER
@given(data=st.data(), seed=st.integers(0, 15))
def test_real_files_with_changed_bytes(data: st.DataObject, seed: int, tmp_path: Path) -> None:
    content = bytearray(seeds()[seed])
    # Most of a file is machine code; what leads to it lies at the start and the end.
    near = st.one_of(
        st.integers(0, min(700, len(content) - 1)), st.integers(max(0, len(content) - 1200), len(content) - 1)
    )
    place = st.one_of(near, st.integers(0, len(content) - 1))
    for at in data.draw(st.lists(place, min_size=1, max_size=6)):
        content[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, content[at] ^ 1, content[at] ^ 0x80]))
    check(tmp_path, bytes(content))


@FOLDER
@given(data=st.data(), seed=st.integers(0, 15), field=st.sampled_from([2, 4, 8]))
def test_real_files_with_lying_numbers(data: st.DataObject, seed: int, field: int, tmp_path: Path) -> None:
    """Offsets, sizes and counts are aligned little-endian fields: overwrite some with extreme values."""
    content = bytearray(seeds()[seed])
    top = 1 << 8 * field
    numbers = st.sampled_from(
        [0, 1, 2, len(content) - 1, len(content), len(content) + 1, top // 2 - 1, top // 2, top - 1]
    )
    for slot in data.draw(st.lists(st.integers(0, min(len(content), 1024) // field - 1), min_size=1, max_size=3)):
        value = data.draw(numbers) % top
        content[slot * field : slot * field + field] = value.to_bytes(field, "little")
    check(tmp_path, bytes(content))


@FOLDER
@given(seed=st.integers(0, 15), other=st.integers(0, 15), cut=st.floats(0, 1), start=st.floats(0, 1))
def test_cut_and_spliced_files(seed: int, other: int, cut: float, start: float, tmp_path: Path) -> None:
    first, second = seeds()[seed], seeds()[other]
    check(tmp_path, first[: int(cut * len(first))] + second[int(start * len(second)) :])


@FOLDER
@given(data=st.data())
def test_changed_bytes_inside_what_is_compressed(data: st.DataObject, tmp_path: Path) -> None:
    """A good frame around bad content: the mutation is in the bundle, its table and its code objects' notes."""
    raw = bytearray(bundle({"hip-amdgcn-amd-amdhsa--gfx942": gfx942(), "hip-amdgcn-amd-amdhsa--gfx1030": gfx1030()}))
    starts = (0, 4096, 12288)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.sampled_from(starts)) + data.draw(st.integers(0, 1500))
        raw[at] = data.draw(st.integers(0, 255))
    check(tmp_path, ccob(bytes(raw), 3, data.draw(st.sampled_from(["zlib", "zstd"]))))


@FOLDER
@given(data=st.data())
def test_wheels_with_changed_bytes(data: st.DataObject, tmp_path: Path) -> None:
    source = tmp_path / "good.zip"
    if not source.exists():
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.so", blob("v2.hsaco"))
            archive.writestr("b.so", gfx942())
    content = bytearray(source.read_bytes())
    tail = content.index(b"PK\x01\x02")
    place = st.one_of(st.integers(0, 60), st.integers(tail, len(content) - 1), st.integers(0, len(content) - 1))
    for at in data.draw(st.lists(place, min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    check(tmp_path, bytes(content))


PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=50),
        st.binary(max_size=50),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(st.text(max_size=8), inner, max_size=20)),
    max_leaves=60,
)


@given(value=PLAIN, rest=st.binary(max_size=8))
def test_messagepack_of_any_shape_is_passed_over_exactly(value: object, rest: bytes) -> None:
    packed = pack(value)
    assert walker.skip(packed + rest, 0) == len(packed)


@given(content=st.binary(max_size=200))
def test_messagepack_of_any_bytes_ends(content: bytes) -> None:
    for step in (walker.skip, walker.text, walker.unsigned, walker.map_size, walker.array_size):
        try:
            step(content, 0)
        except CodeObjectError:
            continue


def test_there_is_a_seed_for_each_index() -> None:
    assert len(seeds()) == 16
    assert pytest.approx(16) == len({seed[:400] + seed[-100:] for seed in seeds()})
