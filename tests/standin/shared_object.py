"""A shared library for x86-64 Linux that the dynamic linker really loads, written without a compiler.

Every function in it says 100, which is HIP's "no device": the one answer that is true on a machine without a GPU.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

_PAGE = 0x1000
_NO_DEVICE = b"\xb8\x64\x00\x00\x00\xc3"  # mov eax, 100; ret
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_R, _RX, _RW = 4, 5, 6
_PROGBITS, _STRTAB, _HASH, _DYNAMIC, _NOBITS, _DYNSYM = 1, 3, 5, 6, 8, 11
_ALLOC, _WRITE, _EXEC = 2, 1, 4
_NEEDED, _SONAME, _RUNPATH = 1, 14, 29
_SEGMENTS = 4


class _Words:
    """A table of strings, each once."""

    def __init__(self) -> None:
        self.data = b"\0"
        self._at: dict[str, int] = {"": 0}

    def add(self, word: str) -> int:
        if word not in self._at:
            self._at[word] = len(self.data)
            self.data += word.encode() + b"\0"
        return self._at[word]


def shared_object(
    soname: str,
    functions: Iterable[str] = (),
    *,
    needed: Iterable[str] = (),
    runpath: str = "",
    sections: Mapping[str, bytes] | None = None,
    moved_code: int = 0,
) -> bytes:
    """A library with this SONAME that offers `functions` and asks for `needed`.

    `sections` are kept in the file and not loaded. `moved_code`: the size of a `.hip_fatbin` that takes no room, which
    is what is left in a library whose device code was moved to side files.
    """
    strings, names = _Words(), list(dict.fromkeys(functions))
    dynamic = [(_NEEDED, strings.add(name)) for name in needed] + [(_SONAME, strings.add(soname))]
    dynamic += [(_RUNPATH, strings.add(runpath))] if runpath else []
    symbols = [_SYMBOL.pack(0, 0, 0, 0, 0, 0)]
    named = [strings.add(name) for name in names]

    at = _HEADER.size + _SEGMENTS * _SEGMENT.size
    hash_at, count = at, len(names) + 1
    table = _one_chain(count)
    symbols_at = _aligned(hash_at + len(table), 8)
    strings_at = symbols_at + count * _SYMBOL.size
    code_at = _aligned(strings_at + len(strings.data), 16)
    symbols += [_SYMBOL.pack(name, 0x12, 0, 4, code_at, len(_NO_DEVICE)) for name in named]
    code_end = code_at + len(_NO_DEVICE)
    # the linker may write to this one, so it has a page of its own
    dynamic_at = _aligned(code_end, _PAGE)
    dynamic += [(4, hash_at), (5, strings_at), (6, symbols_at), (10, len(strings.data)), (11, _SYMBOL.size), (0, 0)]
    written = b"".join(struct.pack("<QQ", *entry) for entry in dynamic)

    body = bytearray(dynamic_at + len(written))
    for place, data in (
        (hash_at, table),
        (symbols_at, b"".join(symbols)),
        (strings_at, strings.data),
        (code_at, _NO_DEVICE),
        (dynamic_at, written),
    ):
        body[place : place + len(data)] = data
    segments = (
        _SEGMENT.pack(_PT_LOAD, _RX, 0, 0, 0, code_end, code_end, _PAGE),
        _SEGMENT.pack(_PT_LOAD, _RW, dynamic_at, dynamic_at, dynamic_at, len(written), len(written), _PAGE),
        _SEGMENT.pack(_PT_DYNAMIC, _RW, dynamic_at, dynamic_at, dynamic_at, len(written), len(written), 8),
        _SEGMENT.pack(_PT_GNU_STACK, _RW, 0, 0, 0, 0, 0, 16),
    )
    body[_HEADER.size : at] = b"".join(segments)

    titles = _Words()
    rows = [
        _SECTION.pack(*[0] * 10),
        _section(titles, ".hash", _HASH, _ALLOC, hash_at, len(table), link=2, align=8, entry=4),
        _section(titles, ".dynsym", _DYNSYM, _ALLOC, symbols_at, count * _SYMBOL.size, link=3, info=1, entry=24),
        _section(titles, ".dynstr", _STRTAB, _ALLOC, strings_at, len(strings.data), align=1),
        _section(titles, ".text", _PROGBITS, _ALLOC | _EXEC, code_at, len(_NO_DEVICE), align=16),
        _section(titles, ".dynamic", _DYNAMIC, _ALLOC | _WRITE, dynamic_at, len(written), link=3, entry=16),
    ]
    for title, data in (sections or {}).items():
        body += b"\0" * (-len(body) % _PAGE)
        rows.append(_section(titles, title, _PROGBITS, 0, len(body), len(data), align=_PAGE, address=0))
        body += data
    if moved_code:
        rows.append(_section(titles, ".hip_fatbin", _NOBITS, 0, len(body), moved_code, align=_PAGE, address=0))
    own = titles.add(".shstrtab")
    rows.append(_SECTION.pack(own, _STRTAB, 0, 0, len(body), len(titles.data), 0, 0, 1, 0))
    body += titles.data
    body += b"\0" * (-len(body) % 8)
    head = _HEADER.pack(
        b"\x7fELF\x02\x01\x01".ljust(16, b"\0"), 3, 62, 1, 0, _HEADER.size, len(body), 0,
        _HEADER.size, _SEGMENT.size, _SEGMENTS, _SECTION.size, len(rows), len(rows) - 1,
    )  # fmt: skip
    body[: _HEADER.size] = head
    return bytes(body) + b"".join(rows)


def _one_chain(count: int) -> bytes:
    """A SysV hash table of `count` symbols, the empty one included: one bucket, and each symbol leads to the next."""
    following = [0, *range(2, count), 0][:count]
    return struct.pack(f"<{3 + count}I", 1, count, min(1, count - 1), *following)


def _section(
    titles: _Words,
    title: str,
    kind: int,
    flags: int,
    offset: int,
    size: int,
    *,
    link: int = 0,
    info: int = 0,
    align: int = 8,
    entry: int = 0,
    address: int | None = None,
) -> bytes:
    place = offset if address is None else address
    return _SECTION.pack(titles.add(title), kind, flags, place, offset, size, link, info, align, entry)


def _aligned(value: int, step: int) -> int:
    return -(-value // step) * step
