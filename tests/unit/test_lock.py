"""Making a lock: what stays, what moves, what is refused. The archive and the index are stand-ins that count."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from strix_finetune import graph
from strix_finetune.errors import DefinitionError, LockError
from strix_finetune.load import load
from strix_finetune.lock import Change, Stale, make_lock, missing, stale
from strix_finetune.lockmodel import AptPackage, ArchiveLock, Lock, PipLock, Release, WheelLock, WheelSetLock
from strix_finetune.model import Stack
from strix_finetune.netconf import NetSettings
from strix_finetune.requests import version_labels
from strix_finetune.resolve import AptAnswer, image, pip, simple
from strix_finetune.schema import Apt, Index, PipSet, WheelSet
from strix_finetune.wanted import declared_sha256

CHANNEL = """\
name = "debian"
description = "d"
python = "3.14"
bootstrap = {source = "mmdebstrap"}
apt = {suite = "sid"}
[layers.base]
packages = {rootfs = ["bash", "sudo"]}
"""
BASE = 'name = "base"\ndescription = "d"\n[packages]\nrootfs = ["bash"]\n'
PYTORCH = """\
name = "pytorch"
description = "d"
parent = ["base"]
[packages]
torch = [
  "python3",
  "python3-torch",
]
[provides]
torch = "python3-torch"
[archives.source]
url = "https://example.org/a.tar.gz"
sha256 = "{sha}"
size = 5
"""
UNSLOTH = """\
name = "unsloth"
description = "d"
parent = ["pytorch"]
final = true
[pip.unsloth]
requirements = ["unsloth==2026.10.9", "trl"]
exclude = ["torch"]
[ceilings]
torch = "<2.15"
trl = "<=1.15.0"
"""


def definitions(root: Path, **texts: str) -> Stack:
    layers = {"base": BASE, "pytorch": PYTORCH.format(sha="a" * 64), "unsloth": UNSLOTH} | texts
    channel = layers.pop("channel", CHANNEL)
    for name, text in layers.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "layer.toml").write_text(text)
        (root / name / "Dockerfile.j2").write_text("FROM scratch\n")
    (root / "channels").mkdir(exist_ok=True)
    (root / "channels/debian.toml").write_text(channel)
    (root / "targets.toml").write_text('default = "cpu"\n[target.cpu]\nkind = "cpu"\n')
    (root / "macros.j2").write_text("")
    return graph.stack(load(root), "cpu", "debian")


@dataclass
class Archive:
    """Debian's archive as a stand-in: name → versions, the last one being the candidate."""

    packages: dict[str, list[str]] = field(
        default_factory=lambda: {
            "bash": ["5.3-4"],
            "sudo": ["1.9-1"],
            "python3": ["3.14.8-1"],
            "python3-torch": ["2.14.1+dfsg-1"],
            "libc6": ["2.43-7"],
        }
    )
    date: str = "2026-10-30T08:08:01Z"
    asked: list[set[str]] = field(default_factory=list)

    def ask(self, names: Collection[str], apt: Apt) -> AptAnswer:
        self.asked.append(set(names))
        known = {name: self.packages[name] for name in names if name in self.packages}
        made = {name: {v: AptPackage(v, len(v), f"{hash(v) & 0xFFFF:064x}") for v in known[name]} for name in known}
        return AptAnswer(
            {suite: Release(self.date, "e" * 64) for suite in (apt.suite, *apt.extra_suites)},
            {name: made[name][versions[-1]] for name, versions in known.items()},
            made,
            {name: "did you mean 'x'?" for name in names if name not in known},
        )


@dataclass
class PackageIndex:
    """The package index as a stand-in: what it has of unsloth's set, and what it was asked."""

    versions: dict[str, str] = field(default_factory=lambda: {"unsloth": "2026.10.9", "trl": "1.15.0"})
    asked: list[dict[str, Any]] = field(default_factory=list)

    def resolve(self, name: str, wanted: PipSet, **options: Any) -> PipLock:
        self.asked.append(options)
        text = "".join(f"{n}=={v} \\\n    --hash=sha256:{'f' * 64}\n" for n, v in self.versions.items())
        return PipLock(options["python"], text, declared_sha256(wanted, options["python"], options["provided"]))


@pytest.fixture
def archive() -> Archive:
    return Archive()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> PackageIndex:
    made = PackageIndex()
    monkeypatch.setattr(pip, "resolve", made.resolve)
    return made


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return definitions(tmp_path)


Make = Callable[..., tuple[Lock, tuple[Change, ...]]]


@pytest.fixture
def make(archive: Archive, index: PackageIndex, stack: Stack) -> Make:
    def run(previous: Lock | None = None, chosen: Stack = stack, **options: Any) -> tuple[Lock, tuple[Change, ...]]:
        return make_lock(chosen, previous, NetSettings(), Path("/nowhere"), resolver=archive, **options)

    return run


def test_a_first_lock_has_everything(make: Make, archive: Archive, index: PackageIndex, stack: Stack) -> None:
    gaps = missing(stack, None)
    assert [str(gap) for gap in gaps] == [
        "the suite sid",
        "the Debian package bash",
        "the Debian package python3",
        "the Debian package python3-torch",
        "the Debian package sudo",
        "the requirement set unsloth",
        "the archive source",
    ]
    lines = {gap.name: str(gap.place).rsplit("/", 2)[-2:] for gap in gaps}
    assert lines["python3-torch"] == ["pytorch", "layer.toml:7"]
    assert lines["sudo"] == ["channels", "debian.toml:7"]
    assert lines["unsloth"] == ["unsloth", "layer.toml:5"]
    made, changes = make()
    assert missing(stack, made) == ()
    assert made.apt.packages.keys() == {"bash", "sudo", "python3", "python3-torch"}
    assert archive.asked == [{"bash", "sudo", "python3", "python3-torch", "libc6"}]
    assert index.asked[0]["glibc"] == "2.43-7"
    assert index.asked[0]["upgrade"] is None
    assert made.archives == {"source": ArchiveLock("https://example.org/a.tar.gz", "a" * 64, 5)}
    assert [str(change) for change in changes] == [
        "Debian's suite 'sid' with 4 packages added",
        "set 'unsloth' with 2 packages added",
        f"source {'a' * 12} added",
    ]


def test_a_lock_that_is_right_stays_byte_by_byte(make: Make, archive: Archive, index: PackageIndex) -> None:
    first, _ = make()
    archive.date = "2026-11-30T00:00:00Z"
    archive.packages["libc6"] = ["2.44-1"]
    again, changes = make(first)
    assert again == first
    assert changes == ()
    assert len(index.asked) == 1


def test_what_the_archive_replaced_is_locked_anew_and_nothing_else(make: Make, archive: Archive, stack: Stack) -> None:
    first, _ = make()
    archive.packages["python3-torch"] = ["2.14.2-1"]
    archive.packages["bash"] = ["5.3-4", "5.3-5"]
    archive.date = "2026-11-30T00:00:00Z"
    found = stale(stack, first, NetSettings(), Path("/nowhere"), resolver=archive)
    assert found == (Stale("python3-torch", "2.14.1+dfsg-1", "2.14.2-1"),)
    assert str(found[0]) == "python3-torch 2.14.1+dfsg-1 (it has 2.14.2-1)"
    again, changes = make(first)
    assert [str(change) for change in changes] == ["python3-torch 2.14.1+dfsg-1 → 2.14.2-1"]
    assert again.apt.date == "2026-11-30T00:00:00Z"
    assert again.apt.packages["bash"].version == "5.3-4"
    assert stale(stack, again, NetSettings(), Path("/nowhere"), resolver=archive) == ()


def test_a_package_that_is_gone(make: Make, archive: Archive, stack: Stack) -> None:
    first, _ = make()
    del archive.packages["sudo"]
    assert [str(item) for item in stale(stack, first, NetSettings(), Path("/x"), resolver=archive)] == ["sudo 1.9-1"]
    with pytest.raises(LockError) as caught:
        make(first)
    assert str(caught.value).endswith(
        "channels/debian.toml:7: Debian's suite 'sid' has no package 'sudo'; did you mean 'x'?"
    )


def test_one_name_is_updated(make: Make, archive: Archive, index: PackageIndex) -> None:
    first, _ = make()
    archive.packages["bash"].append("5.3-5")
    archive.packages["python3-torch"].append("2.14.2-1")
    _, changes = make(first, update=["bash"])
    assert [change.name for change in changes] == ["bash"]
    _, changes = make(first, update=["torch"])
    assert [str(change) for change in changes] == ["python3-torch 2.14.1+dfsg-1 → 2.14.2-1"]
    assert len(index.asked) == 1
    index.versions["trl"] = "1.14.0"
    _, changes = make(first, update=["TRL"])
    assert index.asked[-1]["upgrade"] == ["trl"]
    assert index.asked[-1]["previous"] == first.pip["unsloth"].text
    assert changes == (Change("pip", "trl", "1.15.0", "1.14.0"),)
    make(first, update=["unsloth"])
    assert index.asked[-1]["upgrade"] is None
    _, changes = make(first, everything=True)
    assert [change.name for change in changes] == ["bash", "python3-torch", "trl"]
    assert index.asked[-1]["upgrade"] is None
    with pytest.raises(LockError, match="nothing called 'python3-troch' is locked; did you mean 'python3-torch'"):
        make(first, update=["python3-troch"])
    with pytest.raises(LockError) as caught:
        make(first, update=["python3-troch", "bash", "bsah"])
    assert [str(problem).split("'")[1] for problem in caught.value.problems] == ["python3-troch", "bsah"]


def test_requirements_that_were_edited_are_resolved_with_the_old_versions_kept(
    make: Make, index: PackageIndex, tmp_path: Path
) -> None:
    first, _ = make()
    edited = definitions(tmp_path, unsloth=UNSLOTH.replace('"trl"]', '"trl", "peft"]'))
    assert [str(gap) for gap in missing(edited, first)] == ["the requirement set unsloth"]
    make(first, edited)
    assert index.asked[-1]["upgrade"] == []
    assert index.asked[-1]["previous"] == first.pip["unsloth"].text
    other_python = definitions(tmp_path, channel=CHANNEL.replace("3.14", "3.15"))
    assert [gap.name for gap in missing(other_python, first)] == ["unsloth"]
    make(first, other_python)
    assert index.asked[-1]["previous"] == ""
    assert index.asked[-1]["upgrade"] is None


def test_what_nobody_asks_for_any_more_goes(make: Make, tmp_path: Path) -> None:
    first, _ = make()
    slim = definitions(tmp_path, unsloth=UNSLOTH.split("[pip")[0], pytorch=PYTORCH.split("[archives")[0])
    assert missing(slim, first) == ()
    again, changes = make(first, slim)
    assert (again.pip, again.archives) == ({}, {})
    assert [str(change) for change in changes] == [
        "set 'unsloth' with 2 packages removed",
        f"source {'a' * 12} removed",
    ]


def test_an_archive_that_was_edited(make: Make, tmp_path: Path) -> None:
    first, _ = make()
    edited = definitions(tmp_path, pytorch=PYTORCH.format(sha="b" * 64))
    assert [gap.name for gap in missing(edited, first)] == ["source"]
    _, changes = make(first, edited)
    assert [str(change) for change in changes] == [f"source {'a' * 12} → {'b' * 12}"]


def test_another_suite_is_a_gap(make: Make, tmp_path: Path) -> None:
    first, _ = make()
    for text in ('{suite = "forky"}', '{suite = "sid", extra_suites = ["experimental"]}'):
        other = definitions(tmp_path, channel=CHANNEL.replace('{suite = "sid"}', text))
        assert [gap.kind for gap in missing(other, first)] == ["suite"]
        again, _ = make(first, other)
        assert missing(other, again) == ()


def test_a_base_image_is_locked_by_digest(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, digests = "docker.io/library/debian:sid", iter(["sha256:1", "sha256:2", "sha256:3"])
    monkeypatch.setattr(image, "digest", lambda asked, settings, say: next(digests) if asked == name else "")
    text = CHANNEL.replace('{source = "mmdebstrap"}', f'{{source = "image", image = "{name}"}}')
    chosen = definitions(tmp_path, channel=text)
    first, _ = make(None, chosen)
    assert first.images == {name: "sha256:1"}
    assert make(first, chosen)[0].images == {name: "sha256:1"}
    _, changes = make(first, chosen, update=[name])
    assert changes == (Change("image", name, "sha256:1", "sha256:2"),)
    assert [gap.name for gap in missing(chosen, replace(first, images={}))] == [name]


def test_a_ceiling_stops_a_new_version_and_both_are_named(make: Make, archive: Archive, index: PackageIndex) -> None:
    first, _ = make()
    archive.packages["python3-torch"] = ["1:2.15.0+dfsg-1"]
    index.versions["trl"] = "1.16.0"
    with pytest.raises(LockError) as caught:
        make(first, everything=True)
    torch, trl = (str(problem) for problem in caught.value.problems)
    assert "unsloth/layer.toml:9: python3-torch 1:2.15.0+dfsg-1 in the archive breaks unsloth's torch<2.15; " in torch
    assert "unsloth/layer.toml:10: trl 1.16.0 in the set 'unsloth' breaks unsloth's trl<=1.15.0; " in trl


def test_two_sets_of_one_name(tmp_path: Path) -> None:
    twice = PYTORCH.format(sha="a" * 64) + '[pip.unsloth]\nrequirements = ["x"]\n'
    with pytest.raises(DefinitionError, match="'unsloth' and 'pytorch' both have a requirement set 'unsloth'"):
        definitions(tmp_path, pytorch=twice)


# sets of wheels of an index of the channel

AMD = (
    CHANNEL
    + """\
[layers.pytorch.packages]
torch = ["python3"]
[layers.pytorch.wheels.torch]
index = "amd"
requirements = ["torch[device-{target}]==2.13.0+rocm10"]
follow = ["triton"]
[indexes.amd]
url = "https://stable.example/whl"
absent = [403]
"""
)


@dataclass
class Wheels:
    """The channel's index as a stand-in: versions of what it has, and what it was asked."""

    versions: dict[str, str] = field(default_factory=lambda: {"torch": "2.13.0+rocm10", "triton": "3.8.0"})
    asked: list[tuple[str, WheelSet, Index, dict[str, Any]]] = field(default_factory=list)
    sha256: str = "d" * 64

    def resolve(self, name: str, wanted: WheelSet, index: Index, **options: Any) -> WheelSetLock:
        self.asked.append((name, wanted, index, options))
        files = [
            WheelLock(n, v, f"{index.url}/{n}/{n}-{v.replace('+', '%2B')}-py3-none-any.whl", self.sha256)
            for n, v in self.versions.items()
        ]
        # the order and the time are the resolver's business
        return WheelSetLock(options["python"], wanted.index, "2026-11-30T04:00:00Z", "", tuple(reversed(files)))


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> Wheels:
    made = Wheels()
    monkeypatch.setattr(simple, "resolve_wheels", made.resolve)
    return made


@pytest.fixture
def amd(tmp_path: Path, wheels: Wheels) -> Stack:
    return definitions(tmp_path / "amd", channel=AMD)


def test_a_set_of_wheels_is_locked_and_then_left_alone(
    make: Make, amd: Stack, wheels: Wheels, index: PackageIndex
) -> None:
    (gap,) = [gap for gap in missing(amd, None) if gap.kind == "set of wheels"]
    assert str(gap) == "the set of wheels torch"
    assert str(gap.place).endswith("channels/debian.toml:10")
    first, changes = make(None, amd)
    assert missing(amd, first) == ()
    assert "set of wheels 'torch' with 2 packages added" in [str(change) for change in changes]
    name, wanted, asked, options = wheels.asked[0]
    assert (name, wanted.requirements) == ("torch", ["torch[device-{target}]==2.13.0+rocm10"])
    assert (asked.url, asked.absent) == ("https://stable.example/whl", [403])
    assert (options["target"], options["python"], options["glibc"]) == ("cpu", "3.14", "2.43-7")
    assert options["previous"] is None
    assert [wheel.name for wheel in first.wheels["torch"].wheels] == ["torch", "triton"]
    again, changes = make(first, amd)
    assert (again, changes, len(wheels.asked), len(index.asked)) == (first, (), 1, 1)


def test_another_wish_is_another_set(make: Make, amd: Stack, wheels: Wheels, tmp_path: Path) -> None:
    first, _ = make(None, amd)
    for old, new in (
        ('follow = ["triton"]', 'follow = ["triton", "rocm*"]'),
        ("2.13.0+rocm10", "2.13.1+rocm10"),
        ("stable.example", "nightly.example"),
        ('python = "3.14"', 'python = "3.13"'),
        ('index = "amd"', 'index = "amd2"\n'),
    ):
        text = AMD.replace(old, new) + '[indexes.amd2]\nurl = "https://stable.example/whl"\n'
        other = definitions(tmp_path / "other", channel=text)
        assert "set of wheels" in [gap.kind for gap in missing(other, first)], new
    same = definitions(tmp_path / "other", channel=AMD.replace("absent = [403]", "absent = [404]"))
    assert missing(same, first) == ()
    edited = definitions(tmp_path / "other", channel=AMD.replace("2.13.0", "2.13.1"))
    wheels.versions["torch"] = "2.13.1+rocm10"
    _, changes = make(first, edited)
    assert (wheels.asked[-1][3]["previous"], wheels.asked[-1][3]["upgrade"]) == (first.wheels["torch"], [])
    assert [str(change) for change in changes] == [
        f"torch 2.13.0+rocm10 ({'d' * 12}) → 2.13.1+rocm10 ({'d' * 12})",
    ]


def test_updating_a_set_of_wheels(make: Make, amd: Stack, wheels: Wheels) -> None:
    first, _ = make(None, amd)
    wheels.sha256 = "e" * 64
    for update, upgrade in ((["triton"], ["triton"]), (["torch"], None)):
        _, changes = make(first, amd, update=update)
        assert wheels.asked[-1][3]["upgrade"] == upgrade
        assert Change("wheels", "triton", f"3.8.0 ({'d' * 12})", f"3.8.0 ({'e' * 12})") in changes
    with pytest.raises(LockError, match="nothing called 'trition' is locked; did you mean 'triton'"):
        make(first, amd, update=["trition"])


def test_requirement_sets_know_what_sets_of_wheels_bring(
    make: Make, amd: Stack, wheels: Wheels, index: PackageIndex
) -> None:
    first, _ = make(None, amd)
    assert index.asked[0]["provided"] == {"torch": "2.13.0+rocm10", "triton": "3.8.0"}
    wheels.versions["triton"] = "3.8.1"
    again, _ = make(first, amd, update=["triton"])
    assert index.asked[-1]["provided"]["triton"] == "3.8.1"
    # an answer that does not follow the new version, or no answer at all
    old = replace(first, wheels=again.wheels)
    assert [gap.name for gap in missing(amd, old)] == ["unsloth"]


def test_what_comes_into_an_image_comes_one_way(
    make: Make, amd: Stack, wheels: Wheels, index: PackageIndex, tmp_path: Path
) -> None:
    index.versions["torch"] = "2.14.0"
    with pytest.raises(LockError) as caught:
        make(None, amd)
    (fault,) = map(str, caught.value.problems)
    assert fault.endswith(
        "unsloth/layer.toml:5: 'unsloth' would put torch 2.14.0 over that of the set of wheels 'torch'; "
        "exclude torch from 'unsloth'"
    )
    del index.versions["torch"]
    more = '[layers.unsloth.wheels.more]\nindex = "amd"\nrequirements = ["triton==1"]\n'
    other = definitions(tmp_path / "amd", channel=AMD + more)
    locked, _ = make(None, other)
    wheels.sha256 = "e" * 64
    with pytest.raises(LockError, match="the sets of wheels 'torch' and 'more' lock two files of 'torch'"):
        make(locked, other, update=["more"])


def test_ceilings_and_labels_take_the_public_version_of_a_wheel(
    make: Make, amd: Stack, wheels: Wheels, tmp_path: Path
) -> None:
    locked, _ = make(None, amd)
    assert version_labels(amd.node("pytorch"), locked) == {"io.strix-finetune.version.torch": "2.13.0"}
    assert version_labels(amd.node("unsloth"), locked) == {}
    by_apt, _ = make()
    assert version_labels(amd.node("pytorch"), by_apt) == {"io.strix-finetune.version.torch": "2.14.1+dfsg-1"}
    wheels.versions["torch"] = "2.15.0+rocm10"
    with pytest.raises(LockError, match=r"torch 2.15.0 in the set of wheels 'torch' breaks unsloth's torch<2.15; "):
        make(None, amd)
