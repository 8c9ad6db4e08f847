"""Emitted definitions as files: all or none, and nothing that somebody else wrote is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from strix_finetune.emit import Emitted, edited
from strix_finetune.errors import InputError, Place, Problem


def write(files: Sequence[Emitted], output: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write `files` and return their paths: `output` is a folder that exists, or the name of the first file.

    The others lie beside the first and differ in their ending. Raises InputError before anything is written where
    there is a file that was not made here, or was edited since; `force` overwrites it.
    """
    if not output.is_dir() and len(files) > 1 and output.suffix != files[0].ending:
        raise InputError(
            f"{output} is one of {len(files)} files", cure=f"end it in {files[0].ending}, or name a folder"
        )
    if not output.parent.is_dir():
        raise InputError(f"there is no folder {output.parent}", cure="make it first")
    pairs = [
        (file, output / file.name if output.is_dir() else output if number == 0 else output.with_suffix(file.ending))
        for number, file in enumerate(files)
    ]
    if not force:
        problems = [
            Problem("was not made by emit, or was edited since", Place(path), "--force overwrites it")
            for _, path in pairs
            if path.is_symlink() or (path.exists() and _foreign(path))
        ]
        if problems:
            raise InputError(problems)
    with ExitStack() as stack:
        written = []
        for file, path in pairs:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)))
            temporary = folder / path.name
            temporary.write_text(file.text, "utf-8")
            temporary.chmod(0o755 if file.text.startswith("#!") else 0o644)
            written.append((temporary, path))
        for temporary, path in written:
            temporary.replace(path)
    return tuple(path for _, path in pairs)


def _foreign(path: Path) -> bool:
    try:
        return edited(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return True
