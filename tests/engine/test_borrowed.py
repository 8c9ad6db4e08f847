"""A host without apt and mmdebstrap: it locks and builds with those of a Debian image, on both engines.

The image is made here by mmdebstrap and served by a registry of our own, in the place of one in the world.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from strix_finetune import bootstrap, borrowed, lockfile, names, netconf, programs
from strix_finetune import lock as locks
from strix_finetune.context import tar
from strix_finetune.engine.base import BuildRequest, Engine
from strix_finetune.engine.client import SdkEngine
from strix_finetune.engine.select import connect
from strix_finetune.errors import LockError
from strix_finetune.lockmodel import Lock
from strix_finetune.model import ContextFile
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve.apt import AptArchive
from strix_finetune.workspace import Options, Workspace, open_workspace
from tests.engine.conftest import LABEL
from tests.engine.publish import publish

pytestmark = pytest.mark.engine
# each run has names of its own, so that two of them may share an engine
TARGET = CHANNEL = f"borrowtest{os.getpid()}"
HIDDEN = ("apt", "apt-get", "apt-cache", "mmdebstrap", "debootstrap")
PACKAGES = ["ca-certificates"]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with everything that this machine has but Debian's own programs."""
    folder = tmp_path_factory.mktemp("bare")
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).glob("*") if Path(place).is_dir() else ():
            if program.name not in HIDDEN and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, registry: str) -> Path:
    """Definitions of one layer, whose channel's helper is in the registry."""
    images = tmp_path_factory.mktemp("borrow") / "images"
    for folder in ("channels", "locks", "base"):
        (images / folder).mkdir(parents=True)
    (images / "macros.j2").write_text("")
    (images / "targets.toml").write_text(f'default = "{TARGET}"\n[target.{TARGET}]\nkind = "cpu"\nmemory = "host"\n')
    (images / f"channels/{CHANNEL}.toml").write_text(
        f'name = "{CHANNEL}"\ndescription = "test"\npython = "3.14"\napt = {{ suite = "sid" }}\n'
        f'bootstrap = {{ source = "mmdebstrap", helper = "{registry}/debian:sid" }}\n'
    )
    (images / "base/layer.toml").write_text(
        f'name = "base"\ndescription = "test"\nfinal = true\npackages = {{ rootfs = {json.dumps(PACKAGES)} }}\n'
        '[[smoke]]\nfile = "smoke/shell.sh"\n'
    )
    (images / "base/Dockerfile.j2").write_text("FROM scratch\nADD {{ rootfs }} /\nENV PATH=/usr/bin:/usr/sbin\n")
    (images / "base/smoke").mkdir()
    (images / "base/smoke/shell.sh").write_text("#!/bin/sh\ndpkg-query -W ca-certificates\n")
    return images


@pytest.fixture(scope="module")
def workspace(images: Path) -> Workspace:
    return open_workspace(Options(target=TARGET, channel=CHANNEL, images=images), os.environ)


@pytest.fixture(scope="module")
def settings() -> NetSettings:
    return netconf.collect(os.environ)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def own(workspace: Workspace, settings: NetSettings, cache: Path) -> Lock:
    """The lock that this machine makes with its own apt."""
    return locks.make_lock(workspace.stack, None, settings, cache)[0]


@pytest.fixture(scope="module")
def helper(own: Lock, workspace: Workspace, settings: NetSettings, cache: Path, registry: str) -> Path:
    """Puts the helper into the registry; returns the root file system that it is made of."""
    [layer] = workspace.render(own)
    rootfs = bootstrap.rootfs(layer, own, workspace.stack.channel.spec, settings, cache)
    engine = connect("docker", os.environ)
    files = [ContextFile("Dockerfile", b"FROM scratch\nADD rootfs.tar /\n"), ContextFile("rootfs.tar", rootfs)]
    try:
        made = engine.build(BuildRequest(lambda: tar(files), {LABEL: "helper"}), lambda event: None)
        publish(engine, made, f"{registry}/debian:sid")
        engine.remove(made)
    finally:
        engine.close()
    return rootfs


@pytest.fixture(scope="module", params=["docker", "podman"])
def connection(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = connect(request.param, os.environ)
    yield engine
    for label in (f"{names.TARGET}={TARGET}", f"{borrowed.LABEL}={CHANNEL}"):
        for image in engine.images(label):
            for tag in image.tags:
                engine.untag(tag)
            engine.remove(image.id)
    engine.close()


def test_the_archive_answers_the_same_through_an_image(
    connection: Engine,
    helper: Path,
    own: Lock,
    workspace: Workspace,
    settings: NetSettings,
    bare: str,
    tmp_path: Path,
    registry: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", bare)
    said: list[str] = []
    stack, apt = workspace.stack, workspace.stack.channel.spec.apt
    with pytest.raises(LockError, match="which this host needs because it has no apt of its own"):
        locks.stale(stack, own, borrowed.lend(settings, stack, {}, lambda: connection, print, locked=True), tmp_path)
    lent = borrowed.lend(settings, stack, {}, lambda: connection, said.append)
    asked = [*PACKAGES, "libc6", "python3-troch", "awk"]
    answer = AptArchive(lent, tmp_path).ask(asked, apt)
    assert answer.candidates["ca-certificates"] == own.apt.packages["ca-certificates"]
    assert answer.releases == own.apt.releases
    assert answer.unknown["python3-troch"] == "did you mean 'python3-torch'?"
    assert "mawk" in answer.unknown["awk"]
    assert [line.split()[0] for line in said] == ["pulling", "making"]
    # what was looked up is what a lock then holds, and a locked build needs no more
    pins = borrowed.looked_up(lent)
    assert list(pins) == [f"{registry}/debian:sid"]
    fresh, changes = locks.make_lock(stack, None, lent, tmp_path)
    assert fresh.images == pins
    assert fresh.apt == own.apt
    assert ("image", f"{registry}/debian:sid") in [(change.kind, change.name) for change in changes]
    again = borrowed.lend(settings, stack, pins, lambda: connection, said.append, locked=True)
    assert locks.stale(stack, fresh, again, tmp_path) == ()
    assert borrowed.looked_up(again) == {}
    assert len(said) == 2, "the image of the tools was there already"
    assert isinstance(connection, SdkEngine)
    assert not [
        found
        for found in connection.api.containers(all=True)
        if found.get("Image", "").startswith("localhost/strix-finetune/tools")
    ]


def test_apt_runs_as_the_user_whose_cache_it_is(
    connection: Engine,
    helper: Path,
    workspace: Workspace,
    settings: NetSettings,
    bare: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", bare)
    cache = tmp_path / "cache"
    cache.mkdir()
    lent = borrowed.lend(settings, workspace.stack, {}, lambda: connection, print)
    monkeypatch.setattr(borrowed.os, "getuid", lambda: 4321)
    monkeypatch.setattr(borrowed.os, "getgid", lambda: 4321)
    archive, apt = AptArchive(lent, cache), workspace.stack.channel.spec.apt
    with archive.state(apt):
        pass
    # pytest's folders are root's alone, and so is what was made just now
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)
    for path in (cache, *cache.rglob("*")):
        shutil.chown(path, 4321, 4321)
    real = borrowed.Borrowed.run

    def run(self: borrowed.Borrowed, *arguments: object, **options: object) -> programs.Done:
        for path in cache.glob(".strix*"):
            shutil.chown(path, 4321, 4321)
        return real(self, *arguments, **options)  # type: ignore[arg-type]

    mkdir = Path.mkdir

    def owned(path: Path, *arguments: object, **options: object) -> None:
        mkdir(path, *arguments, **options)  # type: ignore[arg-type]
        if path.is_relative_to(cache):
            shutil.chown(path, 4321, 4321)

    monkeypatch.setattr(Path, "mkdir", owned)
    monkeypatch.setattr(borrowed.Borrowed, "run", run)
    assert archive.ask(PACKAGES, apt).candidates.keys() == set(PACKAGES)
    lists = list(cache.glob("apt/*/state/lists/*Packages*"))
    assert lists
    assert {path.stat().st_uid for path in lists} == {4321}


def members(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {member.name for member in archive}


def test_the_command_line_locks_and_builds(
    connection: Engine, helper: Path, images: Path, bare: str, tmp_path: Path, registry: str
) -> None:
    mine = tmp_path / "images"
    shutil.copytree(images, mine)
    places = {f"XDG_{name}_HOME": f"{tmp_path}/{name.lower()}" for name in ("CACHE", "STATE", "DATA")}
    env = {**os.environ, **places, "PATH": bare}

    def strix(*arguments: str) -> subprocess.CompletedProcess[str]:
        where = ["--images", str(mine), "--target", TARGET, "--channel", CHANNEL, "--engine", connection.info.kind]
        command = [sys.executable, "-m", "strix_finetune", arguments[0], *where, *arguments[1:]]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
        assert "Traceback" not in done.stderr
        return done

    locked = strix("lock")
    assert locked.returncode == 0, locked.stderr
    held = lockfile.read(mine / f"locks/{CHANNEL}-{TARGET}.toml")
    assert held.images.keys() == {f"{registry}/debian:sid"}
    built = strix("build", "--locked")
    assert built.returncode == 0, built.stderr
    assert "base/shell.sh: ok, ca-certificates" in built.stderr
    assert connection.image(names.final_ref(TARGET))
    [made] = tmp_path.glob("cache/strix-finetune/rootfs/*.tar")
    assert made.name == helper.name, "who runs mmdebstrap is no part of the recipe"
    # another version of mmdebstrap may leave another trace of itself
    assert len(members(made) ^ members(helper)) <= 3
    checked = strix("lock", "--check")
    assert checked.returncode == 0, checked.stderr
    assert checked.stderr == "", "the image of the tools is there"
    # the layer is there now and can lend: the registry is asked no more, and the lock needs no image
    updated = strix("lock", "--update", f"{registry}/debian:sid")
    assert updated.returncode == 0, updated.stderr
    assert updated.stderr.startswith("making an image of Debian's tools out of sha256:")
    assert lockfile.read(mine / f"locks/{CHANNEL}-{TARGET}.toml").images == {}
    again = strix("build", "--locked")
    assert "1 up to date" in again.stderr


def test_where_no_image_can_lend(
    images: Path, bare: str, tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that is not there is told with its name; no engine, in its own sentence."""
    monkeypatch.setenv("PATH", bare)
    nowhere = tmp_path / "images"
    shutil.copytree(images, nowhere)
    text = (nowhere / f"channels/{CHANNEL}.toml").read_text()
    text = re.sub(r"localhost:\d+", "localhost:1", text).replace(CHANNEL, "nowhere")
    (nowhere / "channels/nowhere.toml").write_text(text)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    where = ["--images", str(nowhere), "--target", TARGET, "--channel", "nowhere"]

    def fault(*options: str, **more: str) -> str:
        command = [sys.executable, "-m", "strix_finetune", "lock", *where, *options]
        done = subprocess.run(command, env=env | more, capture_output=True, text=True, timeout=120)
        assert done.returncode in (1, 2)
        return done.stderr.splitlines()[-1]

    said = "could not read localhost:1/debian:sid: the registry localhost:1 does not answer: connection refused"
    assert said in fault("--engine", "docker")
    assert "there is no engine socket at unix:///nowhere" in fault(DOCKER_HOST="unix:///nowhere")
