"""What may go wrong with a request: switched on for the paths that match a pattern, as often as is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Status:
    """The server answers with an error. `retry_after` becomes the header of that name."""

    code: int
    retry_after: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection ends after so many bytes of the body, whatever the header promised."""

    after: int


@dataclass(frozen=True, slots=True)
class Slow:
    """The body comes in pieces of `piece` bytes, with `delay` seconds before each."""

    delay: float
    piece: int = 1024


@dataclass(frozen=True, slots=True)
class Altered:
    """A file of the same name and length with another content."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """Half of something, served as if it were the whole: what is left after so many bytes is missing."""

    keep: int


Kind = Status | Cut | Slow | Altered | Shortened


@dataclass(slots=True)
class Fault:
    """`kind` happens to requests whose path (decoded, without the query) matches `where`, as in fnmatch.

    The first `skip` of them pass; then it happens `times` times, or for ever when that is None. `hits` counts.
    """

    where: str
    kind: Kind
    times: int | None = None
    skip: int = 0
    hits: int = 0
    _seen: int = field(default=0, repr=False)

    def strikes(self, path: str) -> bool:
        """Whether this request is one of those; counts it."""
        if not fnmatchcase(path, self.where):
            return False
        self._seen += 1
        if self._seen <= self.skip or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True


def damaged(body: bytes, kind: Kind | None) -> bytes:
    """The body as the fault makes it; most leave it alone."""
    if isinstance(kind, Altered) and body:
        middle = len(body) // 2
        return body[:middle] + bytes([body[middle] ^ 0xFF]) + body[middle + 1 :]
    if isinstance(kind, Shortened):
        return body[: kind.keep]
    return body
