"""Read one TOML file into a strict model; every fault is a Problem with file:line, and none hides another."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from strix_finetune.errors import Place, Problem, nearest
from strix_finetune.model import Source
from strix_finetune.tomlpos import Positions

M = TypeVar("M", bound=BaseModel)


def read(path: Path, model: type[M], problems: list[Problem]) -> tuple[M, Source] | None:
    """Read and validate `path`; on any fault append to `problems` and return None."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        problems.append(Problem("the file is missing", Place(path), "create it or remove its folder"))
        return None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problems.append(Problem("the file is not UTF-8", Place(path, line), "save it as UTF-8"))
        return None
    except OSError as error:
        problems.append(Problem(f"the file cannot be read ({error.strerror})", Place(path)))
        return None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(syntax_problem(path, text, error))
        return None
    source = Source(path, Positions(text))
    try:
        return model.model_validate(data), source
    except ValidationError as error:
        problems.extend(validation_problems(source, model, error))
        return None


def syntax_problem(path: Path, text: str, error: tomllib.TOMLDecodeError) -> Problem:
    """`tomllib` says "... (at line 3, column 5)" or "(at end of document)": turn that into a place."""
    message = str(error)
    found = re.search(r"\(at line (\d+), column \d+\)", message)
    line = int(found.group(1)) if found else text.count("\n") + 1
    reason = message.split(" (at ")[0]
    return Problem(f"not valid TOML: {reason[:1].lower()}{reason[1:]}", Place(path, line))


def validation_problems(source: Source, model: type[BaseModel], error: ValidationError) -> list[Problem]:
    """One Problem for each key that is at fault (a union reports each of its branches: keep the first)."""
    problems: dict[tuple[str | int, ...], Problem] = {}
    for fault in error.errors(include_url=False):
        location = _real_path(fault["loc"], source)
        if location in problems:
            continue
        place = Place(source.path, source.positions.line(location) or 1)
        name = ".".join(str(part) for part in location)
        problems[location] = Problem(*_sentence(name, location, model, fault["type"], fault["msg"], place))
    return list(problems.values())


def _sentence(
    name: str, location: Sequence[str | int], model: type[BaseModel], kind: str, message: str, place: Place
) -> tuple[str, Place, str]:
    if kind == "extra_forbidden":
        return f"unknown key '{name}'", place, nearest(str(location[-1]), sorted(_fields(model, location[:-1])))
    if kind == "missing":
        return f"the key '{name}' is missing", place, "add it"
    return f"'{name}': {message[:1].lower()}{message[1:]}", place, ""


def _real_path(location: Sequence[str | int], source: Source) -> tuple[str | int, ...]:
    """Drop what pydantic adds to a path that the file does not have (the branch names of a union, "[key]")."""
    return tuple(part for part in location if part not in ("str", "int", "bool", "list[str]", "[key]"))


def _fields(model: type[BaseModel], location: Sequence[str | int]) -> set[str]:
    """The keys that are allowed at `location`."""
    current: Any = model
    for part in location:
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = field.annotation if field else None
        else:
            arguments = getattr(current, "__args__", ())
            current = arguments[-1] if arguments else None
        # list[X], dict[K, X] and X | None lead to X by the next step or here
        arguments = [item for item in getattr(current, "__args__", ()) if item is not type(None)]
        if len(arguments) == 1 and "|" in str(current):
            current = arguments[0]
    return set(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else set()
