"""Run a layer's smoke tests in a fresh container of its image; the container's end is read, not guessed.

All static tests of a layer share one container: starting one costs more than most tests. A runner in plain sh calls
each with its own time limit and frames its output by a record separator, so that the results can be told apart.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strix_finetune.engine.base import Engine, RunRequest, RunResult
from strix_finetune.errors import Problem, SmokeFailed
from strix_finetune.events import Emit, SmokeResult, StepOutput
from strix_finetune.model import Stack
from strix_finetune.schema import Smoke
from strix_finetune.signals import describe_exit

HOME = "/run/strix-smoke"
NOT_RUN = 77
# how `timeout` ends: its own code, or that of the signal which ended the test (busybox; a test that minds no SIGTERM)
TIMED_OUT = (124, 137, 143)
TAIL = 40
# a longer line without an end is cut: a test may print a progress bar for an hour
LONGEST_LINE = 1 << 16

# Frames bear a number of this one run, so that nothing a test prints is taken for one. A test that does not end at its
# time is killed, since it may ignore the polite signal.
_RUNNER = b"""#!/bin/sh
# arguments: MARK, then SECONDS FILE for each test; each test's output stands between two framed lines
mark=$1; shift
number=0
# the shell's own words about a crash are no output of the test
exec 2>/dev/null
while [ $# -gt 1 ]; do
  printf '\\n\\036%s begin %s\\n' "$mark" "$number"
  began=$(date +%s)
  (exec timeout -k 5 "$1" "$2" </dev/null 2>&1)
  code=$?
  printf '\\n\\036%s end %s %s %s\\n' "$mark" "$number" "$code" "$(($(date +%s) - began))"
  number=$((number + 1))
  shift 2
done
"""


@dataclass(frozen=True, slots=True)
class Test:
    """A smoke test that applies to a layer: its own, or one that an ancestor hands down."""

    owner: str
    spec: Smoke
    file: Path

    @property
    def name(self) -> str:
        """What people see. Two tests of one layer may have the same file name in different folders."""
        return f"{self.owner}/{self.spec.file.removeprefix('smoke/')}"

    @property
    def inside(self) -> str:
        return f"{HOME}/tests/{self.owner}/{self.spec.file}"


def tests_for(stack: Stack, layer: str) -> tuple[Test, ...]:
    """The tests of a layer, those of its ancestors first (only the ones that they hand down).

    A builder has its own alone: what is handed down is about images that people use.
    """
    found: list[Test] = []
    builder = stack.node(layer).layer.spec.role == "builder"
    name: str | None = layer
    while name:
        node = stack.node(name)
        own = [
            Test(name, spec, node.layer.folder / spec.file)
            for spec in node.layer.spec.smoke
            if name == layer or (spec.scope == "descendants" and not builder)
        ]
        found = own + found
        name = node.parent
    return tuple(found)


def run_tests(
    engine: Engine,
    image: str,
    layer: str,
    tests: Sequence[Test],
    facts: Mapping[str, bytes],
    env: Mapping[str, str],
    emit: Emit,
    devices: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
) -> tuple[SmokeResult, ...]:
    """Run `tests` and emit each result. `facts`: files that the tests may read, by name under HOME.

    Those of `image_facts` are there, too.
    Device tests are reported as not run when `devices` is empty. Raises SmokeFailed after all of them have run.
    """
    wanted = [test for test in tests if test.spec.kind == "static" or devices]
    skipped = [test for test in tests if test not in wanted]
    results = [
        SmokeResult(layer, test.name, "device", "not-run", "no AMD GPU on this machine (/dev/kfd is missing)")
        for test in skipped
    ]
    tails: dict[str, Sequence[str]] = {}
    facts = {**facts, **image_facts(engine, image)} if wanted else facts
    for kind in ("static", "device"):
        group = [test for test in wanted if test.spec.kind == kind]
        if not group:
            continue
        mark = secrets.token_hex(8)
        reader = _Reader(layer, emit, mark)
        files = {f"{HOME}/run": _RUNNER}
        files |= {test.inside: test.file.read_bytes() for test in group}
        files |= {f"{HOME}/{name}": content for name, content in facts.items()}
        ended = engine.run(
            RunRequest(
                image=image,
                command=(f"{HOME}/run", mark, *(word for t in group for word in (str(t.spec.timeout), t.inside))),
                env={**env, "STRIX_SMOKE": HOME},
                files=files,
                devices=devices if kind == "device" else (),
                group_add=groups if kind == "device" else (),
                network="none",
                timeout=sum(test.spec.timeout + 10 for test in group) + 60,
            ),
            reader.feed,
        )
        reader.end()
        for number, test in enumerate(group):
            tails[test.name] = reader.outputs.get(number, [])
            results.append(_result(layer, test, reader.ends.get(number), tails[test.name], ended))
    for result in results:
        emit(result)
    failed = [result for result in results if result.state == "failed"]
    if failed:
        more = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
        problem = Problem(
            f"smoke test {failed[0].test} of '{layer}' failed: {failed[0].detail}{more}",
            cure="no tag was moved; the log of the layer has the whole output",
        )
        raise SmokeFailed(problem, log_tail=tails[failed[0].test][-TAIL:])
    return tuple(results)


def image_facts(engine: Engine, image: str) -> dict[str, bytes]:
    """What cannot be seen from inside: labels and ENV of an image, a line each; ENTRYPOINT and CMD, a word a line."""
    config = (engine.configuration(image) or {}).get("config") or {}
    labels = [f"{name}={value}" for name, value in (config.get("Labels") or {}).items()]
    lines = {"labels": labels} | {name.lower(): config.get(name) for name in ("Env", "Entrypoint", "Cmd")}
    return {f"image/{name}": "".join(f"{line}\n" for line in found or ()).encode() for name, found in lines.items()}


def _result(
    layer: str, test: Test, end: tuple[int, int] | None, output: Sequence[str], ended: RunResult
) -> SmokeResult:
    """`end`: exit code and seconds of the test, None when the runner ended before it."""
    last = next((line for line in reversed(output) if line.strip()), "")
    if end is None:
        detail = f"the test runner ended before it ({_words(ended)})"
        return SmokeResult(layer, test.name, test.spec.kind, "failed", detail)
    code, seconds = end
    if code == 0:
        return SmokeResult(layer, test.name, test.spec.kind, "passed", last)
    if code == NOT_RUN:
        return SmokeResult(layer, test.name, test.spec.kind, "not-run", last or "the test says that it cannot run here")
    # whole seconds: one may be lost between two readings of the clock
    if code in TIMED_OUT and seconds >= test.spec.timeout - 1:
        detail = f"not done after {test.spec.timeout} s"
    else:
        detail = describe_exit(code) + (f": {last}" if last else "")
    return SmokeResult(layer, test.name, test.spec.kind, "failed", detail)


def _words(ended: RunResult) -> str:
    if ended.timed_out:
        return "it was stopped for taking too long"
    return "out of memory" if ended.out_of_memory else describe_exit(ended.exit_code)


class _Reader:
    """Takes the runner's output apart, line by line, as it comes. Tests are known by their number."""

    def __init__(self, layer: str, emit: Emit, mark: str) -> None:
        self._layer = layer
        self._emit = emit
        # a process that a test left behind may have printed the beginning of the line
        self._frame = re.compile(rf"(.*)\x1e{mark} (?:begin (\d+)|end (\d+) (\d+) (\d+))")
        self._rest = b""
        self._current: int | None = None
        self.ends: dict[int, tuple[int, int]] = {}
        self.outputs: dict[int, list[str]] = {}

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._line(line.decode("utf-8", "replace").rstrip("\r"))

    def end(self) -> None:
        if self._rest:
            self._line(self._rest.decode("utf-8", "replace"))
            self._rest = b""

    def _line(self, line: str) -> None:
        frame = self._frame.fullmatch(line)
        if frame is None:
            self._text(line)
            return
        before, begin, end, code, seconds = frame.groups()
        if before:
            self._text(before)
        if begin is not None:
            self._current = int(begin)
            self.outputs[self._current] = []
            return
        self.ends[int(end)] = int(code), int(seconds)
        output = self.outputs.get(int(end), [])
        while output and not output[-1].strip():
            output.pop()
        self._current = None

    def _text(self, line: str) -> None:
        if self._current is not None and (line or self.outputs[self._current]):
            self.outputs[self._current].append(line)
            del self.outputs[self._current][: -5 * TAIL]
        if line:
            self._emit(StepOutput(self._layer, line))
