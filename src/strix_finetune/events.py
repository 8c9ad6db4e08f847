"""What happens in a build, as values: the executor emits them, each user interface reads them.

`--json` prints each as one line: {"event": "<kebab-name>", …fields…}. The names and fields are a public interface.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the user should know: a relocked entry, a stray container removed."""

    message: str


@dataclass(frozen=True, slots=True)
class LayerPlanned:
    """`retest`: the layer is up to date, but its smoke tests are not those that it passed, and are run again."""

    layer: str
    action: Literal["build", "reuse", "not-needed"]
    reason: str
    key: str
    tags: tuple[str, ...]
    retest: bool = False


@dataclass(frozen=True, slots=True)
class LayerStarted:
    """`action`: whether the layer is built, or an existing image of it tested again."""

    layer: str
    reason: str
    log: str
    action: Literal["build", "test"] = "build"


@dataclass(frozen=True, slots=True)
class StepProgress:
    """A build step began or ended; `seconds` is None at its beginning."""

    layer: str
    step: str
    cached: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One line that a build step or a smoke test printed."""

    layer: str
    text: str


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """One smoke test. `not-run`: it needs what this machine lacks; it is never counted as passed."""

    layer: str
    test: str
    kind: Literal["static", "device"]
    state: Literal["passed", "failed", "not-run"]
    detail: str


@dataclass(frozen=True, slots=True)
class LayerDone:
    """How a layer ended. `tested`: it existed and passed. `size` is the unpacked size of its image in bytes."""

    layer: str
    outcome: Literal["built", "tested", "failed", "blocked"]
    seconds: float
    image: str = ""
    size: int = 0
    message: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a build: names that now exist, and how many layers went which way."""

    built: int
    reused: int
    failed: int
    blocked: int
    seconds: float
    image: str = ""


@dataclass(frozen=True, slots=True)
class Vendored:
    """The end of `vendor`: what `lock` ("<channel>-<target>") needs is in `folder`; sizes in bytes.

    `files`, `size`: all of it; `fetched_files`, `fetched_size`: what was not there before.
    """

    lock: str
    folder: str
    files: int
    size: int
    fetched_files: int
    fetched_size: int
    seconds: float


Event = Notice | LayerPlanned | LayerStarted | StepProgress | StepOutput | SmokeResult | LayerDone | Finished | Vendored
Emit = Callable[[Event], None]


def as_json(event: Event) -> dict[str, Any]:
    """The public form of an event."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", type(event).__name__).lower()
    return {"event": name, **dataclasses.asdict(event)}
