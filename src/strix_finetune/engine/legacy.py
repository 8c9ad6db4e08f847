"""Buildah's build output, as Podman's Docker-compatible API streams it, becomes the same build events.

Its "stream" records hold plain text: "STEP 2/5: RUN make" begins a step ("[1/2] STEP …" where a file has
several stages), "--> Using cache <id>" and "--> <id>" end one, and everything else is a step's output.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable

from strix_finetune.engine.base import BuildEvent, StepDone, StepLog, StepStarted
from strix_finetune.engine.buildkit import TAIL_LINES, FailedStep
from strix_finetune.engine.lines import LineJoiner

_STEP = re.compile(r"^(?:\[(\d+)/\d+\] )?STEP (\d+)/\d+: (.*)$")
_CACHED = re.compile(r"^--> Using cache [0-9a-f]{12,64}$")
_MADE = re.compile(r"^--> (?:Pushing cache .*|[0-9a-f]{10,64})$")
_RESULT = re.compile(r"^Successfully built ([0-9a-f]{12,64})$")
_NOISE = re.compile(
    r"^time=\"[^\"]*\" level=error msg=\"\+\(UNHANDLED LOGLEVEL\)|"
    r"^(?:(?:\[\d+/\d+\] )?COMMIT(?: .*)?|[0-9a-f]{64}|Successfully tagged .*)$"
)
_FAILED_AT = re.compile(r"building at STEP \"(.*?)\": ", re.DOTALL)


class StreamDecoder:
    """Turns "stream" texts of one build into events. Feed every text in order, then call `finish`.

    Stages that are built at the same time share one stream: their output cannot be told apart and is
    counted to the step that began last. `image` is the id once "Successfully built" was read.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._joiner = LineJoiner()
        self._open: dict[str, tuple[str, str, float]] = {}  # stage → (step, name, when it began)
        self._stage = ""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.failed: FailedStep | None = None
        self.image = ""

    def feed(self, text: str) -> list[BuildEvent]:
        """Decode one piece of text; events come out as lines become whole."""
        return [event for line in self._joiner.feed(text.encode("utf-8", "replace")) for event in self._line(line)]

    def finish(self, error: str = "") -> list[BuildEvent]:
        """Close what is open; with `error` (the engine's words) `failed` says which step it was."""
        events = [event for line in self._joiner.flush() for event in self._line(line)]
        if error:
            self.failed = FailedStep(self._culprit(error), error, tuple(self._tail))
            return events
        for stage in list(self._open):
            events += self._close(stage, cached=False)
        return events

    def _culprit(self, error: str) -> str:
        """The failed step as the file has it. The error's own version of its text is a normalised one."""
        said = _FAILED_AT.search(error)
        running = [step[1] for step in self._open.values()]
        if said is None:
            return self._open[self._stage][1] if self._stage in self._open else ""
        if said[1] in running:
            return said[1]
        word = said[1].partition(" ")[0].upper()
        alike = [name for name in running if name.partition(" ")[0].upper() == word]
        return alike[0] if len(alike) == 1 else said[1].strip()

    def _line(self, line: str) -> list[BuildEvent]:
        begun = _STEP.match(line)
        if begun:
            stage = begun[1] or ""
            events = self._close(stage, cached=False)
            step = f"{stage or '1'}.{begun[2]}"
            self._open[stage] = (step, begun[3], self._clock())
            self._stage = stage
            self._tail.clear()
            return [*events, StepStarted(step, begun[3])]
        if _CACHED.match(line):
            return self._close(self._stage, cached=True)
        result = _RESULT.match(line)
        if result:
            self.image = result[1]
            return []
        if _MADE.match(line):
            # Says nothing of its stage: with several open ones it ends none.
            return self._close(self._stage, cached=False) if len(self._open) == 1 else []
        if _NOISE.match(line):
            return []
        self._tail.append(line)
        current = self._open.get(self._stage)
        return [StepLog(current[0], line)] if current else []

    def _close(self, stage: str, *, cached: bool) -> list[BuildEvent]:
        step = self._open.pop(stage, None)
        if step is None:
            return []
        return [StepDone(step[0], step[1], cached, 0.0 if cached else max(0.0, self._clock() - step[2]))]
