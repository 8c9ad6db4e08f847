"""An engine that does what a test tells it to: no daemon, real threads."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strix_finetune import names
from strix_finetune.engine.base import (
    BuildEvent,
    BuildRequest,
    EngineInfo,
    Image,
    Layer,
    RunRequest,
    RunResult,
    StepDone,
    StepLog,
    StepStarted,
)
from strix_finetune.errors import EngineError
from strix_finetune.smoke import HOME


@dataclass
class FakeEngine:
    """Keeps images and names in memory. `on_build` and `on_tag` run first and may raise or wait.

    `layers`: image → its history, newest first. `calls`: what was asked, in order.
    """

    on_build: Callable[[str, FakeEngine], None] = lambda layer, engine: None
    on_tag: Callable[[str, str], None] = lambda image, ref: None
    on_run: Callable[[RunRequest, Callable[[bytes], None]], RunResult] | None = None
    store: dict[str, Mapping[str, str]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    layers: dict[str, list[Layer]] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    runs: list[RunRequest] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _count: int = 0

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("docker", "20.10", "1.41", "unix:///fake", rootless=False)

    def add(self, labels: Mapping[str, str], *tags: str) -> str:
        with self._lock:
            self._count += 1
            image = f"sha256:{self._count:064x}"
            self.store[image] = dict(labels)
            self.refs.update(dict.fromkeys(tags, image))
        return image

    def images(self, label: str) -> list[Image]:
        with self._lock:
            return [self._image(image) for image, labels in self.store.items() if label.split("=")[0] in labels]

    def _image(self, image: str) -> Image:
        tags = tuple(ref for ref, held in self.refs.items() if held == image)
        return Image(image, tags, self.store[image], 1000)

    def image(self, ref: str) -> Image | None:
        with self._lock:
            image = self.refs.get(ref, ref)
            return self._image(image) if image in self.store else None

    def history(self, ref: str) -> list[Layer]:
        return self.layers.get(self.refs.get(ref, ref), [Layer("RUN make", 1000)])

    def configuration(self, ref: str) -> dict[str, Any] | None:
        labels = self.store.get(self.refs.get(ref, ref))
        return None if labels is None else {"config": {"Labels": dict(labels)}, "rootfs": {"diff_ids": []}}

    def build(self, request: BuildRequest, on_event: Callable[[BuildEvent], None]) -> str:
        layer = request.labels[names.LAYER]
        with self._lock:
            self.calls.append(("build", layer))
        on_event(StepStarted("1", "RUN make"))
        on_event(StepLog("1", f"making {layer}"))
        self.on_build(layer, self)
        if self.closed.is_set():
            raise EngineError("the engine closed the connection")
        on_event(StepDone("1", "RUN make", cached=False, seconds=0.5))
        return self.add(request.labels)

    def tag(self, image: str, ref: str) -> None:
        self.on_tag(image, ref)
        with self._lock:
            self.calls.append(("tag", ref))
            if image not in self.store:
                raise EngineError(f"there is no image {image}")
            self.refs[ref] = image

    def untag(self, ref: str) -> None:
        with self._lock:
            self.calls.append(("untag", ref))
            image = self.refs.pop(ref, None)
            if image and image not in self.refs.values():
                self.store.pop(image, None)

    def remove(self, image: str) -> None:
        with self._lock:
            self.calls.append(("remove", image))
            if image not in self.refs.values():
                self.store.pop(image, None)

    def run(self, request: RunRequest, on_output: Callable[[bytes], None]) -> RunResult:
        with self._lock:
            self.runs.append(request)
        assert self.on_run, "this test runs no container"
        return self.on_run(request, on_output)

    def reap(self, label: str) -> int:
        return 0

    def pull(self, ref: str, on_status: Callable[[str], None]) -> Image:
        raise NotImplementedError

    def export(self, ref: str) -> Iterator[bytes]:
        raise EngineError(f"could not export {ref}")

    def load(self, archive: Callable[[], Iterator[bytes]]) -> None:
        with self._lock:
            self.calls.append(("load", str(len(b"".join(archive())))))

    def close(self) -> None:
        self.closed.set()


def layer_of(ref: str) -> str:
    """The layer that a fully qualified name is of; empty for the final name."""
    found = re.match(rf"{re.escape(names.PREFIX)}/([^:]+):", ref)
    return found[1] if found else ""


def inside(path: str) -> str:
    return f"{HOME}/{path}"


def run_here(folder: Path) -> Callable[[RunRequest, Callable[[bytes], None]], RunResult]:
    """Run a request as processes of this machine, with `folder` in the place of /."""

    def run(request: RunRequest, on_output: Callable[[bytes], None]) -> RunResult:
        for path, content in request.files.items():
            file = folder / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(0o755)
        command = [word.replace(HOME, f"{folder}{HOME}") for word in request.command]
        env = {"PATH": os.environ["PATH"]} | {k: v.replace(HOME, f"{folder}{HOME}") for k, v in request.env.items()}
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder
        ) as process:
            assert process.stdout
            while piece := os.read(process.stdout.fileno(), 7):
                on_output(piece)
        code = process.returncode
        return RunResult(code if code >= 0 else 128 - code)

    return run
