"""The view on a terminal: a line for each layer that is being built, finished ones scroll by."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from strix_finetune.events import (
    BlobProgress,
    Event,
    Finished,
    LayerDone,
    LayerPlanned,
    LayerStarted,
    StepOutput,
    StepProgress,
    Targeted,
    of_target,
)
from strix_finetune.ui.plain import megabytes, plain_lines, printable, shorten


class LiveView:
    """Redraws ten times a second from what it was last told; NO_COLOR is honoured by rich."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._busy: dict[str, tuple[float, str, str]] = {}
        self._live = Live(console=self._console, refresh_per_second=10, transient=True, get_renderable=self._draw)
        self._live.start()

    def show(self, event: Event) -> None:
        match event:
            case Targeted(event=inner) if not isinstance(inner, Finished):
                self.show(of_target(event))
            case LayerStarted(layer=layer):
                self._busy[layer] = (time.monotonic(), "", "")
            case StepProgress(layer=layer, step=step, seconds=None) if layer in self._busy:
                self._busy[layer] = (self._busy[layer][0], shorten(printable(step), 70), "")
            case StepOutput(layer=layer, text=text) if layer in self._busy:
                self._busy[layer] = (*self._busy[layer][:2], printable(text))
            case BlobProgress(layer=layer, state="moving", digest=digest, done=done, size=size) if layer in self._busy:
                part = f"{digest.removeprefix('sha256:')[:12]} {megabytes(done)} of {megabytes(size)}"
                self._busy[layer] = (self._busy[layer][0], part, "")
            case StepProgress() | BlobProgress():
                pass
            case _:
                if isinstance(event, LayerDone):
                    self._busy.pop(event.layer, None)
                for line in plain_lines(event):
                    self._console.print(_styled(event, printable(line)))

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> Group:
        now = time.monotonic()
        rows: list[RenderableType] = []
        for layer, (began, step, text) in list(self._busy.items()):
            grid = Table.grid(padding=(0, 1))
            grid.add_column(no_wrap=True)
            grid.add_column(no_wrap=True, overflow="ellipsis")
            grid.add_row(Spinner("dots", text=Text(f"{layer} {now - began:4.0f} s", style="bold")), Text(step))
            rows.append(grid)
            if text:
                rows.append(
                    Text(f"    {text[: self._console.width - 6]}", style="dim", no_wrap=True, overflow="ellipsis")
                )
        return Group(*rows)


def _styled(event: Event, line: str) -> Text:
    if isinstance(event, LayerDone):
        return Text(line, style={"failed": "red", "blocked": "yellow"}.get(event.outcome, "green"))
    if isinstance(event, LayerPlanned):
        return Text(line, style="dim" if event.action == "reuse" else "")
    return Text(line)
