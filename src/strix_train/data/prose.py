"""Plain text files: one document each, read in pieces that end between paragraphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.data.bytestream import decoded, open_bytes
from strix_train.data.faults import Faults
from strix_train.errors import InputError, Place, Problem, at

PIECE = 1 << 13
MAX_LINE = 32 << 20


@dataclass(slots=True)
class ProseRecord:
    """A piece of a document. `more`: the document goes on in the next piece."""

    value: dict[str, Any]
    path: Path
    line: int
    more: bool

    def place(self, *keys: str | int) -> Place:
        """Return where the piece begins."""
        return at(self.path, self.line)

    def around(self, *keys: str | int) -> str:
        """Return how the piece begins."""
        return " ".join(str(self.value["text"])[:90].split())


def read(path: Path, faults: Faults) -> Iterator[ProseRecord]:
    """Yield the pieces of a document of about PIECE characters. Raises InputError."""
    piece: list[str] = []
    size, number, begins = 0, 0, 1
    waiting: ProseRecord | None = None
    with open_bytes(path) as stream:
        while raw := stream.readline(MAX_LINE):
            number += 1
            text = decoded(raw, path, number, faults)
            if text is None:
                continue
            piece.append(text)
            size += len(text)
            if size >= PIECE and (not text.strip() or size >= 16 * PIECE):
                if waiting:
                    yield waiting
                waiting = ProseRecord({"text": "".join(piece)}, path, begins, more=True)
                piece, size, begins = [], 0, number + 1
    rest = "".join(piece)
    if rest.strip():
        if waiting:
            yield waiting
        waiting = ProseRecord({"text": rest}, path, begins, more=False)
    if waiting is None:
        if not faults.problems:
            raise InputError(Problem("holds no text", at(path), "write the text to learn into it"))
        return
    waiting.more = False
    yield waiting
