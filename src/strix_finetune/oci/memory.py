"""What was packed before, so that an image need not be packed again where a registry has its layers.

A small file an image in the user's cache: the descriptors of its layers, and what is in the tars that the engine makes
of them. The blobs themselves are not kept. What cannot be read is packed again.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_finetune.oci.descriptor import Descriptor
from strix_finetune.oci.scan import RawLayer
from strix_finetune.oci.tree import NOWHERE, Entry, Kind

# counted up when the same image would become other layers, or this file has another form
FORMAT = 2
# images that are remembered, those that were used last: a few megabytes each
_KEPT = 40


@dataclass(frozen=True, slots=True)
class Row:
    """One layer that was packed; as of `layout.Layer`."""

    part: str
    descriptor: Descriptor
    diff_id: str
    size: int


@dataclass(frozen=True, slots=True)
class Remembered:
    """`rows`: the layers that an image adds to its parent; `raw`: the engine's name of each tar of it → its content."""

    rows: tuple[Row, ...]
    raw: dict[str, RawLayer]


class Memory:
    """`present` says whether the blob of a digest is where the layers are going."""

    def __init__(self, folder: Path, present: Callable[[str], bool]) -> None:
        self._folder, self._present = folder, present

    def find(self, key: str) -> Remembered | None:
        """What is known of an image, if all of its blobs are present."""
        path = self._folder / f"{key}.json.gz"
        try:
            with gzip.open(path) as stream:
                said = json.load(stream)
            rows = tuple(
                Row(row["part"], Descriptor.from_json(row["blob"]), row["diff_id"], row["size"]) for row in said["rows"]
            )
            raw = {name: _layer(held) for name, held in said["raw"].items()}
            path.touch()
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            return None
        return Remembered(rows, raw) if all(self._present(row.descriptor.digest) for row in rows) else None

    def keep(self, key: str, found: Remembered) -> None:
        """Remember an image. A cache that cannot be written is no fault."""
        rows = [
            {"part": row.part, "blob": row.descriptor.as_json(), "diff_id": row.diff_id, "size": row.size}
            for row in found.rows
        ]
        text = json.dumps({"rows": rows, "raw": {name: _said(layer) for name, layer in found.raw.items()}})
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary = self._folder / f".{key}.{os.getpid()}"
            with gzip.open(temporary, "wb", compresslevel=1) as stream:
                stream.write(text.encode())
            temporary.replace(self._folder / f"{key}.json.gz")
            held = sorted(self._folder.glob("*.json.gz"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in held[_KEPT:]:
                path.unlink(missing_ok=True)


def key(parts: Sequence[object]) -> str:
    """The name under which an image is remembered: of all that decides on its layers."""
    return hashlib.sha256(json.dumps([FORMAT, *parts], sort_keys=True).encode()).hexdigest()


def _said(layer: RawLayer) -> list[Any]:
    rows = [
        [
            entry.path,
            entry.kind.value,
            entry.mode,
            entry.uid,
            entry.gid,
            entry.mtime,
            entry.size,
            entry.sha256,
            entry.target,
            entry.xattrs,
            entry.device,
        ]
        for entry in layer.entries
    ]
    return [rows, layer.gone, layer.opaque]


def _layer(held: list[Any]) -> RawLayer:
    rows, gone, opaque = held
    return RawLayer(
        [
            Entry(
                path,
                Kind(kind),
                mode,
                uid,
                gid,
                mtime,
                size,
                sha256,
                target,
                tuple((name, value) for name, value in xattrs),
                (device[0], device[1]),
                (-1, path),
                NOWHERE,
            )
            for path, kind, mode, uid, gid, mtime, size, sha256, target, xattrs, device in rows
        ],
        list(gone),
        list(opaque),
    )
