"""YAML read with the place of every key and value, and with numbers read the way people write them.

PyYAML follows YAML 1.1, where `5e-5` is text and `on` is true. Here `5e-5` is a number, only `true` and `false`
are booleans, a key given twice is an error, and every node remembers its line and column.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from strix_train.errors import InputError, Place, Problem, at

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
Path_ = tuple[str | int, ...]

_RESOLVERS: tuple[tuple[str, str, str], ...] = (
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", "~nN"),
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:int", r"^[-+]?[0-9][0-9_]*$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the resolvers above in place of YAML 1.1's."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first) + ([""] if "null" in _tag else []))


@dataclass(slots=True)
class Located:
    """A YAML document: plain values, and the place of each by its path of keys and indices."""

    value: Any
    places: dict[Path_, Place] = field(default_factory=dict)

    def place(self, path: Path_, default: Place) -> Place:
        """Return the place of `path`, or of its nearest enclosing value that is in the file."""
        for length in range(len(path), 0, -1):
            found = self.places.get(path[:length])
            if found is not None:
                return found
        return default


def read(path: Path) -> Located:
    """Read one YAML document from a file. Raises InputError with file, line and column."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(Problem(f"cannot be read: {error.strerror}", at(path), "look at the file's rights")) from None
    if len(raw) > MAX_BYTES:
        raise InputError(Problem("is larger than 1 MiB", at(path), "a recipe is a short YAML file"))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        raise InputError(
            Problem(f"byte 0x{raw[error.start]:02x} is not UTF-8", at(path, line, column), "save the file as UTF-8")
        ) from None
    return parse(text, str(path))


def parse(text: str, source: str) -> Located:
    """Read one YAML document from text; `source` names it in messages."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            located = Located(None)
            if node is not None:
                located.value = _Builder(loader, source, located.places).build(node, (), frozenset())
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(
            Problem(f"a character that YAML forbids (code {error.character})", Place(source, line), "remove it")
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source)
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise InputError(Problem(f"is not valid YAML: {what}", place, _yaml_cure(what))) from None
    except RecursionError:
        raise InputError(Problem("is nested too deeply", Place(source), "a recipe has two or three levels")) from None
    return located


def _yaml_cure(what: str) -> str:
    if "'\\t'" in what:
        return "indent with spaces, not tabs"
    if "mapping values are not allowed" in what:
        return "quote a text that holds ': '"
    if "alias" in what or "anchor" in what:
        return "quote a text that begins with '*' or '&'"
    for words, cure in _CURES.items():
        if words in what:
            return cure
    return "look at this line and the one above it"


_CURES = {
    "single document": "a recipe is one document: remove '---' and what follows",
    "quoted scalar": "close the quote, or write the text without quotes",
    "flow": "close the bracket, and put commas between entries",
    "block": "indent keys of one section alike",
    "could not find expected ':'": "write `key: value`",
    "cannot start any token": "quote a text that begins with a special character",
    "escape": "write a backslash in double quotes as \\\\, or use single quotes",
}


class _Builder:
    """Turns YAML nodes into plain values, counting them so that aliases cannot blow a file up."""

    def __init__(self, loader: _Loader, source: str, places: dict[Path_, Place]) -> None:
        self.loader = loader
        self.source = source
        self.places = places
        self.count = 0

    def where(self, node: yaml.Node) -> Place:
        return Place(self.source, node.start_mark.line + 1, node.start_mark.column + 1)

    def build(self, node: yaml.Node, path: Path_, above: frozenset[int]) -> Any:
        self.count += 1
        if self.count > MAX_NODES or id(node) in above:
            raise InputError(Problem("repeats itself through aliases without end", self.where(node), "write it out"))
        self.places.setdefault(path, self.where(node))
        above = above | {id(node)}
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, above)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index), above) for index, item in enumerate(node.value)]
        return self.scalar(node)

    def mapping(self, node: yaml.MappingNode, path: Path_, above: frozenset[int]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError(Problem("a key must be a plain word", self.where(key_node), "write `key: value`"))
            key = str(key_node.value)
            if key in result:
                raise InputError(Problem(f"key '{key}' is given twice", self.where(key_node), "remove one of the two"))
            self.places[(*path, key)] = self.where(key_node)
            result[key] = self.build(value_node, (*path, key), above)
        return result

    def scalar(self, node: yaml.Node) -> Any:
        text = str(node.value)
        kind = node.tag.rsplit(":", 1)[-1]
        if kind == "null":
            return None
        if kind == "bool":
            if text.lower() not in ("true", "false"):
                raise InputError(
                    Problem(f"{text[:40]!r} is neither true nor false", self.where(node), "remove the tag")
                )
            return text.lower() == "true"
        if kind == "int":
            digits = text.replace("_", "")
            return self._number(node, lambda: int(digits) if len(digits) <= 30 else float(digits))
        if kind == "float":
            plain = text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")
            return self._number(node, lambda: float(plain))
        if kind == "str":
            return text
        what = f"the YAML tag '{node.tag}' has no meaning in a recipe"
        raise InputError(Problem(what, self.where(node), "remove it"))

    def _number(self, node: yaml.Node, read: Callable[[], float]) -> float:
        """Return a number. Raises InputError where a tag calls something a number that is none: `!!int abc`."""
        try:
            return read()
        except ValueError:
            raise InputError(Problem(f"{node.value[:40]!r} is no number", self.where(node), "remove the tag")) from None
