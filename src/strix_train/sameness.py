"""Digests by which a resumed run notices that its model, its template or its rewards are others than they were."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

# of each file of weights, pieces of so many bytes, so many of them, over its whole length
_PIECE, _PIECES = 1 << 16, 64
_WHOLE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


def of_model(folder: Path | None) -> str | None:
    """Return 64 hex digits of a model's folder, or None where there is none (yet).

    Small files count whole. Weights may be hundreds of gigabytes: of each file its size and 64 pieces count, which
    another training of the same model changes all.
    """
    if folder is None or not folder.is_dir():
        return None
    found = hashlib.sha256()
    for name in _WHOLE:
        if (folder / name).is_file():
            found.update(f"{name}\0".encode() + (folder / name).read_bytes())
    for path in sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)}):
        found.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        for piece in _pieces(path):
            found.update(piece)
    return found.hexdigest()


def of_files(paths: Sequence[Path]) -> str | None:
    """Return 64 hex digits of files' bytes, in order; None without any."""
    if not paths:
        return None
    found = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        found.update(len(content).to_bytes(8, "little") + content)
    return found.hexdigest()


def of_text(text: str | None) -> str | None:
    """Return 64 hex digits of a text, or None without one."""
    return None if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    last = max(0, size - _PIECE)
    with path.open("rb") as stream:
        for start in sorted({last * number // (_PIECES - 1) for number in range(_PIECES)}):
            stream.seek(start)
            yield stream.read(_PIECE)
