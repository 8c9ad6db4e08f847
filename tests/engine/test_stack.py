"""A small stack of real layers, built by the command line on real engines: what people meet.

The first layer is this host's static busybox; nothing is fetched from anywhere.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strix_finetune import names
from strix_finetune.engine.base import Engine, RunRequest
from strix_finetune.engine.client import SdkEngine
from strix_finetune.engine.select import connect

# each run has names of its own, so that two of them may share an engine
TARGET = f"stacktest{os.getpid()}"
LOCK = f"""\
format = 1
channel = "debian"
target = "{TARGET}"

[apt]
suite = "sid"

[apt.releases.sid]
date = "2026-01-01T00:00:00Z"
sha256 = "{"0" * 64}"
"""
APPLETS = ("cat", "date", "head", "mkdir", "rm", "sleep", "timeout")


@dataclass
class Place:
    """Definitions in `images`, and the command line with caches of its own."""

    root: Path
    kind: str
    env: dict[str, str] = field(default_factory=dict)
    target: str = TARGET

    @property
    def images(self) -> Path:
        return self.root / "images"

    def layer(self, name: str, dockerfile: str, toml: str = "", smoke: Mapping[str, str] | None = None) -> None:
        """Write a layer; `smoke`: name → a script for /bin/sh."""
        folder = self.images / name
        (folder / "files").mkdir(parents=True, exist_ok=True)
        tests = "".join(f'[[smoke]]\nfile = "smoke/{test}"\ntimeout = 20\n' for test in smoke or {})
        (folder / "layer.toml").write_text(f'name = "{name}"\ndescription = "test"\n{toml}\n{tests}')
        (folder / "Dockerfile.j2").write_text(dockerfile)
        for test, script in (smoke or {}).items():
            (folder / "smoke").mkdir(exist_ok=True)
            (folder / "smoke" / test).write_text(f"#!/bin/sh\n{script}\n")

    def command(self, *arguments: str) -> list[str]:
        where = ["--images", str(self.images), "--target", self.target, "--channel", "debian", "--engine", self.kind]
        return [sys.executable, "-m", "strix_finetune", arguments[0], *where, *arguments[1:]]

    def environment(self) -> dict[str, str]:
        own = {"XDG_CACHE_HOME": f"{self.root}/cache", "XDG_STATE_HOME": f"{self.root}/state", **self.env}
        return {**os.environ, **own, "XDG_DATA_HOME": f"{self.root}/data"}

    def strix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command; no traceback may ever be seen."""
        done = subprocess.run(
            self.command(*arguments), env=self.environment(), capture_output=True, text=True, timeout=300
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def events(self, *arguments: str) -> list[dict[str, Any]]:
        done = self.strix(arguments[0], "--json", *arguments[1:])
        # shown by pytest when the test fails
        print(done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def tags(self, engine: Engine) -> set[str]:
        return {tag for image in engine.images(f"{names.TARGET}={self.target}") for tag in image.tags}


@pytest.fixture(scope="module", params=["docker", "podman"])
def connection(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = connect(request.param, os.environ)
    yield engine
    for image in engine.images(f"{names.TARGET}={TARGET}"):
        for tag in image.tags:
            engine.untag(tag)
        engine.remove(image.id)
    engine.close()


@pytest.fixture
def place(tmp_path: Path, connection: Engine) -> Place:
    return diamond(tmp_path, connection.info.kind)


def diamond(root: Path, kind: str) -> Place:
    """Definitions of a diamond: root → left, right → top; `top` copies a file of `right`."""
    images = root / "images"
    for folder in ("channels", "locks"):
        (images / folder).mkdir(parents=True)
    (images / "macros.j2").write_text("")
    (images / "targets.toml").write_text(f'default = "{TARGET}"\n[target.{TARGET}]\nkind = "cpu"\nmemory = "host"\n')
    (images / "channels/debian.toml").write_text(
        'name = "debian"\ndescription = "test"\npython = "3.14"\nbootstrap = { source = "mmdebstrap" }\n'
        'apt = { suite = "sid" }\n'
    )
    made = Place(root, kind)
    # a checkout keeps its locks with its definitions, any other place with the user's data
    for folder in (images / "locks", root / "data" / "strix-finetune" / "locks"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"debian-{TARGET}.toml").write_text(LOCK)
    busybox = Path("/bin/busybox")
    assert busybox.exists(), "the package busybox-static is needed"
    applets = " ".join(f"&& /bin/busybox ln -s busybox /bin/{name}" for name in APPLETS)
    links = f'RUN ["/bin/busybox", "sh", "-c", "/bin/busybox ln -s busybox /bin/sh {applets}"]\n'
    made.layer(
        "root", f"FROM scratch\nCOPY files/ /\nENV PATH=/bin\n{links}", smoke={"shell.sh": "echo it has a shell"}
    )
    (images / "root/files/bin").mkdir()
    shutil.copy(busybox, images / "root/files/bin/busybox")
    # every run of the tests has keys of its own
    (images / "root/files/unique").write_text(str(root))
    made.layer("left", "FROM {{ parent }}\nRUN echo left > /left\n", 'parent = ["root"]')
    made.layer("right", "FROM {{ parent }}\nRUN echo right > /right\n", 'parent = ["root"]\nrole = "builder"')
    made.layer(
        "top",
        'FROM {{ parent }}\nCOPY --from={{ builder("right") }} /right /copied\nRUN cat /left /copied\n',
        'parent = ["left"]\nbuilders = ["right"]\nfinal = true',
        smoke={"both.sh": 'echo "$(cat /left) and $(cat /copied)"'},
    )
    return made


def test_a_stack_is_built_tested_tagged_and_then_left_alone(place: Place, connection: Engine) -> None:
    events = place.events("build")
    outcomes = {event["layer"]: event["outcome"] for event in events if event["event"] == "layer-done"}
    assert outcomes == dict.fromkeys(("root", "left", "right", "top"), "built")
    smoke = {event["test"]: event for event in events if event["event"] == "smoke-result"}
    assert smoke["top/both.sh"]["detail"] == "left and right"
    assert events[-1]["image"] == f"localhost/strix-finetune:{TARGET}"
    plan = {event["layer"]: event for event in place.events("plan")}
    assert {event["action"] for event in plan.values()} == {"reuse"}
    assert place.tags(connection) >= {tag for event in plan.values() for tag in event["tags"]}
    again = place.events("build")
    assert not [event for event in again if event["event"] == "layer-started"]


def test_a_changed_file_rebuilds_what_stands_on_it_and_says_why(place: Place) -> None:
    assert place.strix("build").returncode == 0
    (place.images / "left/files/new").write_text("text")
    dockerfile = place.images / "left/Dockerfile.j2"
    dockerfile.write_text(dockerfile.read_text() + "COPY files/new /new\n")
    reasons = {event["layer"]: event["reason"] for event in place.events("plan")}
    assert reasons["root"] == "up to date"
    assert "files/new added" in reasons["left"]
    assert reasons["top"] == "rebuild, parent left changed"
    built = [event["layer"] for event in place.events("build") if event["event"] == "layer-started"]
    assert built == ["left", "top"]


def test_a_failing_step_stops_its_children_and_the_next_run_goes_on(place: Place) -> None:
    good = (place.images / "left/Dockerfile.j2").read_text()
    (place.images / "left/Dockerfile.j2").write_text("FROM {{ parent }}\nRUN echo some words && exit 3\n")
    done = place.strix("build")
    assert done.returncode == 1
    assert "left: | some words" in done.stderr
    assert f"{place.images}/left/Dockerfile.j2:2" in done.stderr
    assert "exit code 3" in done.stderr
    assert "top: not tried, 'left' failed" in done.stderr
    log = place.root / f"state/strix-finetune/logs/debian-{TARGET}/left.log"
    assert "some words" in log.read_text()
    (place.images / "left/Dockerfile.j2").write_text(good)
    built = {event["layer"] for event in place.events("build") if event["event"] == "layer-started"}
    assert {"left", "top"} <= built <= {"left", "top", "right"}


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo not good; exit 5", "exit code 5: not good"), ("kill -SEGV $$", "SIGSEGV"), ("sleep 60", "not done after")],
)
def test_a_failing_smoke_test_moves_no_tag(place: Place, connection: Engine, script: str, words: str) -> None:
    place.layer("top", "FROM {{ parent }}\nRUN true\n", 'parent = ["left"]\nfinal = true', smoke={"bad.sh": script})
    toml = place.images / "top/layer.toml"
    toml.write_text(toml.read_text().replace("timeout = 20", "timeout = 3"))
    before = place.tags(connection)
    done = place.strix("build")
    assert done.returncode == 1
    assert f"smoke test top/bad.sh of 'top' failed: {words}" in done.stderr
    assert {
        tag for tag in place.tags(connection) - before if "/top:" in tag or tag.endswith(f"finetune:{TARGET}")
    } == set()


def test_a_layer_over_its_budget_fails_and_moves_no_tag(place: Place, connection: Engine) -> None:
    before = place.tags(connection)
    place.layer(
        "right",
        "FROM {{ parent }}\nRUN mkdir -p /opt/data; head -c 3500000 /dev/zero > /opt/data/zeros\n"
        "RUN echo right > /right; rm /opt/data/zeros\n",
        'parent = ["root"]\nrole = "builder"\nbudget_mb = 3',
    )
    done = place.strix("build", "right")
    assert done.returncode == 1
    assert f"error: {place.images}/right/layer.toml:5: 'right' adds 3.5 MB and may add 3.0 MB" in done.stderr
    # what a later step removes is in the image all the same
    assert "most of it in /opt/data (3.5 MB)" in done.stderr
    assert not [tag for tag in place.tags(connection) - before if "/right:" in tag]
    toml = place.images / "right/layer.toml"
    toml.write_text(toml.read_text().replace("budget_mb = 3", "budget_mb = 4"))
    assert place.strix("build", "right").returncode == 0
    where = ["--engine", place.kind, "--images", str(place.images)]
    command = [sys.executable, "-m", "strix_finetune", "images", "--budget", *where]
    table = subprocess.run(command, env=place.environment(), capture_output=True, text=True)
    assert table.returncode == 0, table.stderr
    row = next(line for line in table.stdout.splitlines() if f"/right:{TARGET}" in line)
    assert row.endswith("3.5 MB  4.0 MB")
    toml.write_text(toml.read_text().replace("budget_mb = 4", "budget_mb = 2"))
    table = subprocess.run(command, env=place.environment(), capture_output=True, text=True)
    assert table.returncode == 1
    assert f"error: right of {TARGET} on debian adds 3.5 MB and may add 2.0 MB" in table.stderr


def test_a_rebuild_runs_every_step_and_keeps_cache_mounts(place: Place, connection: Engine) -> None:
    """The step counts its runs in the mount, as a compiler keeps what it compiled."""
    assert isinstance(connection, SdkEngine)
    mount = f"--mount=type=cache,id=strix-test-{time.time_ns()},target=/var/cache/strix-finetune"
    count = "cd /var/cache/strix-finetune; echo x >> runs; cat runs > /count; date > /when"
    place.layer(
        "left",
        f"FROM {{{{ parent }}}}\nRUN {mount} {count}\nRUN cat /count > /again\nRUN rm -rf /var\n",
        'parent = ["root"]',
        smoke={"count.sh": "cat /again | while read -r line; do printf %s $line; done; echo; test ! -e /var"},
    )

    def build(*options: str) -> str:
        events = place.events("build", *options, "left")
        assert [event["outcome"] for event in events if event["event"] == "layer-done"][-1] == "built"
        return [e["detail"] for e in events if e["event"] == "smoke-result" and e["layer"] == "left"][-1]

    def inside() -> tuple[list[str], list[str]]:
        """What the layer's files are, and what its steps are called."""
        name = names.moving_ref("left", TARGET)
        listed: list[bytes] = []
        connection.run(RunRequest(name, ("/bin/busybox", "find", "/", "-xdev"), network="none"), listed.append)
        return sorted(b"".join(listed).decode().split()), sorted(layer.created_by for layer in connection.history(name))

    place.strix("build", "left")
    before = inside()
    assert build("--rebuild") == "xx"
    assert build("--rebuild") == "xxx"
    assert inside() == before


def test_a_changed_smoke_test_is_run_again_and_nothing_is_rebuilt(place: Place, connection: Engine) -> None:
    assert place.strix("build", "root").returncode == 0
    before = place.tags(connection)
    test = place.images / "root/smoke/shell.sh"
    test.write_text("#!/bin/sh\necho another sentence; exit 4\n")
    planned = {event["layer"]: event for event in place.events("plan", "root")}
    assert planned["root"]["reason"] == "up to date, smoke test root/shell.sh changed"
    assert [name for name, event in planned.items() if event["retest"]] == ["root"]
    for _ in range(2):  # until it passes
        done = place.strix("build", "root")
        assert done.returncode == 1
        assert "smoke test root/shell.sh of 'root' failed: exit code 4: another sentence" in done.stderr
    assert place.tags(connection) == before
    test.write_text("#!/bin/sh\necho a third sentence\n")
    events = place.events("build", "root")
    assert [event["detail"] for event in events if event["event"] == "smoke-result"] == ["a third sentence"]
    assert [event["outcome"] for event in events if event["event"] == "layer-done"] == ["tested"]
    assert events[-1]["reused"] == 1
    assert place.tags(connection) == before
    assert not [event for event in place.events("build", "root") if event["event"] == "layer-started"]
    # what `smoke` ran counts, too
    test.write_text("#!/bin/sh\necho a fourth sentence\n")
    assert place.strix("smoke", "root").returncode == 0
    assert not any(event["retest"] for event in place.events("plan", "root"))


def test_a_syntax_error_and_an_empty_version_have_their_line(place: Place) -> None:
    (place.images / "left/Dockerfile.j2").write_text("FROM {{ parent }}\nRUN pip install torch=={{ vars.version }}\n")
    done = place.strix("plan")
    assert done.returncode == 2
    assert f"error: {place.images}/left/Dockerfile.j2:2: " in done.stderr
    (place.images / "left/Dockerfile.j2").write_text("FROM {{ parent }}\nRNU true\n")
    done = place.strix("build")
    assert done.returncode == 2
    assert f"{place.images}/left/Dockerfile.j2:2: 'RNU'" in done.stderr


def test_a_killed_driver_leaves_nothing_that_the_next_run_minds(place: Place, connection: Engine) -> None:
    place.layer(
        "top", "FROM {{ parent }}\nRUN true\n", 'parent = ["left"]\nfinal = true', smoke={"slow.sh": "sleep 15"}
    )
    driver = subprocess.Popen(
        place.command("build", "--json"),
        env=place.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout
    for line in driver.stdout:
        event = json.loads(line)
        if event["event"] == "layer-started" and event["layer"] == "top":
            break
    time.sleep(3)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    smoke = place.images / "top/smoke/slow.sh"
    smoke.write_text("#!/bin/sh\necho quick\n")
    events = place.events("build")
    assert events[-1]["failed"] == 0
    assert events[-1]["image"]
    assert connection.reap("io.strix-finetune.pid") == 0


def interrupted(place: Place, layer: str, running: Callable[[], bool]) -> str:
    """Start a build, interrupt it as Ctrl-C does when `running` says so, and return what it says after that."""
    driver = subprocess.Popen(
        place.command("build"),
        env=place.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell lets what runs in its background ignore Ctrl-C, and children would, too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert driver.stderr
    assert driver.stdout
    for line in driver.stderr:
        if line.startswith(f"{layer}: building"):
            break
    until = time.monotonic() + 60
    while not running():
        assert time.monotonic() < until, "it did not begin"
        time.sleep(0.1)
    began = time.monotonic()
    driver.send_signal(signal.SIGINT)
    rest = driver.stderr.read()
    assert driver.wait(timeout=20) == 130
    seconds = time.monotonic() - began
    print(f"{place.kind}: the driver ended {seconds:.2f} s after the interrupt")
    driver.stderr.close()
    driver.stdout.close()
    # 0.2 to 1.2 s on a machine with nothing else to do; an engine that waits for the step takes its whole grace of ten
    assert seconds < 9
    assert "interrupted" in rest
    assert "Traceback" not in rest
    return rest


def runs(*command: str) -> bool:
    """Whether a process with exactly this command line runs on this machine, in whatever container."""
    wanted = b"".join(word.encode() + b"\0" for word in command)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == wanted:
                return True
    return False


def test_an_interrupt_in_a_build_step_ends_it_at_once(place: Place) -> None:
    seconds = f"4{time.time_ns() % 10**5:05d}"
    place.layer("left", f"FROM {{{{ parent }}}}\nRUN sleep {seconds}\n", 'parent = ["root"]')
    interrupted(place, "left", lambda: runs("sleep", seconds))
    until = time.monotonic() + 30
    while runs("sleep", seconds):
        assert time.monotonic() < until, "the step outlives the driver"
        time.sleep(0.1)


def test_an_interrupt_in_a_smoke_test_leaves_no_container(place: Place, connection: Engine) -> None:
    seconds = f"4{time.time_ns() % 10**5:05d}"
    # it minds no polite signal
    script = f"trap '' TERM INT HUP; sleep {seconds} & while :; do wait; done"
    place.layer("left", "FROM {{ parent }}\nRUN true\n", 'parent = ["root"]', smoke={"slow.sh": script})
    assert isinstance(connection, SdkEngine)
    before = {found["Id"] for found in connection.api.containers(all=True)}
    tags = place.tags(connection)
    interrupted(place, "left", lambda: runs("sleep", seconds))
    assert not runs("sleep", seconds)
    left = [found for found in connection.api.containers(all=True) if found["Id"] not in before]
    assert not [found for found in left if "io.strix-finetune.pid" in (found.get("Labels") or {})]
    assert not any("/left:" in tag for tag in place.tags(connection) - tags)


def test_a_users_override_changes_adds_and_extends(place: Place, tmp_path: Path) -> None:
    (place.images / "left/Dockerfile.j2").write_text(
        "FROM {{ parent }}\nRUN echo {{ vars.word }} > /left\n{% block more %}\n{% endblock %}\n"
    )
    toml = place.images / "left/layer.toml"
    toml.write_text(toml.read_text() + '[vars]\nword = "ours"\n')
    mine = tmp_path / "mine"
    (mine / "templates/left").mkdir(parents=True)
    (mine / "override.toml").write_text('[layers.left.vars]\nword = "theirs"\n')
    (mine / "templates/left/Dockerfile.j2").write_text(
        '{% extends "layer:left" %}\n{% block more %}\nRUN echo more > /more\n{% endblock %}\n'
    )
    added = mine / "layers/extra"
    added.mkdir(parents=True)
    (added / "layer.toml").write_text('name = "extra"\ndescription = "mine"\nparent = ["top"]\n')
    (added / "Dockerfile.j2").write_text("FROM {{ parent }}\nRUN cat /more /left > /extra\n")
    (mine / "locks").mkdir()
    (mine / "locks" / f"debian-{TARGET}.toml").write_text(LOCK)
    done = place.strix("build", "--override", str(mine), "extra")
    assert done.returncode == 0, done.stderr
    engine = connect(place.kind, os.environ)  # type: ignore[arg-type]
    try:
        said: list[bytes] = []
        engine.run(RunRequest(names.moving_ref("extra", TARGET), ("cat", "/extra")), said.append)
    finally:
        engine.close()
    assert b"".join(said).decode().split() == ["more", "theirs"]


def test_both_engines_give_the_same_keys(tmp_path_factory: pytest.TempPathFactory, place: Place) -> None:
    """The key is made of what makes a layer: which engine builds it is no part of that."""
    plans = {}
    for kind in ("docker", "podman"):
        plans[kind] = {event["layer"]: event["key"] for event in Place(place.root, kind).events("plan")}
    assert plans["docker"] == plans["podman"]
    assert len(plans["docker"]) == 4


def test_push_and_pull_by_the_command_line(place: Place, registry: str, connection: Engine) -> None:
    assert place.strix("build").returncode == 0
    pushed = place.strix("push", "--to", f"{registry}/stack/demo")
    assert pushed.returncode == 0, pushed.stderr
    assert f"{registry}/stack/demo:{TARGET}@sha256:" in pushed.stdout
    connection.untag(names.final_ref(TARGET))
    pulled = place.strix("pull", "--from", f"{registry}/stack/demo")
    assert pulled.returncode == 0, pulled.stderr
    assert connection.image(names.final_ref(TARGET)) is not None
    missing = place.strix("pull", "--from", f"{registry}/stack/nothing")
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: ") or "error: " in missing.stderr


def test_a_file_that_is_mounted_for_a_step_counts(place: Place, connection: Engine) -> None:
    """The text of the step stays the same, and its result does not: Podman's own cache would not see it."""
    made = "FROM {{ parent }}\nRUN --mount=type=bind,source=files,target=/media /bin/cat /media/word > /left\n"
    place.layer("left", made, 'parent = ["root"]', smoke={"word.sh": "cat /left"})
    for word in ("one", "two"):
        (place.images / "left/files/word").write_text(f"{word}\n")
        events = place.events("build", "left")
        assert [
            event["detail"] for event in events if event["event"] == "smoke-result" and event["test"] == "left/word.sh"
        ] == [word]
