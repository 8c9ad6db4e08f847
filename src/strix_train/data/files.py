"""Which files a set of rows is made of, and what reads them: by endings, and in a folder by its splits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from strix_train.data import columnar, document, lines, prose, table
from strix_train.data.bytestream import COMPRESSED, ending
from strix_train.data.faults import Faults, Record
from strix_train.data.splits import SPLITS, is_for_evaluation, name_of, names
from strix_train.errors import InputError, Place, Problem

Reader = Callable[[Path, Faults], Iterator[Record]]
READERS: dict[str, Reader] = {
    ".jsonl": lines.read,
    ".ndjson": lines.read,
    ".json": document.read,
    ".csv": table.read,
    ".tsv": table.read,
    ".parquet": columnar.read,
    ".arrow": columnar.read,
    ".txt": prose.read,
    ".md": prose.read,
}
# Beside its data sets' files the datasets library keeps what map() made of them: the same rows once more.
_NOT_DATA = re.compile(r"cache-.*\.arrow")
_NOT_ROWS = ("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json", "README.md")


def reader_of(path: Path, place: Place) -> Reader:
    """Return what reads a file. Raises InputError for an ending that is not known."""
    kind = ending(path)
    found = READERS.get(kind)
    if found is None:
        near = get_close_matches(kind, READERS, n=1, cutoff=0.6)
        cure = f"rename it to end with {near[0]}" if near else f"rows are read from {', '.join(READERS)}"
        what = f"the name of {path} ends with '{kind}'" if kind else f"the name of {path} has no ending"
        raise InputError(Problem(what, place, cure))
    if path.suffix.lower() in COMPRESSED and kind in (".parquet", ".arrow"):
        raise InputError(Problem(f"{path} is packed twice", place, f"unpack it: {kind} files are compressed inside"))
    return found


def local(path: Path, split: str | None, role: str, place: Place) -> tuple[Path, ...]:
    """Return the files of a path that exists. `role`: train or eval, for folders that hold several splits."""
    if path.is_file():
        reader_of(path, place)
        if split is not None:
            raise InputError(Problem(f"{path} is a file, which has no splits", place, "remove 'split'"))
        return (path,)
    found = _rows_below(path)
    if not found:
        ggufs = any(path.glob("*.gguf")) or (path / "config.json").is_file()
        cure = "that is a model" if ggufs else f"rows are read from {', '.join(READERS)}"
        raise InputError(Problem(f"the folder {path} holds no rows", place, cure))
    return _one_kind(_of_split(path, found, split, role, place), place)


def _of_split(folder: Path, found: Sequence[Path], split: str | None, role: str, place: Place) -> tuple[Path, ...]:
    """Return the files of the split that is asked for, or of the one that `role` means."""
    inside = [file.relative_to(folder) for file in found]
    for word in (split,) if split else SPLITS[role]:
        named = names(inside, (word,))
        if split and split.lower() in named:
            named = [split.lower()]
        if len(named) > 1:
            what = f"the folder {folder} has several splits for '{word}': {', '.join(sorted(named))}"
            cure = f"name one: [{{path: …, split: {named[0]}}}], or each as a set of its own"
            raise InputError(Problem(what, place, cure))
        if named:
            return tuple(folder / file for file in inside if name_of(file, word) == named[0])
    present = names(inside, [word for words in SPLITS.values() for word in words])
    if split or (role == "eval" and present):
        cure = f"it has {', '.join(present)}" if present else "its files name no splits: remove 'split'"
        raise InputError(Problem(f"the folder {folder} has no split '{split or 'validation'}'", place, cure))
    rest = tuple(folder / file for file in inside if not is_for_evaluation(file))
    if not rest:
        what = f"the folder {folder} holds rows for evaluation alone: {', '.join(present)}"
        raise InputError(Problem(what, place, f"to train on them, name the split: [{{path: …, split: {present[0]}}}]"))
    return rest


def _rows_below(folder: Path) -> list[Path]:
    """Return the data files of a folder in a fixed order, hidden ones aside."""
    found = (path for path in folder.rglob("*") if path.is_file() and ending(path) in READERS)
    return sorted(
        path
        for path in found
        if path.name not in _NOT_ROWS
        and not _NOT_DATA.fullmatch(path.name)
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _one_kind(files: Sequence[Path], place: Place) -> tuple[Path, ...]:
    kinds = sorted({ending(file) for file in files})
    if len(kinds) > 1:
        raise InputError(
            Problem(
                f"the folder {files[0].parent} holds {' and '.join(kinds)} files",
                place,
                "keep one kind, or name the files one by one in data.train",
            )
        )
    return tuple(files)
