"""BuildKit's progress: protobuf records of `moby.buildkit.v1.StatusResponse` become build events.

The records come from the network, so nothing here trusts them: odd bytes are skipped, never raised,
and what is kept of one build is bounded. Only the few fields that the driver needs are read, which is
why there is no protobuf dependency.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from strix_finetune.engine.base import BuildEvent, StepDone, StepLog, StepStarted
from strix_finetune.engine.lines import LineJoiner

TAIL_LINES = 40
MAX_STEPS = 4096
_MAX_NAME = 4096

# Field numbers of the message types in BuildKit's control.proto.
_VERTEXES, _LOGS = 1, 3
_DIGEST, _NAME, _CACHED, _STARTED, _COMPLETED, _ERROR = 1, 3, 4, 5, 6, 7
_LOG_VERTEX, _LOG_TEXT = 1, 4
_SECONDS, _NANOS = 1, 2

_HOUSEKEEPING = ("[internal]", "copy /context /", "exporting to image", "load remote build context")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of one protobuf message; varints as int, the rest as bytes.

    Raises ValueError on bytes that are not a message.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ValueError("field number 0")
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if size > end - at:
            raise ValueError("cut off")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise ValueError("varint has no end")


@dataclass(slots=True)
class _Step:
    name: str = ""
    begun: float | None = None
    cached: bool = False
    announced: bool = False
    done: bool = False
    joiner: LineJoiner = field(default_factory=LineJoiner)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))


@dataclass(frozen=True, slots=True)
class FailedStep:
    """The step that ended a build: its name, the engine's words, and its last lines."""

    name: str
    error: str
    tail: tuple[str, ...]


class StatusDecoder:
    """Turns the records of one build into events. Feed every record in order, then call `finish`."""

    def __init__(self) -> None:
        self._steps: dict[str, _Step] = {}
        self.failed: FailedStep | None = None

    def feed(self, record: bytes) -> list[BuildEvent]:
        """Decode one StatusResponse. What cannot be read is skipped."""
        events: list[BuildEvent] = []
        failed: list[tuple[str, str]] = []
        for number, value in _readable(record):
            if number == _VERTEXES and isinstance(value, bytes):
                error = self._vertex(value, events)
                if error:
                    failed.append(error)
            elif number == _LOGS and isinstance(value, bytes):
                self._log(value, events)
        # The last lines of a failing step may stand behind its vertex in the same record.
        for digest, error_text in failed:
            self._fail(digest, error_text)
        return events

    def finish(self) -> list[BuildEvent]:
        """Events that were still waiting for a line end when the stream ended."""
        events: list[BuildEvent] = []
        for digest, step in self._steps.items():
            self._emit_lines(digest, step, step.joiner.flush(), events)
        if self.failed is None:
            return events
        for step in self._steps.values():
            if step.name == self.failed.name and step.tail:
                self.failed = FailedStep(self.failed.name, self.failed.error, tuple(step.tail))
        return events

    def _step(self, digest: str) -> _Step | None:
        step = self._steps.get(digest)
        if step is None and digest and len(self._steps) < MAX_STEPS:
            step = self._steps[digest] = _Step()
        return step

    def _vertex(self, data: bytes, events: list[BuildEvent]) -> tuple[str, str] | None:
        digest = name = error = ""
        cached = False
        started = completed = None
        for number, value in _readable(data):
            if number == _DIGEST:
                digest = _text(value)
            elif number == _NAME:
                name = _text(value)[:_MAX_NAME]
            elif number == _CACHED:
                cached = bool(value)
            elif number == _STARTED:
                started = _timestamp(value)
            elif number == _COMPLETED:
                completed = _timestamp(value)
            elif number == _ERROR:
                error = _text(value)
        step = self._step(digest)
        if step is None:
            return None
        step.name = name or step.name
        step.cached = step.cached or cached
        if started is not None and step.begun is None:
            step.begun = started
        shown = not step.name.startswith(_HOUSEKEEPING)
        if started is not None and shown and not step.announced:
            step.announced = True
            events.append(StepStarted(digest, step.name))
        if completed is not None and not step.done:
            step.done = True
            self._emit_lines(digest, step, step.joiner.flush(), events)
            if shown and step.announced and not error:
                seconds = max(0.0, completed - step.begun) if step.begun is not None else 0.0
                events.append(StepDone(digest, step.name, step.cached, seconds))
        # Steps that were stopped because another one failed carry an error too: not theirs.
        return (digest, error) if error and "context canceled" not in error else None

    def _log(self, data: bytes, events: list[BuildEvent]) -> None:
        digest, text = "", b""
        for number, value in _readable(data):
            if number == _LOG_VERTEX:
                digest = _text(value)
            elif number == _LOG_TEXT and isinstance(value, bytes):
                text = value
        step = self._step(digest)
        if step is not None:
            self._emit_lines(digest, step, step.joiner.feed(text), events)

    def _emit_lines(self, digest: str, step: _Step, lines: list[str], events: list[BuildEvent]) -> None:
        step.tail.extend(lines)
        events.extend(StepLog(digest, line) for line in lines)

    def _fail(self, digest: str, error: str) -> None:
        if self.failed is None:
            step = self._steps[digest]
            self.failed = FailedStep(step.name, error, tuple(step.tail))


def _readable(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields up to the first byte that makes no sense."""
    reader = fields(data)
    while True:
        try:
            item = next(reader)
        except (StopIteration, ValueError):
            return
        yield item


def _text(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _timestamp(value: int | bytes) -> float | None:
    """Seconds since the epoch of a google.protobuf.Timestamp; 0001-01-01, Go's "never", is None."""
    if not isinstance(value, bytes):
        return None
    seconds = nanos = 0
    for number, part in _readable(value):
        if isinstance(part, int):
            if number == _SECONDS:
                seconds = part
            elif number == _NANOS:
                nanos = part
    return seconds + nanos / 1e9 if 0 < seconds < 1 << 40 else None
