"""Just enough MessagePack to find a few values in a large document without building it.

Every function takes the document and a position and returns the position after what it read. Nesting costs no
recursion and a lying count costs nothing: each step takes at least one byte.
"""

from __future__ import annotations

from .faults import Malformed

# First byte → (bytes of length field, bytes after it that are not in the length), for what carries its length.
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
# First byte → bytes that follow, for what has a fixed size.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_FIXED |= {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
# First byte → (bytes of count field, values an element), for arrays and maps.
_NESTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def _cut_off() -> Malformed:
    return Malformed("its metadata is cut off")


def _number(data: bytes, at: int, size: int) -> int:
    field = data[at : at + size]
    if len(field) != size:
        raise _cut_off()
    return int.from_bytes(field, "big")


def skip(data: bytes, at: int) -> int:
    """Pass over one value, whatever it is."""
    pending = 1
    end = len(data)
    while pending:
        if at >= end:
            raise _cut_off()
        first = data[at]
        at += 1
        pending -= 1
        if first < 0x80 or first >= 0xE0:
            continue
        if first < 0x90:
            pending += 2 * (first & 0x0F)
        elif first < 0xA0:
            pending += first & 0x0F
        elif first < 0xC0:
            at += first & 0x1F
        elif first in _FIXED:
            at += _FIXED[first]
        elif first in _SIZED:
            width, extra = _SIZED[first]
            at += width + extra + _number(data, at, width)
        elif first in _NESTED:
            width, each = _NESTED[first]
            pending += each * _number(data, at, width)
            at += width
        else:
            raise Malformed("its metadata is not MessagePack")
    if at > end:
        raise _cut_off()
    return at


def _count(data: bytes, at: int, fix: int, wide: tuple[int, int], what: str) -> tuple[int, int]:
    if at >= len(data):
        raise _cut_off()
    first = data[at]
    if first & 0xF0 == fix:
        return first & 0x0F, at + 1
    if first in wide:
        width = _NESTED[first][0]
        return _number(data, at + 1, width), at + 1 + width
    raise Malformed(f"its metadata has no {what} where one belongs")


def map_size(data: bytes, at: int) -> tuple[int, int]:
    """The number of pairs of the map at `at`, and where the first one begins."""
    return _count(data, at, 0x80, (0xDE, 0xDF), "map")


def array_size(data: bytes, at: int) -> tuple[int, int]:
    """The number of values of the array at `at`, and where the first one begins."""
    return _count(data, at, 0x90, (0xDC, 0xDD), "array")


def text(data: bytes, at: int) -> tuple[str | None, int]:
    """The string at `at`, or None for any other value, which is passed over."""
    end = skip(data, at)
    first = data[at]
    if 0xA0 <= first < 0xC0:
        start = at + 1
    elif first in (0xD9, 0xDA, 0xDB):
        start = at + 1 + _SIZED[first][0]
    else:
        return None, end
    return data[start:end].decode("utf-8", "replace"), end


def unsigned(data: bytes, at: int) -> tuple[int | None, int]:
    """The non-negative integer at `at`, or None for any other value, which is passed over."""
    end = skip(data, at)
    first = data[at]
    if first < 0x80:
        return first, end
    if 0xCC <= first <= 0xCF:
        return _number(data, at + 1, end - at - 1), end
    if 0xD0 <= first <= 0xD3:
        value = int.from_bytes(data[at + 1 : end], "big", signed=True)
        return (value if value >= 0 else None), end
    return None, end
