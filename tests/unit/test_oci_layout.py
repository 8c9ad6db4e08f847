"""Images in layers that repeat: whatever the builder's times, order, logs and steps, the same content is the same."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from strix_finetune import names
from strix_finetune.errors import EngineError, InputError
from strix_finetune.oci import layout
from strix_finetune.oci.memory import Memory
from strix_finetune.oci.normal import FIXED_TIME, normal
from strix_finetune.oci.scan import read_image
from strix_finetune.oci.tree import Entry, Kind
from tests.unit.oci_images import ImageEngine, layer_tar

EPOCH = 1_800_000_000
OLD = 1_500_000_000
BASE = {"etc": 0o755, "etc/passwd": "root", "mnt": 0o755, "tmp": 0o1777, "var": 0o755, "var/log": 0o755}
LABELS = {names.LAYER: "top", "io.buildah.version": "1.28.2"}


def members(content: layout.Layer) -> dict[str, tarfile.TarInfo]:
    packed = b"".join(content.content.read(0))
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as tar:
        return {member.name: member for member in tar}


def export(engine: ImageEngine, folder: Path, *parents: str, **options: Any) -> layout.Layout:
    return layout.export(engine, "top", parents, folder, epoch=EPOCH, **options)


def one(engine: ImageEngine, folder: Path, **options: Any) -> Mapping[str, tarfile.TarInfo]:
    """The members of the only layer that the image adds to its parent."""
    made = export(engine, folder, "base", **options)
    (own,) = made.layers["top"][len(made.layers["base"]) :]
    return members(own)


def test_two_builds_by_two_builders_are_the_same_bytes(tmp_path: Path) -> None:
    base = {"etc": 0o755, "opt": 0o755, "mnt": 0o755, "run": 0o755, "tmp": 0o1777}
    one, other = ImageEngine(), ImageEngine()
    one.hold("base", [layer_tar(base)], Labels={names.LAYER: "base"})
    one.hold(
        "top",
        [
            layer_tar(base),
            layer_tar({"opt/a": "A", "opt/b": ("hard", "opt/a"), "var/log/dpkg.log": "monday", "tmp/x": "left"}),
            layer_tar({"opt/later": "L"}),
        ],
        Labels=LABELS,
        WorkingDir="/",
    )
    other.hold("base", [layer_tar(base, mtime=1_950_000_000, owner="me")], Labels={names.LAYER: "base"})
    other.hold(
        "top",
        [
            layer_tar(base, mtime=1_950_000_000, owner="me"),
            # the engine mounts over a folder, and takes it away
            layer_tar({"mnt": None, "opt": 0o755, "opt/a": "wrong", "etc/resolv.conf": "", "run/.containerenv": ""}),
            layer_tar({"mnt": 0o755, "opt": 0o755, "opt/later": "L", "opt/gone": "made"}, mtime=1_950_000_001),
            layer_tar({"opt/gone": None, "opt/a": "A", "opt/b": ("hard", "opt/a"), "var/log/dpkg.log": "tuesday"}),
        ],
        Labels={names.LAYER: "top"},
    )
    # the folder that only a log was in is there in both
    made, again = export(one, tmp_path / "1", "base"), export(other, tmp_path / "2", "base")
    assert made.packed["top"].digest == again.packed["top"].digest
    assert made.packed["base"].digest == again.packed["base"].digest
    assert [layer.descriptor for layer in made.packed["top"].layers[:1]] == [
        layer.descriptor for layer in made.packed["base"].layers
    ]


def test_a_layer_has_what_is_new_and_the_folders_above(tmp_path: Path) -> None:
    engine = ImageEngine()
    engine.hold("base", [layer_tar(BASE)])
    engine.hold("top", [layer_tar(BASE), layer_tar({"tmp": 0o1777, "etc/new": "N", "etc/passwd": "root"})])
    found = one(engine, tmp_path)
    assert list(found) == ["etc", "etc/new"]
    assert (found["etc"].mode, found["etc"].mtime, found["etc/new"].uname) == (0o755, FIXED_TIME, "")


def test_times_of_packages_stay_and_those_of_the_build_go(tmp_path: Path) -> None:
    engine = ImageEngine()
    engine.hold("base", [layer_tar(BASE)])
    packaged, built = layer_tar({"etc/old": "O"}, mtime=OLD), layer_tar({"etc/young": "Y"}, mtime=EPOCH + 1)
    engine.hold("top", [layer_tar(BASE), packaged, built])
    found = one(engine, tmp_path)
    assert (found["etc/old"].mtime, found["etc/young"].mtime) == (OLD, FIXED_TIME)


def test_what_is_gone_is_said_once(tmp_path: Path) -> None:
    below = BASE | {"opt": 0o755, "opt/x": 0o755, "opt/x/y": "Y", "etc/gone": "G"}
    engine = ImageEngine()
    engine.hold("base", [layer_tar(below)])
    engine.hold("top", [layer_tar(below), layer_tar({"opt/x": None, "etc/gone": None})])
    assert list(one(engine, tmp_path)) == ["etc", "etc/.wh.gone", "opt", "opt/.wh.x"]


def test_the_lowest_layer_decides_on_folders_for_mounts(tmp_path: Path) -> None:
    base = {"etc": 0o755, "mnt": 0o755, "media": 0o755}
    by_buildkit, by_buildah = ImageEngine(), ImageEngine()
    by_buildkit.hold("base", [layer_tar(base)])
    by_buildkit.hold("top", [layer_tar(base), layer_tar({"etc/x": "X", "run": 0o755, "media": None, "media/f": "F"})])
    by_buildah.hold("base", [layer_tar(base)])
    by_buildah.hold("top", [layer_tar(base), layer_tar({"etc/x": "X", "mnt": None, "media/f": "F"})])
    found = [one(engine, tmp_path / str(number)) for number, engine in enumerate((by_buildkit, by_buildah))]
    assert [list(members) for members in found] == [["etc", "etc/x", "media", "media/f"]] * 2


def test_whose_the_folders_of_apt_are_is_the_hosts() -> None:
    path = "var/lib/apt/lists/partial"
    tree = {path: Entry(path, Kind.FOLDER, 0o700, uid=42, gid=1), "x": Entry("x", Kind.FOLDER, 0o700, uid=42, gid=1)}
    found = normal(tree, EPOCH)
    assert [(entry.uid, entry.gid, entry.mode) for entry in found.values()] == [(0, 0, 0o700), (42, 1, 0o700)]


def test_a_layer_of_nothing_is_none(tmp_path: Path) -> None:
    engine = ImageEngine()
    engine.hold("base", [layer_tar(BASE)])
    engine.hold("top", [layer_tar(BASE), layer_tar({"etc/passwd": "root", "var/log/apt.log": "noise"})], Cmd=["train"])
    made = export(engine, tmp_path, "base")
    assert made.layers["top"] == made.layers["base"]
    config = json.loads(b"".join(made.packed["top"].config.read(0)))
    assert config["config"] == {"Cmd": ["train"]}
    assert len(config["history"]) == len(config["rootfs"]["diff_ids"]) == 1


def test_groups_are_layers_of_their_own(tmp_path: Path) -> None:
    def build(version: str) -> ImageEngine:
        engine = ImageEngine()
        files = {"opt/lib/unsloth/a.py": version, "opt/lib/unsloth-1.dist-info/R": version, "opt/lib/torch/a": "T"}
        engine.hold("base", [layer_tar(BASE)])
        engine.hold("top", [layer_tar(BASE), layer_tar({"opt": 0o755, "opt/lib": 0o755, **files})], Labels=LABELS)
        return engine

    groups = {"top": {"unsloth": ["opt/*/unsloth*"]}}
    before = export(build("1"), tmp_path, "base", groups=groups)
    after = export(build("2"), tmp_path, "base", groups=groups)
    assert [layer.part for layer in before.layers["top"]] == ["rest", "rest", "unsloth"]
    moved = {layer.content.descriptor for layer in after.layers["top"]} - {
        layer.content.descriptor for layer in before.layers["top"]
    }
    assert moved == {after.layers["top"][-1].content.descriptor}
    assert "opt/lib/torch/a" not in members(after.layers["top"][-1])


def test_no_layer_is_over_the_limit_and_a_growing_package_moves_its_own(tmp_path: Path) -> None:
    def build(grown: int) -> ImageEngine:
        engine = ImageEngine()
        files = {f"opt/p{number:02}/data": "x" * (100 + (grown if number == 7 else 0)) for number in range(40)}
        engine.hold("base", [layer_tar(BASE)])
        engine.hold("top", [layer_tar(BASE), layer_tar({"opt": 0o755, **files})])
        return engine

    before, after = (export(build(grown), tmp_path, "base", limit=900) for grown in (0, 60))
    sizes = [sum(member.size for member in members(layer).values()) for layer in before.layers["top"]]
    assert sum(sizes) == 4004
    assert max(sizes) <= 900
    blobs = [{layer.content.descriptor.digest for layer in made.layers["top"]} for made in (before, after)]
    assert len(blobs[1] - blobs[0]) <= 2


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    engine = ImageEngine()
    engine.hold("base", [layer_tar(BASE)])
    engine.hold("top", [layer_tar(BASE), layer_tar({"opt/huge": "x" * 50})])
    with pytest.raises(InputError, match=r"/opt/huge has .* leave it out of the image or split it"):
        export(engine, tmp_path, "base", limit=40)
    assert [path.name for path in tmp_path.iterdir()] == ["blobs"]


def test_a_full_disk_is_said_and_is_no_fault_of_the_archive() -> None:
    engine = ImageEngine()
    engine.hold("top", [layer_tar({"opt/big": "x" * 3_000_000})])
    full = Path("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        read_image(engine, "top", spool=lambda number: full.open("wb"))


def test_a_parent_that_is_none_is_refused(tmp_path: Path) -> None:
    engine = ImageEngine()
    engine.hold("base", [layer_tar({"other": "O"})])
    engine.hold("top", [layer_tar(BASE)])
    with pytest.raises(EngineError, match="top was not built on the present base"):
        export(engine, tmp_path, "base")
    with pytest.raises(EngineError, match="there is no image lost"):
        export(engine, tmp_path, "lost")


def test_a_parent_that_was_built_anew_is_the_one_of_its_key_that_the_image_stands_on(tmp_path: Path) -> None:
    marks = {names.LAYER: "base", names.KEY: "k" * 64}
    before = changed("1")
    plain = export(before, tmp_path / "1", "base")
    engine = changed("1")
    # under its name there is the new one now, and the one before has an id alone
    engine.hold("base", [layer_tar(BASE, mtime=1)], Labels=marks)
    engine.hold("sha256:" + "1".zfill(64), [layer_tar(BASE)], Labels=marks)
    assert engine.add(marks) == "sha256:" + "1".zfill(64)
    made = export(engine, tmp_path / "2", "base")
    assert made.packed["top"].layers == plain.packed["top"].layers
    assert made.packed["base"].layers == plain.packed["base"].layers


def test_the_folder_is_an_oci_layout_whose_blobs_are_what_they_say(tmp_path: Path) -> None:
    engine = ImageEngine()
    engine.hold("base", [layer_tar(BASE)])
    engine.hold("top", [layer_tar(BASE), layer_tar({"opt/ü-" + "x" * 150: "long", "opt/l": ("link", "/etc")})])
    for compression in ("gzip", "zstd"):
        export(engine, tmp_path, "base", compression=compression)
    assert json.loads((tmp_path / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    for path in (tmp_path / "blobs/sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    index = json.loads((tmp_path / "index.json").read_text())
    held = {row["annotations"]["org.opencontainers.image.ref.name"]: row for row in index["manifests"]}
    assert sorted(held) == ["base", "top"]
    manifest = json.loads((tmp_path / "blobs/sha256" / held["top"]["digest"][7:]).read_bytes())
    assert [layer["mediaType"].rpartition("+")[2] for layer in manifest["layers"]] == ["zstd", "zstd"]
    config = json.loads((tmp_path / "blobs/sha256" / manifest["config"]["digest"][7:]).read_bytes())
    assert config["created"] == "2027-01-15T08:00:00Z"


def test_what_was_pushed_and_pulled_again_is_the_same(tmp_path: Path) -> None:
    engine = ImageEngine()
    engine.hold("base", [layer_tar(BASE)], Labels={names.LAYER: "base"})
    engine.hold("top", [layer_tar(BASE), layer_tar({"etc/b": "B", "opt/a": "A", "var": None})], Labels=LABELS)
    groups = {"top": {"first": ["opt"]}}
    first = export(engine, tmp_path / "1", "base", groups=groups)
    pulled = ImageEngine()
    for ref in ("base", "top"):
        layers = [gzip.decompress(b"".join(blob.read(0))) for blob in first.packed[ref].layers]
        pulled.hold(ref, layers, **json.loads(b"".join(first.packed[ref].config.read(0)))["config"])
    second = export(pulled, tmp_path / "2", "base", groups=groups)
    assert second.packed["top"].digest == first.packed["top"].digest


def memory(folder: Path, *present: str, everything: bool = False) -> Memory:
    return Memory(folder / "memory", lambda digest: everything or digest in present)


def changed(text: str) -> ImageEngine:
    engine = ImageEngine()
    engine.hold("base", [layer_tar(BASE)], Labels={names.LAYER: "base"})
    engine.hold("top", [layer_tar(BASE), layer_tar({"opt": 0o755, "opt/a": text})], Labels=LABELS)
    return engine


def test_what_was_packed_before_is_not_packed_again_where_it_is_present(tmp_path: Path) -> None:
    export(changed("1"), tmp_path / "1", "base", memory=memory(tmp_path))
    told: list[str] = []
    made = export(changed("2"), tmp_path / "2", "base", memory=memory(tmp_path, everything=True), tell=told.append)
    assert told == ["reading top", "top: packing rest, 0 MB"]
    plain = export(changed("2"), tmp_path / "3", "base")
    assert made.packed["top"].digest == plain.packed["top"].digest
    assert made.packed["base"].digest == plain.packed["base"].digest
    with pytest.raises(EngineError, match="was there a moment ago; push again"):
        list(made.layers["base"][0].content.read(0))
    # and the very same image is not even read
    told.clear()
    again = export(changed("2"), tmp_path / "4", "base", memory=memory(tmp_path, everything=True), tell=told.append)
    assert told == []
    assert again.packed["top"].digest == plain.packed["top"].digest


def test_what_is_not_present_is_packed_again(tmp_path: Path) -> None:
    first = export(changed("1"), tmp_path / "1", "base", memory=memory(tmp_path))
    top = first.layers["top"][-1].content.descriptor.digest
    made = export(changed("1"), tmp_path / "2", "base", memory=memory(tmp_path, top))
    assert b"".join(made.layers["base"][0].content.read(0)) == b"".join(first.layers["base"][0].content.read(0))
    assert made.packed == first.packed


def test_a_memory_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    first = export(changed("1"), tmp_path / "1", "base", memory=memory(tmp_path))
    files = list((tmp_path / "memory").iterdir())
    assert len(files) == 2
    for path, content in zip(files, (b"no gzip", gzip.compress(b'{"rows": [{}], "raw": {}}')), strict=True):
        path.write_bytes(content)
    made = export(changed("1"), tmp_path / "2", "base", memory=memory(tmp_path, everything=True))
    assert made.packed == first.packed
    assert b"".join(made.layers["top"][-1].content.read(0))


def test_another_epoch_or_group_is_another_image(tmp_path: Path) -> None:
    held = memory(tmp_path, everything=True)
    export(changed("1"), tmp_path / "1", "base", memory=held)
    variants: list[dict[str, Any]] = [
        {"groups": {"top": {"a": ["opt"]}}},
        {"compression": "zstd"},
        {"limit": 10**6},
    ]
    for number, more in enumerate(variants):
        told: list[str] = []
        export(changed("1"), tmp_path / f"2{number}", "base", memory=held, tell=told.append, **more)
        assert any(line.startswith("top: packing") for line in told), more
