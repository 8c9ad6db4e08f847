"""Pieces of output become whole lines, however the engine cut them."""

from __future__ import annotations

MAX_LINE = 64 * 1024


class LineJoiner:
    """Joins bytes to lines without their ends; a line past MAX_LINE bytes is given out in pieces.

    A lone carriage return rewrites its line on a terminal, so only what follows the last one is
    kept: a progress bar becomes its final state. Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Take bytes, return the lines that are whole now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [piece for line in whole for piece in _pieces(line)]
        if len(self._rest) > MAX_LINE:
            # A bar that never ends its line: keep only what a terminal would still show.
            self._rest = self._rest.rsplit(b"\r", 1)[-1]
        while len(self._rest) > MAX_LINE:
            lines.append(self._rest[:MAX_LINE].decode("utf-8", "replace"))
            self._rest = self._rest[MAX_LINE:]
        return lines

    def flush(self) -> list[str]:
        """The last line if it has no end."""
        rest, self._rest = self._rest, b""
        return _pieces(rest) if rest else []


def _pieces(line: bytes) -> list[str]:
    shown = line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
    return [shown[at : at + MAX_LINE].decode("utf-8", "replace") for at in range(0, max(len(shown), 1), MAX_LINE)]
