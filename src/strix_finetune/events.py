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
    action: Literal["build", "pull", "reuse", "not-needed"]
    reason: str
    key: str
    tags: tuple[str, ...]
    retest: bool = False


@dataclass(frozen=True, slots=True)
class LayerStarted:
    """`action`: the layer is built, an existing image of it is tested again, or it comes from or goes to a registry.

    `log` is empty where none is written.
    """

    layer: str
    reason: str
    log: str
    action: Literal["build", "test", "pull", "push"] = "build"


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
    """How a layer ended. `tested`: it existed and passed.

    `size` in bytes: of its image, unpacked; of a layer that was pushed, what was sent for it.
    """

    layer: str
    outcome: Literal["built", "tested", "pulled", "pushed", "failed", "blocked"]
    seconds: float
    image: str = ""
    size: int = 0
    message: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a build: names that now exist, and how many layers went which way. `pulled`: from a registry."""

    built: int
    reused: int
    failed: int
    blocked: int
    seconds: float
    image: str = ""
    pulled: int = 0


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


@dataclass(frozen=True, slots=True)
class BlobProgress:
    """A blob on its way from or to a registry, several times a second at most. Sizes in bytes.

    `state`: `moving`, or how it ended: `sent`, `received`, `mounted` from another repository, `present` already.
    """

    layer: str
    digest: str
    state: Literal["moving", "sent", "received", "mounted", "present"]
    done: int
    size: int


@dataclass(frozen=True, slots=True)
class Pushed:
    """The end of `push`: `tags` of `repository` are on the index `digest` now; `sent`: bytes of blobs that moved."""

    repository: str
    tags: tuple[str, ...]
    digest: str
    sent: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pulled:
    """The end of `pull`: the image's local name, its id and key, and the digest of the index that it came by."""

    repository: str
    image: str
    id: str
    key: str
    digest: str
    received: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TargetRow:
    """How one of several targets ended: how many of its layers went which way, its final image, and what was wrong.

    `seconds`: its own time, which may be that of others, too.
    """

    target: str
    channel: str
    outcome: Literal["done", "failed"]
    built: int
    pulled: int
    reused: int
    failed: int
    blocked: int
    seconds: float
    image: str
    message: str


@dataclass(frozen=True, slots=True)
class TargetsDone:
    """The end of a build of several targets."""

    targets: tuple[TargetRow, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Targeted:
    """An event of one of several targets. As JSON it is the event, with `target`."""

    target: str
    event: Event


Event = (
    Notice
    | LayerPlanned
    | LayerStarted
    | StepProgress
    | StepOutput
    | SmokeResult
    | LayerDone
    | Finished
    | Vendored
    | BlobProgress
    | Pushed
    | Pulled
    | TargetsDone
    | Targeted
)
Emit = Callable[[Event], None]


def as_json(event: Event) -> dict[str, Any]:
    """The public form of an event."""
    if isinstance(event, Targeted):
        return as_json(event.event) | {"target": event.target}
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", type(event).__name__).lower()
    return {"event": name, **dataclasses.asdict(event)}


def of_target(told: Targeted) -> Event:
    """The event as it may stand beside those of other targets: its layer, or its text, begins with the target."""
    event = told.event
    if isinstance(event, Notice):
        return Notice(f"{told.target}: {event.message}")
    layer = getattr(event, "layer", None)
    if not layer:
        return event
    renamed: Any = dataclasses.replace
    changed: Event = renamed(event, layer=f"{told.target}/{layer}")
    return changed
