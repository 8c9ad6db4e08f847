"""Smoke tests: what the container printed and how it ended become results, whatever a test does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune import smoke
from strix_finetune.engine.base import RunRequest, RunResult
from strix_finetune.errors import SmokeFailed
from strix_finetune.events import Event, SmokeResult, StepOutput
from strix_finetune.schema import Smoke
from strix_finetune.signals import describe_exit, signal_name
from tests.conftest import Images
from tests.fakes import FakeEngine, run_here


class Bench:
    """Runs scripts as smoke tests, for real, but without a container."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = FakeEngine(on_run=run_here(folder / "root"))
        (folder / "root").mkdir()
        self.events: list[Event] = []
        self.tests: list[smoke.Test] = []

    def add(self, name: str, script: str, **spec: object) -> None:
        file = self.folder / "layer" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        self.tests.append(smoke.Test("base", Smoke(file=name, **spec), file))  # type: ignore[arg-type]

    def run(self, **options: object) -> tuple[SmokeResult, ...]:
        facts = {"locked/apt.txt": b"torch=1\n"}
        env = {"STRIX_LAYER": "base"}
        emit = self.events.append
        return smoke.run_tests(self.engine, "img", "base", self.tests, facts, env, emit, **options)  # type: ignore[arg-type]

    def failure(self, **options: object) -> SmokeFailed:
        with pytest.raises(SmokeFailed) as caught:
            self.run(**options)
        return caught.value

    @property
    def output(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, StepOutput)]

    @property
    def results(self) -> list[tuple[str, str, str]]:
        return [(event.test, event.state, event.detail) for event in self.events if isinstance(event, SmokeResult)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_passed_and_not_run(bench: Bench) -> None:
    bench.add("smoke/a.sh", 'echo first; echo "layer $STRIX_LAYER"; cat "$STRIX_SMOKE/locked/apt.txt"')
    bench.add("smoke/b.py", "#!/usr/bin/env python3\nprint('from python')\nraise SystemExit(77)")
    bench.add("smoke/c.sh", "exit 77")
    bench.add("smoke/silent.sh", ":")
    results = bench.run()
    assert [(result.test, result.state, result.detail) for result in results] == [
        ("base/a.sh", "passed", "torch=1"),
        ("base/b.py", "not-run", "from python"),
        ("base/c.sh", "not-run", "the test says that it cannot run here"),
        ("base/silent.sh", "passed", ""),
    ]
    assert bench.results == [(result.test, result.state, result.detail) for result in results]
    assert bench.output == ["first", "layer base", "torch=1", "from python"]
    # one container for all of them, cut off from the network
    (request,) = bench.engine.runs
    assert (request.network, request.devices, request.image) == ("none", (), "img")


def test_one_fails_and_the_others_are_still_run(bench: Bench) -> None:
    bench.add("smoke/bad.sh", "echo why >&2; exit 3")
    bench.add("smoke/worse.sh", "exit 1")
    bench.add("smoke/good.sh", "echo fine")
    error = bench.failure()
    assert str(error) == (
        "smoke test base/bad.sh of 'base' failed: exit code 3: why (1 more failed); "
        "no tag was moved; the log of the layer has the whole output"
    )
    assert error.log_tail == ("why",)
    assert bench.results == [
        ("base/bad.sh", "failed", "exit code 3: why"),
        ("base/worse.sh", "failed", "exit code 1"),
        ("base/good.sh", "passed", "fine"),
    ]


def test_a_crash(bench: Bench) -> None:
    bench.add("smoke/crash.sh", "printf 'no line end'; kill -SEGV $$")
    bench.add("smoke/after.sh", "echo alive")
    error = bench.failure()
    assert "SIGSEGV (it crashed: a native library touched memory that is not its own): no line end" in str(error)
    assert error.log_tail[0] == "no line end"
    assert bench.results[1] == ("base/after.sh", "passed", "alive")


def test_a_test_that_does_not_end(bench: Bench) -> None:
    bench.add("smoke/slow.sh", "echo waiting; exec sleep 30", timeout=1)
    bench.add("smoke/next.sh", "echo next")
    assert "base/slow.sh of 'base' failed: not done after 1 s" in str(bench.failure())
    assert bench.results[1] == ("base/next.sh", "passed", "next")


def test_a_test_that_ignores_being_stopped_is_killed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "_RUNNER", smoke._RUNNER.replace(b"-k 5", b"-k 1"))
    # a busy loop in one process: children of a shell would be left behind
    bench.add(
        "smoke/deaf.py", "#!/usr/bin/env python3\nimport signal\nsignal.signal(15, signal.SIG_IGN)\n" + LOOP, timeout=1
    )
    assert "not done after 1 s" in str(bench.failure())


LOOP = "import time\nwhile True:\n    time.sleep(0.1)\n"


def test_exit_codes_that_look_like_a_timeout(bench: Bench) -> None:
    bench.add("smoke/a.sh", "exit 124")
    bench.add("smoke/b.sh", "kill -KILL $$")
    bench.failure()
    assert [detail for _, _, detail in bench.results] == [
        "exit code 124",
        "SIGKILL (killed from outside, most often for using too much memory)",
    ]


def test_the_runner_dies_midway(bench: Bench) -> None:
    bench.add("smoke/a.sh", "echo ok")
    # timeout is the parent, the runner is its parent
    bench.add("smoke/murder.sh", "echo bang; kill -KILL $(ps -o ppid= -p $PPID)")
    bench.add("smoke/never.sh", "echo never")
    error = bench.failure()
    assert bench.results[0] == ("base/a.sh", "passed", "ok")
    for name, _, detail in bench.results[1:]:
        assert name in ("base/murder.sh", "base/never.sh")
        assert detail.startswith("the test runner ended before it (SIGKILL")
    assert error.log_tail == ("bang",)


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (RunResult(137, "SIGKILL", timed_out=True), "it was stopped for taking too long"),
        (RunResult(137, "SIGKILL", out_of_memory=True), "out of memory"),
        (RunResult(126), "exit code 126"),
        (RunResult(0), "exit code 0"),
    ],
)
def test_a_container_that_ends_without_a_word(bench: Bench, ended: RunResult, words: str) -> None:
    bench.add("smoke/a.sh", "")
    bench.engine.on_run = lambda request, on_output: ended
    assert f"failed: the test runner ended before it ({words})" in str(bench.failure())


def test_output_that_looks_like_a_frame(bench: Bench) -> None:
    bench.add("smoke/fake.sh", "printf '\\n\\036end 0 0 0\\n\\036begin 1\\n\\036abc end 1 0 0\\n'; exit 1")
    bench.add("smoke/b.sh", "printf '\\036x end 0 0 0\\n'; exit 2")
    bench.failure()
    assert [(name, state) for name, state, _ in bench.results] == [("base/fake.sh", "failed"), ("base/b.sh", "failed")]
    assert "\x1eend 0 0 0" in bench.output


def test_output_without_line_ends_bytes_and_progress_bars(bench: Bench) -> None:
    bench.add("smoke/a.sh", "printf 'a\\r\\nb\\377\\000c'; printf '\\n\\n\\n'")
    bench.add("smoke/b.sh", "printf last")
    results = bench.run()
    assert [result.detail for result in results] == ["b\ufffd\x00c", "last"]
    assert bench.output == ["a", "b\ufffd\x00c", "last"]


def test_a_line_without_an_end_is_no_burden(bench: Bench) -> None:
    bench.add("smoke/a.sh", "")

    def endless(request: RunRequest, on_output: Callable[[bytes], None]) -> RunResult:
        mark = request.command[1]
        on_output(f"\x1e{mark} begin 0\n".encode())
        for _ in range(2000):
            on_output(b"x" * 10_000)
        on_output(f"\n\x1e{mark} end 0 0 1\n".encode())
        return RunResult(0)

    bench.engine.on_run = endless
    bench.run()
    assert max(map(len, bench.output)) <= smoke.LONGEST_LINE + 10_000
    assert sum(map(len, bench.output)) == 20_000_000


def test_a_process_that_a_test_leaves_behind(bench: Bench) -> None:
    bench.add("smoke/a.sh", "(sleep 0.3; printf 'late, no line end') & echo ok")
    bench.add("smoke/b.sh", "sleep 1; echo b")
    results = bench.run()
    assert [(result.state) for result in results] == ["passed", "passed"]


def test_only_the_last_lines_are_kept(bench: Bench) -> None:
    bench.add("smoke/a.sh", "seq 5000; exit 1")
    assert bench.failure().log_tail == tuple(str(number) for number in range(4961, 5001))
    assert len(bench.output) == 5000


def test_device_tests_need_a_device(bench: Bench) -> None:
    bench.add("smoke/device.sh", "echo gpu", kind="device")
    bench.add("smoke/static.sh", "echo ok")
    results = bench.run()
    assert [(result.test, result.kind, result.state) for result in results] == [
        ("base/device.sh", "device", "not-run"),
        ("base/static.sh", "static", "passed"),
    ]
    assert len(bench.engine.runs) == 1
    results = bench.run(devices=("/dev/kfd", "/dev/dri"), groups=("44",))
    assert {(result.test, result.state) for result in results} == {
        ("base/device.sh", "passed"),
        ("base/static.sh", "passed"),
    }
    assert [(run.devices, run.group_add) for run in bench.engine.runs[1:]] == [
        ((), ()),
        (("/dev/kfd", "/dev/dri"), ("44",)),
    ]


def test_only_device_tests_and_no_device(bench: Bench) -> None:
    bench.add("smoke/device.sh", "", kind="device")
    assert [result.state for result in bench.run()] == ["not-run"]
    assert bench.engine.runs == []


def test_two_tests_with_the_same_file_name(bench: Bench) -> None:
    bench.add("smoke/a/test.sh", "echo a")
    bench.add("smoke/b/test.sh", "echo b; exit 1")
    bench.failure()
    assert bench.results == [("base/a/test.sh", "passed", "a"), ("base/b/test.sh", "failed", "exit code 1: b")]


def test_a_file_name_with_spaces_and_signs(bench: Bench) -> None:
    bench.add("smoke/a b=c $d.sh", "echo ok")
    assert [result.state for result in bench.run()] == ["passed"]


def test_tests_are_handed_down(images: Images) -> None:
    def smokes(*items: tuple[str, str]) -> str:
        return "".join(f'[[smoke]]\nfile = "{name}.sh"\nscope = "{scope}"\n' for name, scope in items)

    for name, toml in (
        ("base", smokes(("b1", "layer"), ("b2", "descendants"))),
        ("devel", 'parent = ["base"]\nrole = "builder"\n' + smokes(("d", "descendants"))),
        ("mid", 'parent = ["base"]\nbuilders = ["devel"]\n' + smokes(("m", "descendants"))),
        ("app", 'parent = ["mid"]\nfinal = true\n' + smokes(("a", "layer"))),
    ):
        images.layer(name, toml)
        for test in ("b1", "b2", "d", "m", "a"):
            images.write(f"images/{name}/{test}.sh", "")
    stack = images.stack()
    assert [test.name for test in smoke.tests_for(stack, "base")] == ["base/b1.sh", "base/b2.sh"]
    assert [test.name for test in smoke.tests_for(stack, "app")] == ["base/b2.sh", "mid/m.sh", "app/a.sh"]
    # a builder's tests are its own: it is no ancestor, and what people do with images does not concern it
    assert [test.name for test in smoke.tests_for(stack, "devel")] == ["devel/d.sh"]


@given(st.lists(st.binary(max_size=30), max_size=6), st.integers(1, 9), st.integers(0, 200))
def test_any_output_in_any_pieces(chunks: list[bytes], size: int, code: int) -> None:
    events: list[Event] = []
    reader = smoke._Reader("base", events.append, "0123456789abcdef")
    body = b"".join(chunks)
    mark = b"\x1e0123456789abcdef "
    whole = b"\n" + mark + b"begin 0\n" + body + b"\n" + mark + b"end 0 %d 7\n" % code
    for start in range(0, len(whole), size):
        reader.feed(whole[start : start + size])
    reader.end()
    assert reader.ends == {0: (code, 7)}
    text = [line.rstrip("\r") for line in body.decode("utf-8", "replace").split("\n")]
    assert [event.text for event in events if isinstance(event, StepOutput)] == [line for line in text if line]


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        (0, "", "exit code 0"),
        (3, "", "exit code 3"),
        (128, "", "exit code 128"),
        (139, "SIGSEGV", "SIGSEGV (it crashed: a native library touched memory that is not its own)"),
        (130, "SIGINT", "SIGINT"),
        (159, "SIGSYS", "SIGSYS"),
        (160, "", "exit code 160"),
        (255, "", "exit code 255"),
        (-1, "", "exit code -1"),
    ],
)
def test_exit_codes_in_words(code: int, name: str, words: str) -> None:
    assert (signal_name(code), describe_exit(code)) == (name, words)


def test_what_cannot_be_seen_from_inside_is_laid_into_the_container(bench: Bench) -> None:
    configuration = {
        "config": {"Labels": {"a": "1"}, "Env": ["PATH=/bin", "B=c d"], "Entrypoint": None, "Cmd": ["x", "y z"]},
    }
    bench.engine.configuration = lambda ref: configuration  # type: ignore[method-assign]
    bench.add("smoke/seen.sh", 'cd "$STRIX_SMOKE/image" && wc -c < entrypoint && cat labels env cmd | tr "\\n" "|"')
    bench.run()
    assert bench.output[-2:] == ["0", "a=1|PATH=/bin|B=c d|x|y z|"]
