"""Making a root file system, with a stand-in for mmdebstrap: what it is told, and what is left when it fails."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strix_finetune import bootstrap, debian, tomlfile
from strix_finetune.errors import BuildFailed, FetchFailed, LockError, Problem
from strix_finetune.lockmodel import AptLock, AptPackage, Lock, Release
from strix_finetune.model import Keyed, LayerDef, Node, RenderedLayer
from strix_finetune.netconf import NetSettings
from strix_finetune.schema import ChannelFile, LayerFile

PROGRAM = """\
#!/usr/bin/env python3
import json, os, pathlib, sys
if any(word.startswith("--setup-hook") for word in sys.argv):
    print("deb http://default.example/debian sid main", file=sys.stderr)
    print("deb [signed-by=x] http://default.example/security/ sid-security main")
    sys.exit(25)
work = pathlib.Path(os.environ["TMPDIR"])
(work / "root").mkdir()
texts = {}
for word in sys.argv:
    name, _, value = word.partition("=")
    if name in ("--dpkgopt", "--aptopt"):
        texts[name] = pathlib.Path(value).read_text() if value.startswith("/") else value
told = {"argv": sys.argv[1:], "env": dict(os.environ), "texts": texts}
pathlib.Path(os.environ["TOLD"]).write_text(json.dumps(told))
print("I: unpacking")
said = os.environ.get("SAYS", "")
if said:
    print(said, flush=True)
    sys.exit(int(os.environ.get("CODE", "25")))
if not os.environ.get("WRITES_NOTHING"):
    pathlib.Path(sys.argv[-2]).write_bytes(b"a tar")
"""
CHANNEL = ChannelFile.model_validate(
    {
        "name": "debian",
        "description": "d",
        "python": "3.14",
        "bootstrap": {"source": "mmdebstrap"},
        "apt": {"suite": "sid", "components": ["main", "contrib"]},
    }
)
LOCK = Lock(
    "debian",
    "cpu",
    AptLock(
        "sid",
        {"sid": Release("2026-10-30T08:08:01Z", "a" * 64)},
        {"sudo": AptPackage("1.9-1", 1, "b" * 64), "bash": AptPackage("5.3-4", 1, "c" * 64)},
    ),
)
SETTINGS = NetSettings(
    proxies={"http_proxy": "http://proxy.example:3128"},
    debian_mirror="http://mirror.example/debian",
    apt_options=(("Acquire::Check-Valid-Until", "false"),),
)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-in first on PATH; returns the file in which it notes what it was told."""
    program = tmp_path / "bin/mmdebstrap"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told.json"))
    monkeypatch.setattr(debian, "keyring", lambda: Path("/keys.gpg"))
    return tmp_path / "told.json"


@pytest.fixture
def layer(tmp_path: Path) -> Keyed:
    folder = tmp_path / "base"
    for name, text in (("dpkg/dpkg.cfg.d/90x", "path-exclude=/usr/share/man/*"), ("apt/apt.conf.d/90x", 'A "b";\n')):
        path = folder / "files/etc" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (folder / "layer.toml").write_text('name = "base"\ndescription = "d"\n[packages]\nrootfs = ["sudo", "bash"]\n')
    problems: list[Problem] = []
    read = tomlfile.read(folder / "layer.toml", LayerFile, problems)
    assert read, problems
    node = Node(LayerDef(*read, folder, ()), None, (), {}, {"rootfs": ("sudo", "bash")}, {})
    return Keyed(RenderedLayer(node, "", (), {}), "", {})


def make(layer: Keyed, cache: Path, lock: Lock = LOCK, settings: NetSettings = SETTINGS) -> tuple[Path, list[str]]:
    lines: list[str] = []
    return bootstrap.rootfs(layer, lock, CHANNEL, settings, cache, lines.append), lines


def with_vars(layer: Keyed, **values: Any) -> Keyed:
    rendered = layer.layer
    return replace(layer, layer=replace(rendered, node=replace(rendered.node, vars=values)))


def contents(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "rootfs").iterdir() if not path.name.endswith(".lock"))


def test_what_mmdebstrap_is_told(layer: Keyed, told: Path, tmp_path: Path) -> None:
    path, lines = make(layer, tmp_path / "cache")
    assert path.read_bytes() == b"a tar"
    assert lines == ["I: unpacking"]
    assert contents(tmp_path / "cache") == [path.name]
    note = json.loads(told.read_text())
    argv, env = note["argv"], note["env"]
    assert env["SOURCE_DATE_EPOCH"] == "1793347681"
    assert env["http_proxy"] == "http://proxy.example:3128"
    assert argv[-3:][0::2] == ["sid", "deb [signed-by=/keys.gpg] http://mirror.example/debian sid main contrib"]
    assert {"--variant=minbase", "--format=tar", "--skip=output/dev", "--architectures=amd64"} <= set(argv)
    assert "--include=bash=5.3-4,sudo=1.9-1" in argv
    assert note["texts"] == {
        "--dpkgopt": "path-exclude=/usr/share/man/*\nforce-unsafe-io\n",
        "--aptopt": 'A "b";\nAcquire::Check-Valid-Until "false";\n',
    }
    [hook] = [word for word in argv if word.startswith("--customize-hook=")]
    assert "mirror.example" not in hook
    assert "URIs: http://default.example/debian\nSuites: sid\nComponents: main contrib\nSigned-By: /usr/share/" in hook
    assert "URIs: http://default.example/security\nSuites: sid-security\n" in hook
    for trace in ("apt/sources.list", "99mmdebstrap", "hostname", "resolv.conf"):
        assert trace in hook


def test_it_is_made_once(layer: Keyed, told: Path, tmp_path: Path) -> None:
    path, _ = make(layer, tmp_path)
    told.unlink()
    assert make(layer, tmp_path) == (path, [])
    assert not told.exists()


def test_whatever_decides_on_the_bytes_makes_another_one(layer: Keyed, told: Path, tmp_path: Path) -> None:
    first, _ = make(layer, tmp_path)
    moved = replace(LOCK.apt, packages={**LOCK.apt.packages, "sudo": AptPackage("1.9-2", 1, "b" * 64)})
    later = replace(LOCK.apt, releases={"sid": Release("2026-11-30T08:08:01Z", "f" * 64)})
    others = {
        first,
        make(layer, tmp_path, replace(LOCK, apt=moved))[0],
        make(layer, tmp_path, replace(LOCK, apt=later))[0],
        make(with_vars(layer, variant="apt"), tmp_path)[0],
    }
    assert len(others) == 4
    assert len(contents(tmp_path)) == bootstrap.KEPT
    (layer.layer.node.layer.folder / "files/etc/dpkg/dpkg.cfg.d/90x").write_text("path-exclude=/usr/share/doc/*\n")
    assert make(layer, tmp_path)[0] not in others


def test_the_network_changes_nothing(layer: Keyed, told: Path, tmp_path: Path) -> None:
    path, _ = make(layer, tmp_path)
    other = NetSettings(debian_mirror="http://other.example/debian")
    assert make(layer, tmp_path, settings=other)[0] == path


def test_a_host_without_a_mirror_uses_debians_own(layer: Keyed, told: Path, tmp_path: Path) -> None:
    make(layer, tmp_path, settings=NetSettings())
    source = json.loads(told.read_text())["argv"][-1]
    assert source == "deb [signed-by=/keys.gpg] http://default.example/debian sid main contrib"


@pytest.mark.parametrize(
    ("says", "kind", "sentence"),
    [
        (
            "E: Version '1.9-1' for 'sudo' was not found",
            LockError,
            "the archive no longer serves sudo 1.9-1; run 'strix-finetune lock --update sudo'",
        ),
        ("E: Unable to locate package sudo", LockError, "the suite 'sid' has no package sudo"),
        ("tar: write error: No space left on device", BuildFailed, "the disk is full; make room in TMPDIR"),
        (
            (
                "E: Failed to fetch http://me:pw@mirror.example/x  Could not connect to mirror.example:80\n"
                "E: apt-get update --error-on=any failed"
            ),
            FetchFailed,
            "http://mirror.example/debian cannot be reached (Could not connect to mirror.example:80)",
        ),
        (
            "E: The repository 'http://mirror.example/debian sid InRelease' is not signed.",
            FetchFailed,
            "the signature of Debian's suite 'sid' cannot be verified",
        ),
        ("E: setup failed: E: dpkg failed", BuildFailed, "mmdebstrap ended with exit code 25: setup failed: E: dpkg"),
    ],
)
def test_a_failure_is_one_sentence_and_leaves_nothing(
    layer: Keyed,
    told: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    kind: type[Exception],
    sentence: str,
) -> None:
    monkeypatch.setenv("SAYS", says)
    with pytest.raises(kind) as caught:
        make(layer, tmp_path / "cache")
    assert str(caught.value).startswith(sentence)
    assert "pw" not in str(caught.value)
    assert contents(tmp_path / "cache") == []
    if isinstance(caught.value, BuildFailed) and "disk" not in sentence:
        assert caught.value.log_tail[0] == "I: unpacking"


def test_a_success_that_wrote_nothing_is_none(
    layer: Keyed, told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRITES_NOTHING", "1")
    with pytest.raises(BuildFailed, match="mmdebstrap ended well and wrote nothing"):
        make(layer, tmp_path / "cache")
    assert contents(tmp_path / "cache") == []


def test_a_listener_that_fails_leaves_nothing(layer: Keyed, told: Path, tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bootstrap.rootfs(layer, LOCK, CHANNEL, SETTINGS, tmp_path / "cache", interrupt)
    assert contents(tmp_path / "cache") == []


def test_what_a_killed_process_left_is_removed(layer: Keyed, told: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rootfs"
    (folder / ".x.1.99999999.work/etc").mkdir(parents=True)
    (folder / ".x.1.99999999.part").touch()
    path, _ = make(layer, tmp_path)
    assert contents(tmp_path) == [path.name]


def test_a_lock_that_lacks_a_package(layer: Keyed, told: Path, tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"base/layer.toml:4: the lock lacks sudo, bash; run 'strix-finetune lock'"):
        make(layer, tmp_path, replace(LOCK, apt=replace(LOCK.apt, packages={})))
