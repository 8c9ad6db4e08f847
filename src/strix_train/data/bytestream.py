"""The bytes of a data file as text: compressed or not, and every byte that is not UTF-8 told by its place."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from strix_train.data.faults import Faults
from strix_train.errors import InputError, Place, Problem, at

COMPRESSED = (".gz", ".bz2", ".xz")
_BOM = b"\xef\xbb\xbf"


def ending(path: Path) -> str:
    """Return the ending that says what a file is, in small letters and without that of its compression."""
    name = path.name.lower()
    for packed in COMPRESSED:
        name = name.removesuffix(packed)
    return Path(name).suffix


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressing it by its ending. Raises InputError, also for what is read meanwhile."""
    try:
        with cast(IO[bytes], _open(path)) as stream:
            yield stream
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        why = getattr(error, "strerror", None) or error
        cure = "look at the file's rights" if isinstance(error, PermissionError) else "write or fetch the file again"
        raise InputError(Problem(f"cannot be read: {why}", at(path), cure)) from None


def _open(path: Path) -> Any:
    packed = path.suffix.lower()
    if packed == ".gz":
        return gzip.open(path, "rb")
    if packed == ".bz2":
        return bz2.open(path, "rb")
    if packed == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb", buffering=1 << 20)


def decoded(raw: bytes, path: Path, line: int, faults: Faults) -> str | None:
    """Return one line as text, or None with the fault noted. `line` is 1-based; a byte order mark is dropped."""
    if line == 1:
        raw = raw.removeprefix(_BOM)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode("utf-8", "replace")) + 1
        found = not_utf8(error, at(path, line, column), path)
        if "UTF-16" in str(found):
            raise found from None
        faults.add(*_parts(found.problems[0]))
        return None


def _parts(problem: Problem) -> tuple[str, Place, str, str]:
    return problem.message, problem.place or at(""), problem.cure, problem.around


def not_utf8(error: UnicodeDecodeError, place: Place, path: Path) -> InputError:
    """Return the sentence for bytes that are not UTF-8, with a guess at what they are."""
    raw = bytes(error.object)
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or raw.count(0) > len(raw) // 4:
        return InputError(
            Problem("is UTF-16", at(path, place.line), f"save the file as UTF-8: {_iconv('UTF-16', path)}")
        )
    around = " ".join(raw[max(0, error.start - 30) : error.start + 60].decode("utf-8", "replace").split())
    cure = f"save the file as UTF-8{_guess(raw[max(0, error.start - 200) : error.start + 200], path)}"
    return InputError(Problem(f"byte 0x{raw[error.start]:02x} is not UTF-8", place, cure, around))


def _guess(raw: bytes, path: Path) -> str:
    """Return the command that converts a file of Windows' or Western European text, where it looks like that."""
    try:
        text = raw.decode("cp1252")
    except UnicodeDecodeError:
        return ""
    strange = sum(not character.isprintable() and not character.isspace() for character in text)
    return "" if strange else f": {_iconv('WINDOWS-1252', path)}"


def _iconv(encoding: str, path: Path) -> str:
    return f"iconv -f {encoding} -t UTF-8 {path.name}"
