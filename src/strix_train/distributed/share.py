"""A checkpoint lies on the machine of process 0: the others get what they do not have, piece by piece."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from strix_train import checkpoints
from strix_train.distributed.together import Ranks

# Bytes that are sent at a time.
_PIECE = 2**24


def everywhere(ranks: Ranks, mine: Path | None, parent: Path) -> Path | None:
    """Return the checkpoint that process 0 goes on from, as it lies on this machine; None where it begins.

    `mine`: what process 0 found; the others look for the same one in `parent`, and are sent what is not there.
    """
    if ranks.world == 1:
        return mine
    told = ranks.exchange("checkpoint", {"name": mine.name, "seal": _seal(mine)} if mine else {})[0]
    if not told:
        return None
    here = mine if mine else parent / str(told["name"])
    have = mine is not None or (_seal(here) == told["seal"] and not checkpoints.fault(here))
    if all(each["have"] for each in ranks.exchange("have", {"have": have})):
        return here
    names = sorted(str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()) if mine else []
    listed = ranks.exchange("files", {"files": [[name, (here / name).stat().st_size] for name in names]})[0]["files"]
    copy = here if have else _folder(ranks) / str(told["name"])
    for name, size in listed:
        _send(copy / name, int(size), source=mine is not None, take=not have)
    return copy


def _seal(checkpoint: Path) -> str:
    try:
        return hashlib.sha256((checkpoint / checkpoints.MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return ""


def _folder(ranks: Ranks) -> Path:
    """Return a folder of this process, removed when it leaves the others."""
    folder = Path(tempfile.mkdtemp(prefix="strix-checkpoint-"))
    ranks.leaving.append(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def _send(path: Path, size: int, *, source: bool, take: bool) -> None:
    """Send a file from process 0 to all others; those that have it already take part and keep theirs."""
    import torch

    if take:
        path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb" if source or not take else "wb") as stream:
        for start in range(0, size, _PIECE):
            length = min(_PIECE, size - start)
            raw = bytearray(stream.read(length)) if source else bytearray(length)
            piece = torch.frombuffer(raw, dtype=torch.uint8)
            torch.distributed.broadcast(piece, src=0)
            if take:
                stream.write(piece.numpy().tobytes())
