"""Sets of rows on the hub: fetched once by the datasets library, then read from its cache like any other file."""

from __future__ import annotations

import re
from pathlib import Path

from strix_train.errors import InputError, Place, Problem

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")


def is_hub_id(word: str) -> bool:
    """Whether a word may be owner/name on the hub."""
    return bool(_HUB_ID.match(word))


def fetch(word: str, subset: str | None, split: str, place: Place) -> tuple[Path, ...]:
    """Return the Arrow files of a split, fetching what is not in the cache. Raises InputError."""
    if "[" in split:
        # the library keeps whole splits in its files, and the rows are read from those
        cure = f"name the split {split.partition('[')[0] or 'train'}, and say with weight how many of its rows to take"
        raise InputError(Problem(f"'{split}' is a part of a split", place, cure))
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            Problem(
                f"'{word}' is on the hub, and the datasets library is not here: {error}", place, "fetch it as a file"
            )
        ) from None
    datasets.disable_progress_bars()
    try:
        found = datasets.load_dataset(word, subset, split=split)
    except Exception as error:  # noqa: BLE001 - the library raises whatever its transport does
        text = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            Problem(f"'{word}' cannot be fetched: {text[:240]}", place, _cure(str(error), split))
        ) from None
    files = tuple(Path(each["filename"]) for each in found.cache_files)
    if not files:
        raise InputError(Problem(f"'{word}' left no files in the cache", place, "fetch it as a file"))
    return files


def _cure(text: str, split: str) -> str:
    if "split" in text.lower():
        return f"name another split than '{split}': [{{path: …, split: …}}]"
    if "config" in text.lower():
        return "name its subset: [{path: …, subset: …}]"
    if "gated" in text.lower() or "401" in text or "403" in text:
        return "set HF_TOKEN to a token that may read it"
    return "look at the name and the network, or fetch it as a file"
