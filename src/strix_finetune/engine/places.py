"""Which line of the Dockerfile a failing step stands on.

BuildKit names a line for syntax errors only and Podman never does, so the file is read back out of the
context and the step's text looked up in it.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress

_COUNTER = re.compile(r"^\[[^\]]*\] ")
_MAX_DOCKERFILE = 1024 * 1024


class IterReader(io.RawIOBase):
    """A readable file over an iterator of byte blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]  # any writable buffer
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = block
        part, self._rest = self._rest[: len(view)], self._rest[len(view) :]
        view[: len(part)] = part
        return len(part)


def read_dockerfile(context: Callable[[], Iterator[bytes]], name: str) -> str:
    """The text of the Dockerfile in a context stream; empty when it cannot be had."""
    blocks = context()
    try:
        with (
            suppress(tarfile.TarError, OSError),
            tarfile.open(fileobj=io.BufferedReader(IterReader(blocks)), mode="r|") as tar,
        ):
            for member in tar:
                if member.name.removeprefix("./") == name and member.isfile():
                    handle = tar.extractfile(member)
                    return handle.read(_MAX_DOCKERFILE).decode("utf-8", "replace") if handle else ""
    finally:
        close = getattr(blocks, "close", None)
        if close is not None:
            close()
    return ""


def line_of(dockerfile: str, step: str) -> int | None:
    """The 1-based line where the instruction of a step begins; None when it is not found."""
    wanted = _squeeze(_COUNTER.sub("", step))
    if not wanted:
        return None
    for line, text in _instructions(dockerfile):
        # Engines leave out flags (--mount), so the ends are compared too.
        if text == wanted:
            return line
    for line, text in _instructions(dockerfile):
        word, _, rest = wanted.partition(" ")
        if rest and text.split(" ", 1)[0] == word and text.endswith(rest):
            return line
    return None


def _instructions(dockerfile: str) -> Iterator[tuple[int, str]]:
    """(first line, text with continuation lines joined and blanks squeezed) of each instruction."""
    begin, parts = 0, list[str]()
    for number, line in enumerate(dockerfile.splitlines(), start=1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        begin = begin or number
        parts.append(bare.removesuffix("\\"))
        if not bare.endswith("\\"):
            yield begin, _squeeze(" ".join(parts))
            begin, parts = 0, []
    if parts:
        yield begin, _squeeze(" ".join(parts))


def _squeeze(text: str) -> str:
    head, _, rest = " ".join(text.split()).partition(" ")
    return f"{head.upper()} {rest}".rstrip()
