"""A log for pipes and CI: one line for each thing that matters, the tail of the log on failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TextIO

from strix_finetune.events import (
    BlobProgress,
    Event,
    Finished,
    LayerDone,
    LayerPlanned,
    LayerStarted,
    Notice,
    Pulled,
    Pushed,
    SmokeResult,
    StepProgress,
    Targeted,
    TargetRow,
    TargetsDone,
    Vendored,
    of_target,
)

# terminal sequences, and control letters but tab and line feed: what a build prints must not steer our terminal
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
MARKS = {"passed": "ok", "failed": "FAILED", "not-run": "not run"}


class PlainView:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, event: Event) -> None:
        for line in plain_lines(event):
            self._stream.write(printable(line) + "\n")
        self._stream.flush()

    def close(self) -> None:
        pass


def plain_lines(event: Event) -> list[str]:
    """The lines that an event is worth in a log."""
    match event:
        case Targeted(target=target, event=Finished() as finished):
            return [f"{target}: {summary(finished)}"]
        case Targeted():
            return plain_lines(of_target(event))
        case TargetsDone(targets=rows):
            return targets_table(rows)
        case Notice(message=message):
            return [message]
        case LayerPlanned(layer=layer, action="reuse" | "build" | "pull", reason=reason):
            return [f"{layer}: {reason}"]
        case LayerStarted(layer=layer, log=log, action=action):
            return [f"{layer}: {action}ing{f', log in {log}' if log else f', {event.reason}'}"]
        case BlobProgress(layer=layer, digest=digest, state="sent" | "received" | "mounted" as state, size=size):
            return [f"{layer}:   {digest.removeprefix('sha256:')[:12]} {state}, {megabytes(size)}"]
        case StepProgress(layer=layer, step=step, cached=cached, seconds=seconds) if seconds is not None:
            return [f"{layer}:   {shorten(step)} ({'cached' if cached else f'{seconds:.1f} s'})"]
        case SmokeResult(layer=layer, test=test, state=state, detail=detail):
            return [f"{layer}:   smoke {test}: {MARKS[state]}{f', {detail}' if detail else ''}"]
        case LayerDone(layer=layer, outcome="built", seconds=seconds, size=size):
            return [f"{layer}: built in {seconds:.1f} s, {megabytes(size)}"]
        case LayerDone(layer=layer, outcome="tested" | "pulled" as outcome, seconds=seconds):
            return [f"{layer}: {outcome} in {seconds:.1f} s"]
        case LayerDone(layer=layer, outcome="pushed", seconds=seconds, size=size):
            return [f"{layer}: pushed in {seconds:.1f} s, {megabytes(size)} sent"]
        case LayerDone(layer=layer, outcome="blocked", message=message):
            return [f"{layer}: {message}"]
        case LayerDone(layer=layer, outcome="failed", seconds=seconds, message=message, log_tail=tail):
            return [
                f"{layer}: FAILED after {seconds:.1f} s",
                *(f"{layer}: | {line}" for line in tail),
                f"error: {message}",
            ]
        case Finished():
            return [summary(event)]
        case Vendored(lock=lock, folder=folder, files=files, size=size, seconds=seconds):
            new = f"{event.fetched_files} of them fetched" if event.fetched_files else "nothing was fetched"
            return [f"{folder}: {lock} is complete, {files} files, {megabytes(size)}, {new}, in {seconds:.1f} s"]
        case Pushed(repository=repository, tags=tags, sent=sent, seconds=seconds):
            return [f"{repository}: {', '.join(tags)} pushed, {megabytes(sent)} sent, in {seconds:.1f} s"]
        case Pulled(repository=repository, image=image, received=received, seconds=seconds):
            return [f"{image}: pulled from {repository}, {megabytes(received)} received, in {seconds:.1f} s"]
    return []


def printable(text: str) -> str:
    """A text as it may stand on a terminal; of a line that was written over, what was written last."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(_CONTROL.sub("", line) for line in lines)


def summary(event: Finished) -> str:
    counts = [
        (event.built, "built"),
        (event.pulled, "pulled"),
        (event.reused, "up to date"),
        (event.failed, "failed"),
        (event.blocked, "not tried"),
    ]
    parts = [f"{count} {word}" for count, word in counts if count]
    made = f": {event.image}" if event.image else ""
    return f"{', '.join(parts) or 'nothing to do'} in {event.seconds:.1f} s{made}"


def targets_table(rows: Sequence[TargetRow]) -> list[str]:
    """One line a target, under a head."""
    heads = ["TARGET", "CHANNEL", "BUILT", "PULLED", "UP TO DATE", "FAILED", "NOT TRIED", "SECONDS", "RESULT"]
    cells = [
        [
            row.target,
            row.channel,
            *(str(count) for count in (row.built, row.pulled, row.reused, row.failed, row.blocked)),
            f"{row.seconds:.1f}",
            row.message or row.image or "done",
        ]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in [heads, *cells]) for column in range(len(heads))]
    lines = []
    for line in [heads, *cells]:
        left = [text.ljust(width) for text, width in zip(line[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(line[2:-1], widths[2:-1], strict=True)]
        lines.append("  ".join([*left, *right, line[-1]]))
    return lines


def shorten(step: str, width: int = 100) -> str:
    """A build step on one line, without the mount flags that every step has."""
    text = re.sub(r"\s*--mount=\S+", "", " ".join(step.split()))
    return text if len(text) <= width else text[: width - 1] + "…"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
