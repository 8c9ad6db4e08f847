"""Versions of packages in rpm's own database, which is an SQLite file, without the program rpm.

The table Name leads from a package's name to the numbers of its headers in Packages. A header is: the number of index
entries and the size of the data, both 32 bits, big-endian; entries of tag, type, offset and count; the data. Sources:
rpm's documentation of its header format, and lib/backend/sqlite.c.
"""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

_VERSION, _RELEASE = 1001, 1002
_STRING = 6
_LONGEST = 256


def version(path: Path, package: str) -> str | None:
    """ "20260110-1.fc43"; None where the package is not installed or the database cannot be read."""
    try:
        # the journal is not ours to look at, and nothing may be written beside the file
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            query = "SELECT blob FROM Packages WHERE hnum IN (SELECT hnum FROM Name WHERE key = ?) ORDER BY hnum DESC"
            row = database.execute(query, (package,)).fetchone()
    except (sqlite3.Error, OSError, ValueError):
        return None
    if not row or not isinstance(row[0], bytes):
        return None
    found = _strings(row[0], (_VERSION, _RELEASE))
    return f"{found[_VERSION]}-{found[_RELEASE]}" if len(found) == 2 else None


def _strings(header: bytes, tags: tuple[int, ...]) -> dict[int, str]:
    try:
        entries, _ = struct.unpack_from(">II", header)
        data = 8 + entries * 16
        found = {}
        for number in range(min(entries, len(header) // 16)):
            tag, kind, offset, _ = struct.unpack_from(">IIII", header, 8 + number * 16)
            if tag in tags and kind == _STRING:
                found[tag] = (
                    header[data + offset : data + offset + _LONGEST].partition(b"\0")[0].decode("utf-8", "replace")
                )
        return found
    except struct.error:
        return {}
