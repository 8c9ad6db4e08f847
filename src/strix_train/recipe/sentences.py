"""pydantic's findings as sentences with a place and a cure."""

from __future__ import annotations

from typing import Any

from strix_train.errors import Place, Problem
from strix_train.recipe.base import SHORT
from strix_train.recipe.names import cure_unknown, cure_value
from strix_train.recipe.places import Located, Path_

_WHAT = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "model_type": "a section with keys of its own",
    "model_attributes_type": "a section with keys of its own",
    "dict_type": "a section with keys of its own",
}
_LIMITS = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…'"


def _key(path: Path_) -> str:
    out = ""
    for part in path:
        out += f"[{part + 1}]" if isinstance(part, int) else (f".{part}" if out else part)
    return out


def _in_document(loc: tuple[str | int, ...], raw: Any) -> Path_:
    """Return the part of pydantic's location that the file spells: no union members, no widened shorthand."""
    path: list[str | int] = []
    value = raw
    for index, part in enumerate(loc):
        if isinstance(value, dict) and (part in value or (index == len(loc) - 1 and part != "[key]")):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def problems(errors: list[Any], raw: Any, located: Located, default: Place) -> list[Problem]:
    """Return one sentence for each fault, in the order of the file."""
    found: dict[tuple[Path_, str], Problem] = {}
    for error in errors:
        path = _in_document(tuple(error["loc"]), raw)
        found.setdefault((path, error["type"]), _problem(error, path, raw, located.place(path, default)))
    return sorted(found.values(), key=lambda problem: problem.place or default)


def _problem(error: Any, path: Path_, raw: Any, place: Place) -> Problem:
    kind, context, value = error["type"], error.get("ctx") or {}, error.get("input")
    key = _key(path)
    plain = ".".join(part for part in path if isinstance(part, str))
    if kind == "extra_forbidden":
        section = ".".join(part for part in path[:-1] if isinstance(part, str))
        return Problem(f"unknown key '{path[-1]}'", place, cure_unknown(section, str(path[-1]), _kind_of(path, raw)))
    if kind == "missing":
        above = _key(path[:-1])
        return Problem(f"'{key}' is missing", place, f"'{above}' needs it" if above else "a recipe needs it")
    if kind in ("literal_error", "union_tag_invalid"):
        return _not_one_of(kind, context, value, key, plain, place, error["loc"])
    if kind == "union_tag_not_found":
        return Problem(f"'{key}.kind' is missing", place, f"'{key}' needs it")
    if kind == "value_error":
        message, _, cure = str(context.get("error", error["msg"])).partition("; ")
        return Problem(f"{key}: {message}" if key else message, place, cure)
    if kind in _WHAT:
        article = f"it must be {_WHAT[kind]}"
        if kind.startswith("bool") and isinstance(value, str):
            article += ", written true or false"
        if kind == "model_attributes_type" and plain in SHORT:
            article = f"it must be a word or {_WHAT[kind]}"
        return Problem(f"'{key}' is {_shown(value)}", place, article)
    if kind in _LIMITS:
        words = kind.replace("_", " ").replace("than equal", "than or equal to")
        return Problem(f"'{key}' is {_shown(value)}", place, f"it must be {words} {context[_LIMITS[kind]]}")
    if kind == "finite_number":
        return Problem(f"'{key}' is {_shown(value)}", place, "it must be a finite number")
    if kind == "too_short":
        return Problem(f"'{key}' is an empty list", place, "write at least one entry or remove the key")
    if kind == "too_long":
        return Problem(f"'{key}' has {context['actual_length']} entries", place, f"at most {context['max_length']}")
    if kind == "string_too_short":
        return Problem(f"'{key}' is empty", place, "write a value or remove the key")
    if kind == "string_too_long":
        return Problem(f"'{key}' is a very long text", place, f"at most {context['max_length']} characters")
    message = str(error["msg"])
    return Problem(f"'{key}': {message[0].lower()}{message[1:]}" if key else message, place)


def _not_one_of(
    kind: str, context: Any, value: Any, key: str, plain: str, place: Place, loc: tuple[str | int, ...]
) -> Problem:
    """A word that is none of those that its key takes; the word may be a key itself, as in data.columns."""
    if kind == "union_tag_invalid":
        allowed = str(context["expected_tags"]).replace("'", "")
        head, _, last = allowed.rpartition(", ")
        allowed = f"{head} or {last}" if head else last
        value = value.get("kind") if isinstance(value, dict) else context["tag"]
    else:
        allowed = str(context.get("expected", "")).replace("'", "")
        plain = plain.removesuffix(".kind")
    if loc and loc[-1] == "[key]":
        return Problem(f"'{key}' has the key {_shown(value)}", place, f"its keys may be {allowed}")
    return Problem(f"'{key}' is {_shown(value)}", place, cure_value(plain, value, allowed))


def _kind_of(path: Path_, raw: Any) -> str:
    """Return the kind of the section that holds `path`, for sections that come in several kinds."""
    value = raw
    for part in path[:-1]:
        value = value[part]
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind is None and path[:-1] == ("adapter",):
        return "lora"
    return kind if isinstance(kind, str) else ""
