"""Three ways to watch a build: a live view on a terminal, a plain log elsewhere, JSON lines for programs."""

from __future__ import annotations

import sys
from typing import Protocol

from strix_finetune.events import Event


class View(Protocol):
    """Takes events in the order in which they are emitted, from one thread at a time."""

    def show(self, event: Event) -> None: ...

    def close(self) -> None: ...


def make_view(*, json: bool) -> View:
    if json:
        from strix_finetune.ui.jsonl import JsonView

        return JsonView(sys.stdout)
    if sys.stderr.isatty():
        from strix_finetune.ui.live import LiveView

        return LiveView()
    from strix_finetune.ui.plain import PlainView

    return PlainView(sys.stderr)
