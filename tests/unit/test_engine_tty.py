"""A container's window is ours, also where ours changes while the container is told."""

from __future__ import annotations

import os
import signal
from typing import Any, cast

import pytest

from strix_finetune.engine.tty import _window


class Api:
    """Is told sizes; the window changes while it is told the first one, before (or after) that takes effect."""

    def __init__(self, *, effect: str) -> None:
        self.size, self.effect = os.terminal_size((101, 33)), effect
        self.told: list[tuple[int, int]] = []

    def resize(self, name: str, height: int, width: int) -> None:
        first = self.size.lines == 33
        if first and self.effect == "before":
            self.told.append((height, width))
        if first:
            self.size = os.terminal_size((60, 20))
            signal.raise_signal(signal.SIGWINCH)
        if not (first and self.effect == "before"):
            self.told.append((height, width))


@pytest.mark.parametrize("effect", ["before", "after"])
def test_a_change_while_a_size_is_told_is_not_lost(effect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(effect=effect)
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: api.size)
    usual = signal.getsignal(signal.SIGWINCH)
    with _window(cast(Any, api), "x"):
        assert api.told[-1] == (20, 60)
    assert signal.getsignal(signal.SIGWINCH) == usual
