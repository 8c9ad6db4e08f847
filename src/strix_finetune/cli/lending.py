"""Debian's programs for commands that need no engine themselves: one is only opened when something is borrowed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from strix_finetune.workspace import Options, Workspace

if TYPE_CHECKING:
    from strix_finetune.engine.base import Engine
    from strix_finetune.netconf import NetSettings


@contextmanager
def lending(
    settings: NetSettings, workspace: Workspace, options: Options, pinned: Mapping[str, str]
) -> Iterator[NetSettings]:
    """The settings with programs that this host can run. `pinned`: name → digest of registry images by the lock."""
    from strix_finetune.borrowed import lend
    from strix_finetune.engine.select import connect

    opened: list[Engine] = []

    def open_engine() -> Engine:
        if not opened:
            opened.append(connect(options.engine, os.environ))  # type: ignore[arg-type]
        return opened[0]

    try:
        yield lend(settings, workspace.stack, pinned, open_engine, lambda text: print(text, file=sys.stderr))
    finally:
        for engine in opened:
            engine.close()
