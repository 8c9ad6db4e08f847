"""Splits of a folder: which one a file is of, by its name or that of a folder above it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

# What splits are called, in the order in which a name is looked for.
SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "eval": ("validation", "valid", "val", "dev", "eval", "evaluation", "test", "testing"),
}
# The end of a name that only numbers its pieces: train_00000_of_00004, train_part2.
_PIECE = re.compile(r"(?:_(?:(?:of|part|shard|chunk)_?)?\d+)+$")


def name_of(path: Path, word: str) -> str:
    """Return what the split is called that a file is of, where that is `word` or begins with it; else ''.

    train-00000.parquet and data/train/a.jsonl are of train; train_sft-00000.parquet is of train_sft, as on the hub.
    """
    called = re.compile(rf"(?<![a-z0-9])({re.escape(word.lower())})(?![a-z0-9])((?:_[a-z0-9]+)*)")
    for part in path.parts:
        match = called.search(part.lower())
        if match:
            return match[1] + _PIECE.sub("", match[2])
    return ""


def names(paths: Sequence[Path], words: Sequence[str]) -> list[str]:
    """Return the names of the splits that files are of, each once, in the order of `words`."""
    found = (name_of(path, word) for word in words for path in paths)
    return list(dict.fromkeys(filter(None, found)))


def is_for_evaluation(path: Path) -> bool:
    """Whether a file is of a split that nobody trains on unasked."""
    return any(name_of(path, word) for word in SPLITS["eval"])
