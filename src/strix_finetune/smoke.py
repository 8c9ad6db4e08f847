"""Run a layer's smoke tests in a fresh container of its image; the container's end is read, not guessed.

All static tests of a layer share one container: starting one costs more than most tests. A runner in plain sh calls
each with its own time limit and frames its output by a record separator, so that the results can be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strix_finetune.engine.base import Engine, RunRequest
from strix_finetune.errors import Problem, SmokeFailed
from strix_finetune.events import Emit, SmokeResult, StepOutput
from strix_finetune.model import Stack
from strix_finetune.schema import Smoke
from strix_finetune.signals import describe_exit

HOME = "/run/strix-smoke"
NOT_RUN = 77
TIMED_OUT = 124
TAIL = 40

_RUNNER = b"""#!/bin/sh
# arguments: FILE=SECONDS ...; each test's output stands between two framed lines
for item in "$@"; do
  file=${item%=*}
  printf '\\036begin %s\\n' "$file"
  timeout "${item##*=}" "$file" </dev/null 2>&1
  printf '\\n\\036end %s %s\\n' "$file" "$?"
done
"""
_FRAME = re.compile(r"^\x1e(begin|end) (\S+)(?: (\d+))?$")


@dataclass(frozen=True, slots=True)
class Test:
    """A smoke test that applies to a layer: its own, or one that an ancestor hands down."""

    owner: str
    spec: Smoke
    file: Path

    @property
    def name(self) -> str:
        return f"{self.owner}/{Path(self.spec.file).name}"

    @property
    def inside(self) -> str:
        return f"{HOME}/{self.owner}/{Path(self.spec.file).name}"


def tests_for(stack: Stack, layer: str) -> tuple[Test, ...]:
    """The tests of a layer, those of its ancestors first (only the ones that they hand down)."""
    found: list[Test] = []
    name: str | None = layer
    while name:
        node = stack.node(name)
        own = [
            Test(name, spec, node.layer.folder / spec.file)
            for spec in node.layer.spec.smoke
            if name == layer or spec.scope == "descendants"
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

    Device tests are reported as not run when `devices` is empty. Raises SmokeFailed after all of them have run.
    """
    wanted = [test for test in tests if test.spec.kind == "static" or devices]
    skipped = [test for test in tests if test not in wanted]
    results = [
        SmokeResult(layer, test.name, "device", "not-run", "no AMD GPU on this machine (/dev/kfd is missing)")
        for test in skipped
    ]
    tails: dict[str, list[str]] = {}
    for kind in ("static", "device"):
        group = [test for test in wanted if test.spec.kind == kind]
        if not group:
            continue
        reader = _Reader(layer, emit)
        files = {f"{HOME}/run": _RUNNER}
        files |= {test.inside: test.file.read_bytes() for test in group}
        files |= {f"{HOME}/{name}": content for name, content in facts.items()}
        ended = engine.run(
            RunRequest(
                image=image,
                command=(f"{HOME}/run", *(f"{test.inside}={test.spec.timeout}" for test in group)),
                env={**env, "STRIX_SMOKE": HOME},
                files=files,
                devices=devices if kind == "device" else (),
                group_add=groups if kind == "device" else (),
                network="none",
                timeout=sum(test.spec.timeout for test in group) + 60,
            ),
            reader.feed,
        )
        reader.end()
        tails |= reader.outputs
        for test in group:
            code = reader.codes.get(test.inside)
            results.append(_result(layer, test, code, reader.outputs.get(test.inside, []), ended.exit_code))
    for result in results:
        emit(result)
    failed = [result for result in results if result.state == "failed"]
    if failed:
        inside = next(test.inside for test in wanted if test.name == failed[0].test)
        more = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
        problem = Problem(
            f"smoke test {failed[0].test} of '{layer}' failed: {failed[0].detail}{more}",
            cure="no tag was moved; the log of the layer has the whole output",
        )
        raise SmokeFailed(problem, log_tail=tails.get(inside, [])[-TAIL:])
    return tuple(results)


def _result(layer: str, test: Test, code: int | None, output: list[str], container_code: int) -> SmokeResult:
    last = next((line for line in reversed(output) if line.strip()), "")
    if code == 0:
        return SmokeResult(layer, test.name, test.spec.kind, "passed", last)
    if code == NOT_RUN:
        return SmokeResult(layer, test.name, test.spec.kind, "not-run", last or "the test says that it cannot run here")
    if code is None:
        detail = f"the test runner ended before it ({describe_exit(container_code)})"
    elif code == TIMED_OUT:
        detail = f"not done after {test.spec.timeout} s"
    else:
        detail = describe_exit(code) + (f": {last}" if last else "")
    return SmokeResult(layer, test.name, test.spec.kind, "failed", detail)


class _Reader:
    """Takes the runner's output apart, line by line, as it comes."""

    def __init__(self, layer: str, emit: Emit) -> None:
        self._layer = layer
        self._emit = emit
        self._rest = b""
        self._current = ""
        self.codes: dict[str, int] = {}
        self.outputs: dict[str, list[str]] = {}

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line.decode("utf-8", "replace").rstrip("\r"))

    def end(self) -> None:
        if self._rest:
            self._line(self._rest.decode("utf-8", "replace"))
            self._rest = b""

    def _line(self, line: str) -> None:
        frame = _FRAME.match(line)
        if frame is None:
            if self._current and (line or self.outputs[self._current]):
                self.outputs[self._current].append(line)
                del self.outputs[self._current][: -5 * TAIL]
            if line:
                self._emit(StepOutput(self._layer, line))
            return
        kind, test, code = frame.groups()
        if kind == "begin":
            self._current = test
            self.outputs[test] = []
        else:
            self.codes[test] = int(code or 0)
            self._current = ""
