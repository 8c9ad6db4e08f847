"""The command `lock` over a channel with an index of its own: checks, other targets' locks, what is known to be bad."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from strix_finetune import lock as locks
from strix_finetune import lockfile
from strix_finetune.builder import BuildOptions, make_build_plan
from strix_finetune.cli import main
from strix_finetune.errors import LockError
from strix_finetune.events import Event, Notice
from strix_finetune.lockmodel import AptPackage, Lock, Release
from strix_finetune.netconf import Flags
from strix_finetune.resolve import AptAnswer
from strix_finetune.schema import Apt
from strix_finetune.workspace import Options, open_workspace
from tests.fakes import FakeEngine
from tests.standin.amd import KNOWN_BAD, NEWER, RELEASE, archives, torch
from tests.standin.faults import Status
from tests.standin.server import Standin
from tests.standin.tree import Tree
from tests.standin.wheels import Archive, wheel

TARGETS = ("gfx1151", "gfx1100")
CHANNEL = """\
name = "amd"
description = "d"
python = "3.13"
bootstrap = {{ source = "mmdebstrap" }}
apt = {{ suite = "trixie" }}
[indexes]
amd = {{ url = "{url}", absent = [403] }}
[layers.base.wheels.rocm]
index = "amd"
requirements = ["rocm[libraries,device-{{target}}]=={rocm}"]
follow = ["rocm*"]
[layers.torch.wheels.torch]
index = "amd"
requirements = ["torch[device-{{target}}]=={torch}"]
follow = ["amd-torch*", "triton"]
"""
LAYER = 'name = "{name}"\ndescription = "d"\n{rest}\n'
TEMPLATES = {
    "base": "FROM scratch\nADD {{ rootfs }} /\nRUN install {{ wheels('rocm') }}\n",
    "torch": "FROM {{ parent }}\nRUN apt-get install {{ apt('apt') }}; install {{ wheels('torch') }}\n",
}
BAD = """\
[[bad]]
id = "early-nights"
nightlies = ["20260609", "20260612"]
targets = ["gfx11*"]
reason = "HIP crashes when it starts"
link = "https://x.example/5763"
date = "2026-06-13"
"""


@functools.cache
def stubs(release: str) -> tuple[Archive, ...]:
    return tuple(archives({"this": RELEASE, "next": NEWER, "bad": KNOWN_BAD}[release], TARGETS))


class Debian:
    """An archive that has whatever it is asked for."""

    version = "1"

    def ask(self, names: Collection[str], apt: Apt) -> AptAnswer:
        packages = {name: AptPackage(self.version, 1, "e" * 64) for name in names} | {
            "libc6": AptPackage("2.41-12", 1, "e" * 64)
        }
        return AptAnswer(
            {apt.suite: Release("2026-10-30T08:08:01Z", "e" * 64)},
            packages,
            {name: {package.version: package} for name, package in packages.items()},
        )


@dataclass
class Desk:
    """The definitions, the stand-in, and what the command says."""

    root: Path
    amd: Standin
    capsys: pytest.CaptureFixture[str]

    def channel(self, rocm: str = "10.0.0", torch: str = "2.13.0+rocm10.0.0", more: str = "") -> None:
        text = CHANNEL.format(url=self.amd.index, rocm=rocm, torch=torch) + more
        (self.root / "images/channels/amd.toml").write_text(text)

    def lock(self, *arguments: str, target: str = "gfx1151") -> tuple[int, list[str]]:
        """Exit code and lines, with what the stand-in's address is taken out."""
        code = main(["lock", "--images", str(self.root / "images"), "-c", "amd", "-t", target, *arguments])
        out, err = self.capsys.readouterr()
        lines = [line for line in (out + err).splitlines() if "the index says no sha256" not in line]
        return code, [re.sub(r"\S*/(?=amd-gfx)", "", line) for line in lines]

    def plan(self) -> list[str]:
        """What is told while a build is planned, without where it is from."""
        workspace = open_workspace(Options("gfx1151", "amd", images=self.root / "images"), os.environ)
        told: list[Event] = []
        make_build_plan(workspace, FakeEngine(), BuildOptions(), told.append, os.environ, Flags())
        return [event.message.partition(" (")[0] for event in told if isinstance(event, Notice)]

    def held(self, target: str = "gfx1151") -> Lock:
        return lockfile.read(self.path(target))

    def path(self, target: str = "gfx1151") -> Path:
        return next(self.root.rglob(f"amd-{target}.toml"))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    for name in ("CACHE", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr(locks, "host_resolver", lambda settings, cache: Debian())
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    layers = {"base": "", "torch": 'parent = ["base"]\nfinal = true\n[packages]\napt = ["python3"]'}
    for name, rest in layers.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "layer.toml").write_text(LAYER.format(name=name, rest=rest))
        (tmp_path / "images" / name / "Dockerfile.j2").write_text(TEMPLATES[name])
    (tmp_path / "images/channels").mkdir()
    targets = "".join(f'[target.{name}]\nkind = "gpu"\n' for name in TARGETS)
    (tmp_path / "images/targets.toml").write_text(f'default = "gfx1151"\n{targets}')
    (tmp_path / "images/macros.j2").write_text("")
    (tmp_path / "images/known-bad.toml").write_text(BAD)
    with Standin(Tree(stubs("this"))) as amd:
        made = Desk(tmp_path, amd, capsys)
        made.channel()
        yield made


def test_a_lock_is_made_and_found_in_order(desk: Desk) -> None:
    code, lines = desk.lock()
    assert code == 0, lines
    assert "set of wheels 'torch' with 4 packages added" in lines
    assert desk.held().wheels["rocm"].packages == {
        "rocm": "10.0.0",
        "rocm-sdk-core": "10.0.0",
        "rocm-sdk-device-gfx1151": "10.0.0",
        "rocm-sdk-libraries": "10.0.0",
    }
    assert desk.lock() == (0, ["amd-gfx1151.toml: no changes"])
    assert desk.lock("--check") == (0, ["the lock is complete and everything in it is served"])
    desk.amd.heal()
    assert desk.lock("--check", "--offline") == (0, ["the lock is complete"])
    assert desk.amd.asked == []


def test_a_check_says_what_moved_and_what_is_gone(desk: Desk) -> None:
    desk.lock()
    for archive in stubs("next"):
        desk.amd.tree.add(archive)
    assert desk.lock("--check") == (
        0,
        [
            "newer: rocm 10.1.0 (locked: 10.0.0)",
            "newer: torch 2.14.0+rocm10.1.0 (locked: 2.13.0+rocm10.0.0)",
            "the lock is complete and everything in it is served",
        ],
    )
    desk.amd.tree.withdraw("torch-2.13*cp313-linux*")
    triton = next(archive for archive in stubs("this") if archive.project == "triton")
    desk.amd.tree.add(wheel("triton", triton.version, {"triton/__init__.py": "#" * 999}, tag=RELEASE.tag))
    desk.amd.fail("*/amd_torch_device_gfx1151-2.13*", Status(403))
    code, lines = desk.lock("--check", "--json")
    assert code == 1
    newer = " (it has 2.14.0+rocm10.1.0)"
    assert json.loads(lines[0])["problems"] == [
        f"no longer served: amd-torch-device-gfx1151 2.13.0+rocm10.0.0, which is listed and not there{newer}",
        f"no longer served: torch 2.13.0+rocm10.0.0{newer}",
        "no longer served: triton 3.8.0+git4cff872c.rocm10.0.0: another file has its name now",
    ]
    # what is there cannot tell, and what is written down is in order
    assert desk.lock("--check", "--offline")[0] == 0


def test_a_check_without_network_sees_what_is_wrong(desk: Desk) -> None:
    assert desk.lock("--check", "--offline")[1][:2] == [
        "missing: the suite trixie",
        "missing: the Debian package python3",
    ]
    desk.lock()
    path = desk.path()
    text = path.read_text()
    path.write_text(re.sub(r"(rocm.sdk.device.)gfx1151", r"\1gfx1100", text))
    code, lines = desk.lock("--check", "--offline")
    assert code == 1
    assert any("rocm-sdk-device-gfx1100 10.0.0 has device code for another GPU than gfx1151" in line for line in lines)
    assert any("rocm-sdk-device-gfx1151 is not locked, and without it" in line for line in lines)
    path.write_text(text)
    desk.channel("10.1.0")
    assert desk.lock("--check", "--offline") == (1, ["missing: the set of wheels rocm"])


def test_archives_are_looked_for_too(desk: Desk) -> None:
    keys = {f"therock-dist-linux-gfx1151-10.{number}.0.tar.gz": b"x" * 7 for number in range(3)}
    desk.amd.tree = Tree(stubs("this"), tarballs={**keys, "therock-dist-linux-gfx1151-10.3.0a20261001.tar.gz": b"x"})
    archive = '[layers.base.archives.{}]\nurl = "{}"\nsha256 = "{}"\nsize = {}\n'
    old = f"{desk.amd.bucket}/therock-dist-linux-gfx1151-10.1.0.tar.gz"
    desk.channel(more=archive.format("rocm", old, "a" * 64, 7))
    assert desk.lock()[0] == 0
    assert (
        "newer: therock-dist-linux-gfx1151-10.2.0.tar.gz (locked: therock-dist-linux-gfx1151-10.1.0.tar.gz)"
        in (desk.lock("--check")[1])
    )
    desk.channel(more=archive.format("rocm", f"{desk.amd.url}/none.tar.gz", "a" * 64, 7))
    assert desk.lock() == (0, [f"rocm {old} → {desk.amd.url}/none.tar.gz", "amd-gfx1151.toml: 1 change"])
    assert f"no longer served: the archive rocm ({desk.amd.url}/none.tar.gz)" in desk.lock("--check")[1]
    desk.channel(more=archive.format("rocm", old, "a" * 64, 8))
    desk.lock()
    assert "no longer served: the archive rocm: another file has its name now" in desk.lock("--check")[1]


def test_the_lock_of_another_target(desk: Desk) -> None:
    desk.lock()
    desk.amd.heal()
    code, lines = desk.lock("--from-lock", "gfx1151", target="gfx1100")
    assert code == 0, lines
    one, other = desk.held(), desk.held("gfx1100")
    for name in ("rocm", "torch"):
        shared = {entry for entry in one.wheels[name].wheels if "gfx" not in entry.name}
        assert {entry for entry in other.wheels[name].wheels if "gfx" not in entry.name} == shared
    assert {entry.name for held in other.wheels.values() for entry in held.wheels if "gfx" in entry.name} == {
        "amd-torch-device-gfx1100",
        "amd-torch-device-gfx110x",
        "rocm-sdk-device-gfx1100",
    }
    # the shared files are known by hash, and were not read again
    whole = [asked.path for asked in desk.amd.asked if asked.path.endswith(".whl") and not asked.range]
    assert whole
    assert all("gfx110" in path for path in whole)
    assert desk.lock("--from-lock", str(desk.path()), target="gfx1100") == (0, ["amd-gfx1100.toml: no changes"])


def test_the_lock_of_another_target_is_not_followed_halfway(desk: Desk) -> None:
    desk.lock()
    desk.amd.tree.withdraw("triton-3.8*")
    code, lines = desk.lock("--from-lock", "gfx1151", target="gfx1100")
    assert code == 2
    assert "does not serve 'triton', which torch 2.13.0+rocm10.0.0 needs" in lines[0]
    desk.amd.tree.add(replace(next(item for item in stubs("this") if item.project == "triton"), content=b"x"))
    desk.amd.tree = Tree([*stubs("next")])
    desk.channel("10.1.0", "2.14.0+rocm10.1.0")
    code, lines = desk.lock("--from-lock", "gfx1151", target="gfx1100")
    assert code == 2
    assert "error: rocm 10.0.0 of gfx1151 would become 10.1.0 for gfx1100; lock gfx1151 anew, or lock" in lines[0]
    assert not list(desk.root.rglob("amd-gfx1100.toml"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from-lock", "gfx1100"], "there is no lock of amd for gfx1100; name a target that has one, or a file"),
        (["--from-lock", "gfx110"], "'gfx110' is neither a target nor a file; did you mean 'gfx1100'?"),
        (["--from-lock", "no/such.toml"], "no/such.toml: there is no lock yet"),
        (["--offline"], "--offline goes with --check; a lock cannot be made without asking"),
        (["--check", "--all"], "--check changes nothing; leave the other options out"),
        (["--accept-known-bad", "early"], "the list of what is known to be bad has no 'early'; did you mean 'early-n"),
    ],
)
def test_what_cannot_be_meant(desk: Desk, arguments: list[str], says: str) -> None:
    code, lines = desk.lock(*arguments)
    assert (code, len(lines)) == (2, 1)
    assert says in lines[0]


def test_the_lock_of_another_channel(desk: Desk) -> None:
    desk.lock()
    other = desk.root / "other.toml"
    other.write_text(desk.path().read_text().replace('channel = "amd"', 'channel = "edge"'))
    code, lines = desk.lock("--from-lock", str(other), target="gfx1100")
    assert code == 2
    assert lines[0].endswith("other.toml: this is a lock of the channel edge; choose one of amd")


def test_what_is_known_to_be_bad_is_refused_or_accepted(desk: Desk) -> None:
    desk.amd.tree = Tree(stubs("bad"))
    desk.channel(KNOWN_BAD.rocm, KNOWN_BAD.torch_version)
    code, lines = desk.lock()
    assert code == 2
    assert lines[0].startswith(
        "error: known to be bad on gfx1151: ROCm 7.14.0a20260610: HIP crashes when it starts (early-nights, 2026-06-13,"
    )
    assert lines[0].endswith("or accept it with 'strix-finetune lock --accept-known-bad early-nights'")
    code, lines = desk.lock("--accept-known-bad", "early-nights")
    assert code == 0
    assert list(desk.held().accepted) == ["early-nights"]
    assert any(re.fullmatch(r"early-nights 20\d\d-\d\d-\d\d added", line) for line in lines)
    code, lines = desk.lock("--check", "--offline")
    assert (code, lines[0][:39]) == (0, "accepted: ROCm 7.14.0a20260610: HIP cra")
    # it stays accepted while it applies, a build says so, and a lock without it stops one
    assert desk.lock() == (0, ["amd-gfx1151.toml: no changes"])
    assert desk.plan() == ["accepted although it is known to be bad: ROCm 7.14.0a20260610: HIP crashes when it starts"]
    desk.path().write_text(desk.path().read_text().partition("\n# known to be bad")[0])
    code, lines = desk.lock("--check", "--offline")
    assert code == 1
    assert lines[0].startswith("wrong: known to be bad on gfx1151: ROCm 7.14.0a20260610")
    with pytest.raises(LockError, match=r"^known to be bad on gfx1151: ROCm 7.14.0a20260610: HIP crashes when it star"):
        desk.plan()
    desk.amd.tree = Tree(stubs("this"))
    desk.channel()
    assert (
        "early-nights does not apply to this lock, and is not accepted"
        in desk.lock("--accept-known-bad", "early-nights")[1]
    )
    assert desk.held().accepted == {}


def test_an_update_reads_a_replaced_file_anew(desk: Desk) -> None:
    desk.lock()
    assert desk.lock("--update", "torch") == (0, ["amd-gfx1151.toml: no changes"])
    other = torch(replace(RELEASE, hip="7.15.26334"))
    desk.amd.tree.add(other)
    assert desk.lock() == (0, ["amd-gfx1151.toml: no changes"])
    code, lines = desk.lock("--update", "torch")
    assert code == 0
    assert lines[0].endswith(f"→ 2.13.0+rocm10.0.0 ({other.sha256[:12]})")
