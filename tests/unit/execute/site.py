"""A stack and an engine that does as it is told, and what happened to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from strix_finetune import names
from strix_finetune.engine.base import BuildRequest
from strix_finetune.events import Emit, Event, Finished, LayerDone, SmokeResult
from strix_finetune.execute import Outcome, Work, execute
from strix_finetune.plan import Plan, Step, make_plan
from tests.conftest import Images
from tests.fakes import FakeEngine

TIMEOUT = 20.0


class Site:
    """A stack, an engine and what happened."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.engine = FakeEngine()
        self.events: list[Event] = []
        self.wanted: tuple[str, ...] = ()
        self.on_request: Callable[[Step], None] = lambda step: None
        self.on_smoke: Callable[[Step, str, Emit], tuple[SmokeResult, ...]] = lambda step, image, emit: ()
        self.lock = threading.Lock()

    def emit(self, event: Event) -> None:
        with self.lock:
            self.events.append(event)

    def plan(self, *, rebuild: bool = False) -> Plan:
        stack = self.images.stack()
        wanted = self.wanted or (stack.final.name,)
        store = self.engine.images(names.KEY)
        return make_plan(stack, self.images.render().values(), wanted, store, rebuild=rebuild)

    def work(self) -> Work:
        def request(step: Step, emit: Emit) -> BuildRequest:
            self.on_request(step)
            return BuildRequest(lambda: iter(()), {names.LAYER: step.name, names.KEY: step.layer.key})

        return Work(
            request, lambda step, image, emit: self.on_smoke(step, image, emit), lambda step: f"{step.name}.log"
        )

    def run(self, *, jobs: int = 4) -> Mapping[str, Outcome]:
        return execute(self.plan(), self.engine, self.work(), self.emit, jobs=jobs)

    @property
    def built(self) -> list[str]:
        return [call[1] for call in self.engine.calls if call[0] == "build"]

    def done(self, layer: str) -> LayerDone:
        return next(event for event in self.events if isinstance(event, LayerDone) and event.layer == layer)

    @property
    def finished(self) -> Finished:
        return next(event for event in self.events if isinstance(event, Finished))


def fails(layer: str, error: Exception) -> Callable[[str, FakeEngine], None]:
    def on_build(name: str, engine: FakeEngine) -> None:
        if name == layer:
            raise error

    return on_build
