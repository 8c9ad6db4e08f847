"""Every layer keeps its own log: all that its build steps and smoke tests printed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import IO

from strix_finetune.events import Event, LayerDone, LayerStarted, SmokeResult, StepOutput, StepProgress


class LayerLogs:
    """Writes `<folder>/<layer>.log`, the one before it is kept as `.log.1`; tests of what exists are added to its log.

    One thread at a time may call it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, IO[str]] = {}

    def path(self, layer: str) -> Path:
        return self._folder / f"{layer}.log"

    def write(self, event: Event) -> None:
        match event:
            case LayerStarted(layer=layer, reason=reason, action=action):
                self._folder.mkdir(parents=True, exist_ok=True)
                path = self.path(layer)
                if action == "build" and path.exists():
                    path.replace(path.with_suffix(".log.1"))
                fresh = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
                fresh.write(f"# {layer}, {time.strftime('%Y-%m-%d %H:%M:%S')}: {reason}\n")
                self._open[layer] = fresh
            case StepProgress(layer=layer, step=step, seconds=None) if layer in self._open:
                self._open[layer].write(f"\n> {step}\n")
            case StepProgress(layer=layer, step=step, cached=cached, seconds=seconds) if layer in self._open:
                self._open[layer].write(f"< {step} ({'cached' if cached else f'{seconds:.1f} s'})\n")
            case StepOutput(layer=layer, text=text) if layer in self._open:
                self._open[layer].write(text + "\n")
            case SmokeResult(layer=layer, test=test, state=state, detail=detail) if layer in self._open:
                self._open[layer].write(f"smoke {test}: {state}: {detail}\n")
            case LayerDone(layer=layer, outcome=outcome, seconds=seconds, message=message) if layer in self._open:
                stream = self._open.pop(layer)
                stream.write(f"# {outcome} after {seconds:.1f} s {message}\n")
                stream.close()

    def close(self) -> None:
        for stream in self._open.values():
            stream.close()
        self._open.clear()
