"""What this reader refuses, as one sentence each.

The package is also copied into images as plain files, where the rest of the driver does not exist;
there the same types stand on a small base of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

try:
    from strix_finetune.errors import InputError as _Base
except ImportError:

    class _Base(Exception):  # type: ignore[no-redef]
        """Stands in for the driver's InputError."""

        exit_code = 2

        def __init__(self, message: str, *, cure: str = "") -> None:
            super().__init__(f"{message}; {cure}" if cure else message)


class CodeObjectError(_Base):
    """A file cannot be read as device code. `message` says where in the file, `path` says which file."""

    def __init__(self, message: str, *, cure: str = "", path: str = "") -> None:
        self.message = message
        self.cure = cure
        self.path = path
        super().__init__(f"{path}: {message}" if path else message, cure=cure)

    def at(self, path: str) -> Self:
        """The same fault with the file's name; the inner steps do not know it."""
        return self if self.path else type(self)(self.message, cure=self.cure, path=path)

    def inside(self, part: str) -> Self:
        """The same fault with the part of the file that it is in, put before what is already said."""
        return type(self)(f"{part}: {self.message}", cure=self.cure, path=self.path)


class UnknownFormat(CodeObjectError):
    """Not a file that can hold AMD device code at all."""


class Malformed(CodeObjectError):
    """Cut off, damaged or made to mislead: sizes, counts or offsets that do not fit the file."""


class Unsupported(CodeObjectError):
    """A format of the right family that this reader does not know, or a decompressor that is missing here."""


class LimitExceeded(CodeObjectError):
    """Reading on would take more memory or work than the limits allow."""


class Unreadable(CodeObjectError):
    """The file system did not give the bytes: missing, not a regular file, no permission."""


@contextmanager
def within(part: str) -> Iterator[None]:
    """Name the part of the file in every fault that comes out of the block."""
    try:
        yield
    except CodeObjectError as error:
        raise error.inside(part) from None
