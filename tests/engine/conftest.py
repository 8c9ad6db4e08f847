"""Real engines, images made from nothing but this machine's own programs, and a real registry.

Nothing is skipped: where an engine is missing the tests fail with the sentence that a user would get.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from docker.errors import APIError

from strix_finetune.engine import wire
from strix_finetune.engine.base import BuildEvent, BuildRequest, Engine, RunRequest, RunResult
from strix_finetune.engine.client import SdkEngine
from strix_finetune.engine.select import connect
from strix_finetune.errors import EngineError

# each run has names of its own, so that two of them may share an engine
LABEL = f"io.strix-finetune.engine-test-{os.getpid()}"
PREFIX = f"localhost/strix-engine-test-{os.getpid()}"
PROGRAMS = ("sh", "cat", "date", "dd", "echo", "head", "id", "ls", "mkdir", "sleep", "stty", "test", "touch", "wc")

Context = Callable[[], Iterator[bytes]]


def context(dockerfile: str, files: dict[str, bytes] | None = None, tree: Path | None = None) -> Context:
    """A build context as the driver makes one: a fresh tar stream at each call."""

    def stream() -> Iterator[bytes]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, content in {"Dockerfile": dockerfile.encode(), **(files or {})}.items():
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(content), 0o644
                tar.addfile(info, io.BytesIO(content))
            if tree is not None:
                tar.add(tree, arcname="rootfs", filter=_anonymous)
        data = buffer.getvalue()
        yield from (data[at : at + 65536] for at in range(0, len(data), 65536))

    return stream


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.mtime = 0
    return info


@dataclass
class Bench:
    """An engine, a base image with a shell in it, and shorthands for the tests."""

    engine: SdkEngine
    base: str
    events: list[BuildEvent] = field(default_factory=list)

    def build(self, dockerfile: str, files: dict[str, bytes] | None = None, **options: object) -> str:
        """Build on `{base}`; the events are in `self.events`."""
        self.events.clear()
        text = dockerfile.replace("{base}", self.base)
        request = BuildRequest(context(text, files), {LABEL: "layer"}, **options)  # type: ignore[arg-type]
        return self.engine.build(request, self.events.append)

    def run(self, *command: str, image: str = "", **options: object) -> tuple[RunResult, str]:
        """Run a command; returns how it ended and what it printed."""
        output: list[bytes] = []
        labels = {LABEL: "run"}
        request = RunRequest(image or self.base, command, labels=labels, **options)  # type: ignore[arg-type]
        result = self.engine.run(request, output.append)
        return result, b"".join(output).decode()

    def containers(self) -> list[str]:
        """Ids of the containers of these tests, running or not."""
        return [found["Id"] for found in self.engine.api.containers(all=True, filters={"label": LABEL})]


def working_containers(engine: SdkEngine) -> list[str]:
    """Podman's containers of builds on our base that have not ended, or were never cleaned up."""
    if engine.info.kind != "podman":
        return []
    query = {"all": "true", "external": "true"}
    for _ in range(20):
        # Podman lists, then looks at each: one that goes away in between is an error of the whole list
        with suppress(EngineError):
            listed = wire.call(engine.api, "GET", "/libpod/containers/json", "list containers", params=query)
            break
        time.sleep(0.1)
    else:
        listed = wire.call(engine.api, "GET", "/libpod/containers/json", "list containers", params=query)
    return [found["Id"] for found in listed if PREFIX in found["Image"] and found["Command"] == ["buildah"]]


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system of this machine's own shell and a few programs, with the libraries they need."""
    root = tmp_path_factory.mktemp("rootfs")
    for name in ("bin", "tmp", "etc", "proc", "dev", "sys"):
        (root / name).mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        assert found, f"this machine has no program named {name}"
        program = Path(found).resolve()
        shutil.copy2(program, root / "bin" / name)
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                target = root / word.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(Path(word).resolve(), target)
    return root


def _bench(engine: Engine, rootfs: Path) -> Iterator[Bench]:
    assert isinstance(engine, SdkEngine)
    base = f"{PREFIX}/base:1"
    dockerfile = "FROM scratch\nCOPY rootfs /\nENV PATH=/bin\n"
    try:
        image = engine.build(BuildRequest(context(dockerfile, tree=rootfs), {LABEL: "base"}), lambda event: None)
        engine.tag(image, base)
        yield Bench(engine, base)
    finally:
        engine.reap(LABEL)
        for left in working_containers(engine):
            engine.api.remove_container(left, force=True)
        _remove_images(engine)
        engine.close()


def _remove_images(engine: SdkEngine) -> None:
    """Everything that was built here: what is labelled, and the unlabelled stages that were built on it."""
    base = engine.api.inspect_image(f"{PREFIX}/base:1")["RootFS"]["Layers"]
    for found in engine.images(LABEL):
        for tag in found.tags:
            engine.untag(tag)
    ours = {found.id for found in engine.images(LABEL)}
    for record in engine.api.images(all=True):
        if not record.get("RepoTags") and record["Size"] < 100 << 20 and record["Id"] not in ours:
            with suppress(APIError):  # others may be at work in the same store
                layers = engine.api.inspect_image(record["Id"])["RootFS"].get("Layers") or []
                ours |= {record["Id"]} if layers[: len(base)] == base else set()
    while ours:  # children first; a parent goes when none of them is left
        left = {image for image in ours if not _removed(engine, image)}
        if left == ours:
            break
        ours = left


def _removed(engine: SdkEngine, image: str) -> bool:
    engine.remove(image)
    return engine.image(image) is None


@pytest.fixture(scope="session")
def docker_bench(rootfs: Path) -> Iterator[Bench]:
    yield from _bench(connect("docker", os.environ), rootfs)


@pytest.fixture(scope="session")
def podman_bench(rootfs: Path) -> Iterator[Bench]:
    yield from _bench(connect("podman", os.environ), rootfs)


@pytest.fixture(scope="session")
def docker_engine(docker_bench: Bench) -> Engine:
    """A real Docker."""
    return docker_bench.engine


@pytest.fixture(scope="session")
def podman_engine(podman_bench: Bench) -> Engine:
    """A real Podman, by a service that the driver started unless one was running."""
    return podman_bench.engine


@pytest.fixture(params=["docker", "podman"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Each test runs once on each engine."""
    found: Bench = request.getfixturevalue(f"{request.param}_bench")
    return found


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(f"{request.param}_engine")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Depot:
    """Debian's docker-registry on a free loopback port, with a store of its own; it may be killed and started again."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def stored(self) -> int:
        """Bytes of all that it holds, with what it writes about it."""
        return sum(path.stat().st_size for path in self.store.rglob("*") if path.is_file())

    def blob(self, digest: str) -> Path:
        hexadecimal = digest.removeprefix("sha256:")
        return self.store / f"docker/registry/v2/blobs/sha256/{hexadecimal[:2]}/{hexadecimal}/data"

    def start(self) -> None:
        program = shutil.which("docker-registry")
        assert program, "docker-registry is not installed; install it (Debian: apt install docker-registry)"
        config = self.folder / "config.yml"
        config.write_text(
            f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {self.store}\n  delete:\n    enabled: true\n"
            f"http:\n  addr: 127.0.0.1:{self.port}\n  secret: of these tests\n"
        )
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)
        raise AssertionError("docker-registry does not answer")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry for all tests that only need one; yields "localhost:PORT"."""
    depot = Depot(tmp_path_factory.mktemp("registry"))
    depot.start()
    yield depot.address
    depot.kill()


@pytest.fixture
def depot(tmp_path: Path) -> Iterator[Depot]:
    """A registry for one test, empty at its beginning."""
    made = Depot(tmp_path / "registry")
    made.folder.mkdir()
    made.start()
    yield made
    made.kill()
