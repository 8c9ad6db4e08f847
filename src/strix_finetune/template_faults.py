"""Jinja's faults as one sentence with the line to look at and a cure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateSyntaxError, UndefinedError
from jinja2.utils import missing

from strix_finetune.errors import Place, Problem, TemplateError, nearest

# tags that a later tag closes
_PAIRED = ("if", "for", "block", "macro", "call", "filter", "with", "autoescape", "set")
_TAGS = (
    *_PAIRED,
    *(f"end{tag}" for tag in _PAIRED),
    "else",
    "elif",
    "extends",
    "include",
    "import",
    "from",
    "do",
    "raw",
)


class Unknown(UndefinedError):
    """A name that is not there. `owner` is what should have had it, None for a plain variable."""

    def __init__(self, owner: Any, name: Any, message: str | None = None) -> None:
        super().__init__(message)
        self.owner, self.name = owner, name

    def problem(self, known: Mapping[str, Any], place: Place | None) -> Problem:
        """The sentence; `known` are the variables that the template has."""
        message = _first_sentence(self.message or "")
        if self.owner is None:
            # Jinja has more to say of some, such as a parameter that a macro was not given
            cure = nearest(str(self.name), sorted(known)) if message == f"'{self.name}' is undefined" else ""
            return Problem(message, place, cure or "give it")
        group = next((name for name, value in known.items() if value is self.owner), "")
        if not group:
            return Problem(message, place, "check its spelling")
        names = self.owner if isinstance(self.owner, Mapping) else vars(self.owner)
        cure = nearest(str(self.name), sorted(names)) if names else "none is defined"
        if group == "vars":
            cure += " A new one goes into [vars] of layer.toml" if cure.endswith("?") else ", or define it in [vars]"
        return Problem(f"there is no '{group}.{self.name}'", place, cure)


class Missing(StrictUndefined):
    """Strict, and its error knows what was looked up where."""

    __slots__ = ()

    def __init__(
        self, hint: str | None = None, obj: Any = missing, name: str | None = None, exc: Any = UndefinedError
    ) -> None:
        if exc is UndefinedError and name is not None:
            exc = functools.partial(Unknown, None if obj is missing else obj, name)
        super().__init__(hint, obj, name, exc)


def printable(value: Any) -> Any:
    """What `{{ … }}` may print. A list, a function or nothing at all would print Python's words for it."""
    if isinstance(value, StrictUndefined | str | int | float):
        return value
    if callable(value):
        name = getattr(value, "__name__", "it").removeprefix("safe_")
        raise TemplateError(Problem(f"'{name}' is a function and has no text", cure=f"call it: {name}('…')"))
    if isinstance(value, Mapping) or hasattr(value, "__dict__"):
        raise TemplateError(Problem("a group of values has no text", cure="name one of its values"))
    if value is None:
        raise TemplateError(Problem("nothing would be printed here", cure="print a value, or use {% do %}"))
    raise TemplateError(Problem("a list has no text", cure="join it: | join(' '), or print it with | tojson"))


def syntax_problem(environment: Environment, error: TemplateSyntaxError, path: Path, text: str) -> Problem:
    """`text`: the source of the template at fault."""
    message, line = str(error.message or error), error.lineno
    innermost = re.search(r"innermost block that needs to be closed is '(\w+)'", message)
    if message.startswith("Unexpected end of template") and innermost:
        tag = innermost[1]
        place = Place(path, _opening(environment, text, tag) or line)
        return Problem(f"the block '{tag}' is never closed", place, f"add {{% end{tag} %}}")
    unknown = re.match(r"Encountered unknown tag '(\w+)'", message)
    cure = ""
    if unknown and innermost:
        opened = _opening(environment, "\n".join(text.split("\n")[: line - 1]), innermost[1])
        where = f" of line {opened}" if opened else ""
        cure = f"the '{innermost[1]}'{where} must be closed first"
    elif unknown:
        cure = "it closes nothing" if unknown[1].startswith("end") else nearest(unknown[1], _TAGS)
    elif close := name_cure(environment, message):
        cure = close
    elif re.search(r"\{\{-?\s*\.", _line(text, line)):
        cure = "write a literal {{ as {% raw %}{{{% endraw %}"
    return Problem(_first_sentence(message), Place(path, line), cure or "check the tags and brackets of this line")


def name_cure(environment: Environment, message: str) -> str:
    """The nearest filter or test when `message` says that there is none of a name, else an empty string."""
    named = re.match(r"No (filter|test) named '(\w+)'", message)
    if not named:
        return ""
    return nearest(named[2], sorted(environment.filters if named[1] == "filter" else environment.tests))


def refined(place: Place, word: str) -> Place | None:
    """Jinja names the line where a tag begins; the word that is at fault may stand some lines below it.

    None when it does not stand in that tag.
    """
    try:
        lines = place.path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return None
    start = place.line or 1
    found = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    for number, line in enumerate(lines[start - 1 : start + 60], start):
        if found.search(line):
            return Place(place.path, number)
        if re.search(r"[}%]\}\s*$", line):
            break
    return None


def _opening(environment: Environment, text: str, tag: str) -> int | None:
    """The line of the innermost `tag` that is still open at the end of `text`."""
    opened: list[tuple[str, int]] = []
    try:
        for name, line, assigns in _tags(environment.lex(text)):
            if name.startswith("end") and opened and opened[-1][0] == name.removeprefix("end"):
                opened.pop()
            elif name in _PAIRED and not assigns:
                opened.append((name, line))
    except TemplateSyntaxError:
        return None
    return next((line for name, line in reversed(opened) if name == tag), None)


def _tags(tokens: Iterable[tuple[int, str, str]]) -> Iterator[tuple[str, int, bool]]:
    """Name and line of each tag, and whether it holds "=": `{% set x = 1 %}` needs no end."""
    name, start, inside, assigns = "", 0, False, False
    for line, kind, value in tokens:
        if kind == "block_begin":
            name, start, inside, assigns = "", line, True, False
        elif kind == "block_end":
            yield name, start, assigns and name == "set"
            inside = False
        elif inside and kind == "name" and not name:
            name = value
        elif inside and kind == "operator" and value == "=":
            assigns = True


def _first_sentence(message: str) -> str:
    """Jinja writes several sentences with capitals and stops."""
    message = re.sub(r"\w+\.<locals>\.", "", message.splitlines()[0] if message else "it fails")
    message = re.split(r"\.\s", message)[0].rstrip(".").removesuffix(" found")
    return message[:1].lower() + message[1:]


def plain(error: BaseException) -> str:
    return _first_sentence(str(error) or type(error).__name__)


def _line(text: str, number: int) -> str:
    lines = text.split("\n")
    return lines[number - 1] if 0 < number <= len(lines) else ""
