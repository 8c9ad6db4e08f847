"""What the driver asks of a container engine, and the values that pass between them.

Nothing here imports the docker SDK: the no-op path and the unit tests must not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

EngineKind = Literal["docker", "podman"]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine that answered. `url` is what DOCKER_HOST would be; sizes of no interest here.

    `runtime`: the OCI runtime that containers get unless they ask for another. `cdi`: Docker reads specifications of
    named devices; Podman has no such switch.
    """

    kind: EngineKind
    version: str
    api_version: str
    url: str
    rootless: bool
    runtime: str = ""
    cdi: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """An image in the engine's store. `size` is unpacked, in bytes; `tags` are fully qualified.

    `digests`: "sha256:…", by which registries serve it; none of an image that was built here and not pushed.
    """

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    size: int
    digests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A build step began. `step` is the engine's id of it, unique in one build."""

    step: str
    name: str


@dataclass(frozen=True, slots=True)
class StepDone:
    step: str
    name: str
    cached: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class StepLog:
    """One whole line that a step printed, without its line end."""

    step: str
    text: str


BuildEvent = StepStarted | StepDone | StepLog


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One image to build.

    `context` opens a fresh stream of a tar archive that holds `dockerfile` at its root.
    `labels` are set on the result. `build_args` carry only the engine's predefined proxy
    variables, which are in no layer and no cache key. Without `use_cache` every step runs; Docker
    also empties the cache mounts then, Podman does not.
    """

    context: Callable[[], Iterator[bytes]]
    labels: Mapping[str, str]
    dockerfile: str = "Dockerfile"
    build_args: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    use_cache: bool = True


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount of an existing host path; `source` must exist (a missing one is an error, never a new folder).

    `relabel`: SELinux's label of what lies there becomes the one that containers share (`:z`).
    """

    source: str
    target: str
    read_only: bool = False
    relabel: bool = False


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One container to run to its end and remove, whatever happens.

    `files` (path inside → content, mode 0755) are laid into the container before it starts.
    `user` is "uid:gid" or empty for the image's own. `shm_size` is in bytes. `timeout` is in
    seconds; past it the container is killed and the result says so. `keep_id` maps the calling
    user into a rootless Podman container. With `interactive` the caller's terminal is attached.
    `devices` are files of this host or names of CDI ("amd.com/gpu=all"). Either `ipc` or `shm_size`.
    `memlock` is the limit of locked memory in bytes, -1 for none. `publish`: TCP ports of the container that this host
    has under the same numbers on 127.0.0.1, and on no other address. `unconfined` says whether SELinux
    leaves the container alone, None: where it has something of the host. With `attended` signals to
    this process go to the container, which is removed the moment this process dies, however it does.
    """

    image: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    group_add: tuple[str, ...] = ()
    user: str = ""
    keep_id: bool = False
    network: str | None = None
    shm_size: int | None = None
    workdir: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    interactive: bool = False
    ipc: str = ""
    memlock: int | None = None
    publish: tuple[int, ...] = ()
    unconfined: bool | None = None
    attended: bool = False


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a container ended. `signal` names what killed it ("SIGSEGV"), empty when it exited by itself."""

    exit_code: int
    signal: str = ""
    timed_out: bool = False
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One file system layer of an image: what made it and its unpacked size in bytes."""

    created_by: str
    size: int


class Engine(Protocol):
    """A container engine. Every method raises `EngineError` (or a subtype) with one sentence on failure."""

    @property
    def info(self) -> EngineInfo: ...

    def images(self, label: str) -> list[Image]:
        """All images that carry `label` ("name" or "name=value"), in one query."""

    def image(self, ref: str) -> Image | None:
        """The image of that name or id, or None when the store does not hold it."""

    def history(self, ref: str) -> list[Layer]:
        """The layers of an image, newest first."""

    def configuration(self, ref: str) -> dict[str, Any] | None:
        """An image's configuration in the words of the OCI specification (config, rootfs.diff_ids), None without it."""

    def build(self, request: BuildRequest, on_event: Callable[[BuildEvent], None]) -> str:
        """Build and return the image id; nothing is tagged. Raises BuildFailed with the failing step's last lines."""

    def tag(self, image: str, ref: str) -> None:
        """Point the fully qualified `ref` at an image, in one step."""

    def untag(self, ref: str) -> None:
        """Remove one name; the image goes too if it was its last and nothing uses it. Missing is no error."""

    def remove(self, image: str) -> None:
        """Remove an untagged image; one that is in use or missing is left alone silently."""

    def run(self, request: RunRequest, on_output: Callable[[bytes], None]) -> RunResult:
        """Run a container to its end, streaming stdout and stderr together; the container is always removed."""

    def reap(self, label: str) -> int:
        """Remove containers that carry `label` and whose driver process is gone; return how many."""

    def pull(self, ref: str, on_status: Callable[[str], None]) -> Image:
        """Pull one name and return the image; never succeeds silently.

        A name without a host is the engine's to resolve, by its own settings.
        """

    def export(self, ref: str) -> Iterator[bytes]:
        """Stream the image as the engine's own archive (docker save)."""

    def load(self, archive: Callable[[], Iterator[bytes]]) -> None:
        """Take the images of an archive in that form, with the names in it, into the store."""

    def close(self) -> None:
        """End what runs over this connection, in whatever thread: builds are cut off, containers removed; and what was
        started for it (a private Podman service). May be called twice; nothing new begins after it."""
