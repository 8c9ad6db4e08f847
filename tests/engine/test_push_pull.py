"""Real images to and from a real registry, by the command line on real engines; and one that dies in the middle.

Each engine builds the stack once and pushes it; the other one, which has nothing of it, pulls. The registry is a
process of the tests' own: it is killed when some byte has come, also on hosts with Podman alone, and no image of it is
needed. What a registry may do wrong is tried with a double of it in tests/unit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from strix_finetune import cli, names
from strix_finetune.engine.base import Engine, RunRequest
from strix_finetune.engine.select import connect
from strix_finetune.oci.descriptor import INDEX, MANIFEST, canonical, digest_of
from strix_finetune.registry import http
from tests.engine.conftest import Depot
from tests.engine.flaky import proxy
from tests.engine.test_stack import TARGET, Place, connection, diamond

__all__ = ["connection"]
pytestmark = pytest.mark.engine

NAME = "strix/demo"
SIZE = 6_000_000
# engine → the one that pulls what it pushed, and the environment in which that is found
OTHER: dict[str, tuple[str, Mapping[str, str]]] = {"docker": ("podman", {}), "podman": ("docker", {})}


@pytest.fixture(scope="module")
def built(connection: Engine, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The stack, built, with something in it that does not compress."""
    place = diamond(tmp_path_factory.mktemp("stack"), connection.info.kind)
    (place.images / "left/files/big").write_bytes(os.urandom(SIZE))
    dockerfile = place.images / "left/Dockerfile.j2"
    dockerfile.write_text(dockerfile.read_text() + "COPY files/big /big\n")
    done = place.strix("build")
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def filled(built: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Depot]:
    """A registry that the stack was pushed to."""
    made = Depot(tmp_path_factory.mktemp("registry"))
    made.start()
    push(built, made.address)
    yield made
    made.kill()


@pytest.fixture
def other(built: Place) -> Iterator[Place]:
    """The same definitions on the other engine, which has nothing of them."""
    kind, env = OTHER[built.kind]
    made = Place(built.root, kind, dict(env))
    yield made
    forget(made)


@contextmanager
def changed(place: Place, line: str) -> Iterator[None]:
    """One more line at the top of the stack, for a while."""
    path = place.images / "top/Dockerfile.j2"
    before = path.read_text()
    path.write_text(before + line)
    try:
        yield
    finally:
        path.write_text(before)


class Shelf:
    """What a registry serves, asked without our own client."""

    def __init__(self, depot: Depot) -> None:
        self.root = f"http://{depot.address}/v2/{NAME}"

    def tags(self) -> set[str]:
        answer = requests.get(f"{self.root}/tags/list", timeout=10)
        return set(answer.json().get("tags") or []) if answer.status_code == 200 else set()

    def manifest(self, reference: str) -> tuple[dict[str, Any], str]:
        accept = {"Accept": f"{INDEX}, {MANIFEST}"}
        answer = requests.get(f"{self.root}/manifests/{reference}", headers=accept, timeout=10)
        answer.raise_for_status()
        return answer.json(), digest_of(answer.content)

    def put(self, reference: str, document: dict[str, Any], kind: str) -> str:
        body = canonical(document)
        requests.put(
            f"{self.root}/manifests/{reference}", data=body, headers={"Content-Type": kind}, timeout=10
        ).raise_for_status()
        return digest_of(body)

    def blob(self, digest: str) -> bytes:
        return requests.get(f"{self.root}/blobs/{digest}", timeout=10).content

    def put_blob(self, content: bytes) -> str:
        began = requests.post(f"{self.root}/blobs/uploads/", timeout=10)
        digest = digest_of(content)
        requests.put(f"{began.headers['Location']}&digest={digest}", data=content, timeout=10).raise_for_status()
        return digest


def push(place: Place, address: str, *more: str) -> dict[str, Any]:
    """Push and return the last event."""
    done = place.strix("push", "--json", "--to", f"{address}/{NAME}", *more)
    assert done.returncode == 0, done.stderr + done.stdout
    event: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert event["event"] == "pushed"
    return event


def forget(place: Place) -> None:
    """Remove all images of the target from the place's engine."""
    engine = connect(place.kind, place.environment())  # type: ignore[arg-type]
    try:
        for image in engine.images(f"{names.TARGET}={place.target}"):
            for tag in image.tags:
                engine.untag(tag)
            engine.remove(image.id)
        assert not place.tags(engine)
    finally:
        engine.close()


def tags(place: Place) -> set[str]:
    engine = connect(place.kind, place.environment())  # type: ignore[arg-type]
    try:
        return place.tags(engine)
    finally:
        engine.close()


def says(place: Place, *command: str) -> str:
    """What a command prints in the final image."""
    engine = connect(place.kind, place.environment())  # type: ignore[arg-type]
    said: list[bytes] = []
    try:
        engine.run(RunRequest(names.final_ref(TARGET), command), said.append)
    finally:
        engine.close()
    return b"".join(said).decode()


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a command that failed."""
    assert done.returncode == 1, done.stdout + done.stderr
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return error


Failing = Callable[..., str]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Failing:
    """Run a command that fails in this process, with less patience; returns its one sentence."""
    monkeypatch.setattr(http, "_ATTEMPTS", 2)

    def run(place: Place, *arguments: str) -> str:
        with monkeypatch.context() as here:
            for name, value in place.environment().items():
                here.setenv(name, value)
            assert cli.main(place.command(*arguments)[3:]) == 1
        [error] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        return error

    return run


once = pytest.mark.parametrize("connection", ["podman"], indirect=True)


@once
def test_a_push_moves_all_once_and_then_only_what_changed(built: Place, depot: Depot) -> None:
    shelf = Shelf(depot)
    first = push(built, depot.address)
    assert first["sent"] > SIZE
    day = time.strftime("%Y%m%d", time.gmtime())
    assert first["tags"] == [f"{TARGET}-{day}", TARGET, "latest"]
    index, digest = shelf.manifest(TARGET)
    assert digest == first["digest"]
    assert index["annotations"][names.TARGET] == TARGET
    assert [row["annotations"][names.LAYER] for row in index["manifests"]] == ["top", "left", "root"]
    keys = {row["annotations"][names.LAYER]: row["annotations"][names.KEY][:12] for row in index["manifests"]}
    assert shelf.tags() == {f"{layer}-{TARGET}-{key}" for layer, key in keys.items()} | set(first["tags"])
    before = depot.stored()
    again = push(built, depot.address)
    assert (again["sent"], again["digest"]) == (0, digest)
    assert depot.stored() == before
    with changed(built, "RUN echo one line > /line\n"):
        assert built.strix("build", "top").returncode == 0
        after = push(built, depot.address)
    assert built.strix("build").returncode == 0
    assert 0 < after["sent"] < 20_000
    # with manifests, names and what this registry writes beside each
    assert depot.stored() - before < 100_000
    assert shelf.manifest("latest")[1] == after["digest"] != digest


def test_what_one_engine_pushed_the_other_pulls(built: Place, filled: Depot, other: Place) -> None:
    done = other.strix("pull", "--from", f"{filled.address}/{NAME}")
    assert done.returncode == 0, done.stderr
    assert f"localhost/strix-finetune:{TARGET}, key " in done.stdout
    assert says(other, "cat", "/left", "/copied").split() == ["left", "right"]
    assert {tag.rpartition("/")[2].partition("-")[0] for tag in tags(other)} == {"strix", f"top:{TARGET}"}
    assert not [path for path in (built.root / "cache/strix-finetune/pulls").iterdir() if path.is_dir()]


def test_an_empty_engine_builds_nothing_that_a_registry_has(built: Place, filled: Depot, other: Place) -> None:
    source = f"{filled.address}/{NAME}"
    events = other.events("build", "--from", source)
    assert not [event for event in events if event["event"] == "step-progress"]
    assert [event["outcome"] for event in events if event["event"] == "layer-done"] == ["pulled"]
    assert (events[-1]["pulled"], events[-1]["built"]) == (1, 0)


@once
def test_what_was_tampered_with_gets_no_name(built: Place, depot: Depot, other: Place) -> None:
    push(built, depot.address)
    shelf = Shelf(depot)
    source = f"{depot.address}/{NAME}"
    index, _ = shelf.manifest(TARGET)
    manifest, digest = shelf.manifest(index["manifests"][0]["digest"])
    largest = depot.blob(max(manifest["layers"], key=lambda row: int(row["size"]))["digest"])
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert "is not what its digest says" in error_of(other.strix("pull", "--from", source))
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    # another label, with every digest set right again
    config = json.loads(shelf.blob(manifest["config"]["digest"]))
    parts = json.loads(config["config"]["Labels"][names.PARTS])
    config["config"]["Labels"][names.PARTS] = json.dumps({**parts, "apt openssl": "99"})
    body = json.dumps(config).encode()
    manifest["config"] |= {"digest": shelf.put_blob(body), "size": len(body)}
    tag = f"top-{TARGET}-{manifest['annotations'][names.KEY][:12]}"
    index["manifests"][0] |= {"digest": shelf.put(tag, manifest, MANIFEST), "size": len(canonical(manifest))}
    shelf.put(TARGET, index, INDEX)
    words = "has a label io.strix-finetune.parts that its key was not made of"
    assert words in error_of(other.strix("build", "--from", source))
    assert tags(other) == set()
    # a push puts the right one in its place
    push(built, depot.address)
    assert shelf.manifest(tag)[1] == digest


@once
def test_a_registry_that_dies_in_a_push_has_no_name_of_it_and_the_next_push_goes_on(
    built: Place, depot: Depot, failing: Failing
) -> None:
    shelf = Shelf(depot)
    with proxy(depot.port) as middle:
        middle.up_limit, middle.on_limit = SIZE // 2, depot.kill
        error = failing(built, "push", "--to", f"{middle.address}/{NAME}")
        assert "does not answer" in error
        assert error.endswith("; try again: what is whole is not sent twice")
        middle.revive()
        depot.start()
        assert not {tag for tag in shelf.tags() if tag.startswith(("left", "top", "latest", TARGET))}
        assert push(built, middle.address)["digest"] == shelf.manifest(TARGET)[1]
        # `root` was whole before
        assert middle.up < SIZE + 400_000


@once
def test_a_registry_that_dies_in_a_pull_moves_no_name_and_the_next_pull_goes_on(
    filled: Depot, other: Place, failing: Failing
) -> None:
    with proxy(filled.port) as middle:
        middle.down_limit = SIZE // 2
        error = failing(other, "pull", "--from", f"{middle.address}/{NAME}")
        assert "; try again: what" in error
        assert tags(other) == set()
        middle.revive()
        done = other.strix("pull", "--from", f"{middle.address}/{NAME}")
        assert done.returncode == 0, done.stderr
        # a third of it, at least, was here already
        assert middle.down < SIZE * 2 // 3 + 1_500_000
    assert says(other, "cat", "/left").strip() == "left"


@once
def test_a_push_to_where_nobody_listens_is_no_success(built: Place, failing: Failing) -> None:
    error = failing(built, "push", "--to", "localhost:1/strix/dead")
    assert "the registry localhost:1 does not answer: connection refused" in error


@once
def test_an_interrupted_push_leaves_no_name_and_no_file(built: Place, depot: Depot) -> None:
    stalled: list[float] = []

    def stall() -> None:
        stalled.append(time.monotonic())
        time.sleep(60)

    with proxy(depot.port) as middle:
        middle.up_limit, middle.on_limit = SIZE // 2, stall
        driver = subprocess.Popen(
            built.command("push", "--to", f"{middle.address}/{NAME}"),
            env=built.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        while not stalled and driver.poll() is None:
            time.sleep(0.05)
        began = time.monotonic()
        driver.send_signal(signal.SIGINT)
        _, said = driver.communicate(timeout=60)
        assert time.monotonic() - began < 30
    assert driver.returncode == 130, said
    assert said.splitlines()[-1].startswith("interrupted; ")
    assert not {tag for tag in Shelf(depot).tags() if tag.startswith(("left", "top", "latest", TARGET))}
    assert not list(Path(built.root, "cache/strix-finetune").glob("push-*"))
