"""The names of a recipe's keys: the nearest one to a mistyped word, and ours for a library's."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

from strix_train.recipe.renamed import ADVICE, RENAMED, VALUES
from strix_train.recipe.schema import Recipe


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def known_keys(model: type[BaseModel] = Recipe, above: str = "") -> tuple[str, ...]:
    """Return every key of a recipe with its section: 'schedule.steps', 'model', …"""
    keys: list[str] = []
    for name, info in model.model_fields.items():
        keys.append(above + name)
        for inner in _models(info.annotation):
            keys.extend(known_keys(inner, f"{above}{name}."))
    return tuple(dict.fromkeys(keys))


def _kinds(section: str, word: str) -> list[str]:
    """Return the kinds of a section that have the key `word`, where the section has several kinds."""
    found: list[type[BaseModel]] = [Recipe]
    for part in section.split("."):
        found = [
            inner
            for each in found
            if part in each.model_fields
            for inner in _models(each.model_fields[part].annotation)
        ]
    having = [each for each in found if word in each.model_fields and "kind" in each.model_fields]
    return [str(kind) for each in having for kind in get_args(each.model_fields["kind"].annotation)]


def cure_unknown(section: str, word: str, kind: str = "") -> str:
    """Return what to do about the unknown key `word` in `section` ('' is the top level) of a `kind`."""
    plain = word.strip().lower().replace("-", "_")
    ours = RENAMED.get(plain)
    if ours and _shown_in(section, ours) != word:
        return f"it is called '{ours}' here"
    if plain in ADVICE:
        return ADVICE[plain]
    kinds = _kinds(section, plain) if section else []
    if kinds:
        return f"{section} {kind} has no such key: it belongs to {_listed(kinds)}"
    keys = known_keys()
    prefix = f"{section}." if section else ""
    here = [key[len(prefix) :] for key in keys if key.startswith(prefix) and "." not in key[len(prefix) :]]
    if kind:
        here = [name for name in here if kind in _kinds(section, name)] or here
    close = get_close_matches(plain, here, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{prefix}{close[0]}'?"
    by_last = {key.rsplit(".", 1)[-1]: key for key in reversed(keys) if not key.startswith("questions.ask.")}
    if plain in by_last:
        return f"it belongs in another section: '{by_last[plain]}'"
    close = get_close_matches(plain, [*by_last, *RENAMED], n=1, cutoff=0.7)
    if close:
        return f"did you mean '{by_last.get(close[0]) or RENAMED[close[0]]}'?"
    return f"known here: {', '.join(sorted(here))}"


def cure_value(path: str, value: Any, allowed: str) -> str:
    """Return what to do about a word that a key does not take; `allowed` is the sentence's list of those it takes."""
    if isinstance(value, str):
        ours = VALUES.get(path, {}).get(value.strip().lower())
        if ours:
            return f"it is called '{ours}' here"
    return f"it may be {allowed}"


def _shown_in(section: str, key: str) -> str:
    """Return `key` as it is written inside `section`, or whole where it is of another one."""
    prefix = f"{section}." if section else ""
    rest = key.removeprefix(prefix)
    return rest if "." not in rest else key


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
