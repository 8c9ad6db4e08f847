"""pydantic's findings as sentences with a place and a cure."""

from __future__ import annotations

from typing import Any

from strix_train.errors import Place, Problem
from strix_train.recipe.names import cure_unknown
from strix_train.recipe.places import Located, Path_

_WHAT = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
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
        if isinstance(value, dict) and (part in value or index == len(loc) - 1):
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
        found.setdefault((path, error["type"]), _problem(error, path, located.place(path, default)))
    return sorted(found.values(), key=lambda problem: problem.place or default)


def _problem(error: Any, path: Path_, place: Place) -> Problem:
    kind, context, value = error["type"], error.get("ctx") or {}, error.get("input")
    key = _key(path)
    if kind == "extra_forbidden":
        section = ".".join(part for part in error["loc"][:-1] if isinstance(part, str))
        return Problem(f"unknown key '{path[-1]}'", place, cure_unknown(section, str(path[-1])))
    if kind == "missing":
        return Problem(f"'{key}' is missing", place, "a recipe needs it")
    if kind == "literal_error":
        words = str(context.get("expected", "")).replace("'", "")
        return Problem(f"'{key}' is {_shown(value)}", place, f"it may be {words}")
    if kind == "value_error":
        message, _, cure = str(context.get("error", error["msg"])).partition("; ")
        return Problem(f"{key}: {message}" if key else message, place, cure)
    if kind in _WHAT:
        article = f"it must be {_WHAT[kind]}"
        if kind.startswith("bool") and isinstance(value, str):
            article += ", written true or false"
        return Problem(f"'{key}' is {_shown(value)}", place, article)
    limits = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}
    if kind in limits:
        words = kind.replace("_", " ").replace("than equal", "than or equal to")
        return Problem(f"'{key}' is {_shown(value)}", place, f"it must be {words} {context[limits[kind]]}")
    if kind == "finite_number":
        return Problem(f"'{key}' is {_shown(value)}", place, "it must be a finite number")
    if kind == "too_short":
        return Problem(f"'{key}' is an empty list", place, "write at least one entry or remove the key")
    if kind == "string_too_short":
        return Problem(f"'{key}' is empty", place, "write a value or remove the key")
    message = str(error["msg"])
    return Problem(f"'{key}': {message[0].lower()}{message[1:]}" if key else message, place)
