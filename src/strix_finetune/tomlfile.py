"""Read one TOML file into a strict model; every fault is a Problem with file:line, and none hides another."""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from strix_finetune import schema
from strix_finetune.errors import Place, Problem, nearest
from strix_finetune.model import Source
from strix_finetune.tomlpos import Positions

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

M = TypeVar("M", bound=BaseModel)
KeyPath = tuple[str | int, ...]


# more than a person writes; what is larger is a mistake such as a link to an image
LARGEST = 1 << 20

# pydantic's words for a fault → TOML's
_WORDS = {
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}
_PATTERNS = {
    schema.Name: "may hold lower-case letters, digits and '.', '_', '-' between them",
    schema.PackageName: "must be the name of a Debian package",
    schema.RelativePath: "must be a path below this folder, without '..'",
    schema.Sha256: "must be the 64 lower-case digits of a sha256",
}
# the one union in the schema: the value of a variable
_VALUE = "must be a string, a whole number, true or false, or a list of strings"


def read(path: Path, model: type[M], problems: list[Problem]) -> tuple[M, Source] | None:
    """Read and validate `path`; on any fault append to `problems` and return None."""
    text = read_text(path, problems)
    if text is None:
        return None
    try:
        data = tomllib.loads(text)
        source = Source(path, Positions(text))
    except (ValueError, RecursionError) as error:
        problems.append(syntax_problem(path, text, error))
        return None
    try:
        return model.model_validate(data), source
    except ValidationError as error:
        problems.extend(validation_problems(source, model, error, data))
        return None


def read_text(path: Path, problems: list[Problem]) -> str | None:
    """The text of a file that a person wrote; on any fault append to `problems` and return None."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            problems.append(Problem("this is no regular file", Place(path), "put a text file here"))
            return None
        if state.st_size > LARGEST:
            size = f"{state.st_size / 1e6:.0f} MB"
            problems.append(
                Problem(f"the file has {size}, which no definition needs", Place(path), "is it the right one?")
            )
            return None
        return path.read_text("utf-8")
    except FileNotFoundError:
        problems.append(Problem("the file is missing", Place(path), "create it"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problems.append(Problem("the file is not UTF-8", Place(path, line), "save it as UTF-8"))
    except OSError as error:
        problems.append(Problem(f"the file cannot be read ({error.strerror})", Place(path)))
    return None


def is_file(path: Path) -> bool:
    """Whether `path` is a file; a name that cannot be one (too long, say) is not."""
    try:
        return path.is_file()
    except OSError:
        return False


def syntax_problem(path: Path, text: str, error: ValueError | RecursionError) -> Problem:
    """`tomllib` says "... (at line 3, column 5)" or "(at end of document)": turn that into a place."""
    if isinstance(error, RecursionError):
        lines = text.split("\n")
        deepest = max(range(len(lines)), key=lambda number: lines[number].count("[") + lines[number].count("{"))
        return Problem("not valid TOML: it is nested too deeply", Place(path, deepest + 1))
    message = str(error)
    found = re.search(r"\(at line (\d+), column \d+\)", message)
    if not isinstance(error, tomllib.TOMLDecodeError):
        # a number beyond what Python reads: the longest run of digits is it
        longest = max(re.findall(r"\d+", text), key=len, default="")
        line = text.count("\n", 0, text.find(longest)) + 1
        return Problem("not valid TOML: a number has too many digits", Place(path, line))
    line = int(found.group(1)) if found else text.count("\n") + 1
    reason = message.split(" (at ")[0]
    cure = "save it without a byte order mark" if text.startswith("\ufeff") else ""
    return Problem(f"not valid TOML: {reason[:1].lower()}{reason[1:]}", Place(path, line), cure)


def validation_problems(
    source: Source, model: type[BaseModel], error: ValidationError, data: Mapping[str, Any]
) -> list[Problem]:
    """One Problem for each key that is at fault."""
    problems: dict[KeyPath, Problem] = {}
    faults = error.errors(include_url=False)
    # a mistyped key is said once, not as missing as well
    mistyped = {
        (fault["loc"][:-1], nearest(str(fault["loc"][-1]), sorted(_fields(model, fault["loc"][:-1]))))
        for fault in faults
        if fault["type"] == "extra_forbidden"
    }
    for fault in faults:
        if fault["type"] == "missing" and (fault["loc"][:-1], f"did you mean '{fault['loc'][-1]}'?") in mistyped:
            continue
        location, is_union = _real_path(fault["loc"], data, missing=fault["type"] == "missing")
        if location in problems:
            continue
        place = Place(source.path, source.positions.line(location) or 1)
        # a quoted key may hold line breaks; a sentence may not
        name = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in ".".join(map(str, location)))
        if is_union:
            problems[location] = Problem(f"'{name}' {_VALUE}", place)
        else:
            message, cure = _sentence(name, location, model, fault)
            problems[location] = Problem(message, place, cure)
    return list(problems.values())


def _sentence(name: str, location: KeyPath, model: type[BaseModel], fault: ErrorDetails) -> tuple[str, str]:
    kind, message = fault["type"], fault["msg"]
    if kind == "extra_forbidden":
        return f"unknown key '{name}'", nearest(str(location[-1]), sorted(_fields(model, location[:-1])))
    if kind == "missing":
        return f"the key '{name}' is missing", "add it"
    if kind == "literal_error" and isinstance(fault["input"], str):
        known = re.findall(r"'([^']*)'", fault.get("ctx", {}).get("expected", ""))
        return f"'{name}' cannot be '{fault['input'][:60]}'", nearest(fault["input"], known)
    if kind == "string_pattern_mismatch":
        pattern = fault.get("ctx", {}).get("pattern")
        words = next((said for known, said in _PATTERNS.items() if get_args(known)[1].pattern == pattern), "")
        if words:
            return f"'{name}' {words}", ""
    return f"'{name}' {_WORDS[kind]}" if kind in _WORDS else f"'{name}': {message[:1].lower()}{message[1:]}", ""


def _real_path(location: KeyPath, data: Any, *, missing: bool) -> tuple[KeyPath, bool]:
    """The path that the file has, and whether a union ended it.

    pydantic adds to a path the branches of a union and "[key]" where the name of a key is at fault.
    """
    path: list[str | int] = []
    for number, part in enumerate(location):
        within = isinstance(data, dict) and part in data
        within = within or (isinstance(data, list) and isinstance(part, int) and part < len(data))
        if within:
            path.append(part)
            data = data[part]
        elif missing and number == len(location) - 1:
            path.append(part)
        else:
            return tuple(path), part != "[key]"
    return tuple(path), False


def _fields(model: type[BaseModel], location: KeyPath) -> set[str]:
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
