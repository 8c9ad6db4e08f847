"""The one Jinja environment: sandboxed, strict, blind to the host, and able to say which line made which line.

Comment delimiters are `<# #>`, because `${#array[@]}` is shell. Every template line that is plain text gets an
invisible mark before it is compiled; the marks come out of the rendered text again and tell, for each rendered
line, the template line that it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound, TemplateSyntaxError, UndefinedError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strix_finetune.errors import Place, Problem, TemplateError
from strix_finetune.model import Project

_MARK = re.compile("\ue000(\\d+):(\\d+)\ue001")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered text; `places[i]` is the template line behind the text's line i + 1."""

    text: str
    places: tuple[Place, ...]

    def place(self, line: int) -> Place:
        return self.places[min(max(line, 1), len(self.places)) - 1]


class LayerLoader(BaseLoader):
    """Finds `layer:<name>` (the shipped template), `user:<name>` (the override's) and `macros.j2`."""

    def __init__(self, project: Project) -> None:
        self._paths: dict[str, Path] = {"macros.j2": project.macros}
        for name, layer in project.layers.items():
            self._paths[f"layer:{name}"] = layer.templates[-1]
            if len(layer.templates) > 1:
                self._paths[f"user:{name}"] = layer.templates[0]
        self.files: list[Path] = []

    def entry(self, layer: str) -> str:
        return f"user:{layer}" if f"user:{layer}" in self._paths else f"layer:{layer}"

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        path = self._paths.get(template)
        if path is None:
            raise TemplateNotFound(template)
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise TemplateError(Problem(f"the template cannot be read ({error.strerror})", Place(path))) from error
        except UnicodeDecodeError as error:
            raise TemplateError(Problem("the template is not UTF-8", Place(path), "save it as UTF-8")) from error
        if path not in self.files:
            self.files.append(path)
        return mark(text, self.files.index(path)), str(path), lambda: True


class Templates:
    """Renders the templates of one project."""

    def __init__(self, project: Project) -> None:
        self._loader = LayerLoader(project)
        self._environment = ImmutableSandboxedEnvironment(
            loader=self._loader,
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            comment_start_string="<#",
            comment_end_string="#>",
            extensions=["jinja2.ext.do"],
        )
        # `range`, `dict` and the like are harmless; `lipsum` is not deterministic
        self._environment.globals.pop("lipsum", None)

    def render(self, layer: str, values: Mapping[str, Any]) -> Rendered:
        """Render a layer's template. Raises TemplateError with the template's file:line."""
        name = self._loader.entry(layer)
        try:
            text = self._environment.get_template(name).render(values)
        except TemplateSyntaxError as error:
            path = Path(error.filename or error.name or name)
            cure = _syntax_cure(path, error.lineno)
            raise TemplateError(Problem(_plain(error), Place(path, error.lineno), cure)) from error
        except TemplateNotFound as error:
            place = self._where(error) or Place(Path(name))
            raise TemplateError(Problem(f"there is no template '{error.name}'", place)) from error
        except JinjaError as error:
            cure = "define it in [vars] of layer.toml" if isinstance(error, UndefinedError) else ""
            raise TemplateError(Problem(_plain(error), self._where(error), cure)) from error
        except TemplateError as error:
            # raised by a function that the template called: add the place of the call
            problem = error.problems[0]
            called = problem.place or self._where(error)
            raise TemplateError(Problem(problem.message, called, problem.cure)) from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise TemplateError(Problem(f"the template fails: {error}", self._where(error))) from error
        return unmark(text, self._loader.files)

    def _where(self, error: BaseException) -> Place | None:
        """Jinja puts its templates into the traceback as if they were Python files: the innermost is the place."""
        place = None
        frame = error.__traceback__
        known = {str(path) for path in self._loader.files}
        while frame is not None:
            if frame.tb_frame.f_code.co_filename in known:
                place = Place(Path(frame.tb_frame.f_code.co_filename), frame.tb_lineno)
            frame = frame.tb_next
        return place


def _plain(error: JinjaError) -> str:
    message = str(error.message or error).splitlines()[0].rstrip(".")
    return message[:1].lower() + message[1:]


def _syntax_cure(path: Path, line: int) -> str:
    try:
        text = path.read_text("utf-8").splitlines()[line - 1]
    except (OSError, IndexError, UnicodeDecodeError):
        return ""
    if re.search(r"\{\{\s*\.", text):
        return "write a literal {{ as {% raw %}{{{% endraw %}"
    return ""


def mark(text: str, number: int) -> str:
    """Add an invisible mark at the end of each line that is plain text where it ends and starts.

    Lines that open or close a block tag at their ends stay as they are: trim_blocks and lstrip_blocks look there.
    """
    marked = []
    inside = ""
    closing = {"{{": "}}", "{%": "%}", "<#": "#>"}
    for count, line in enumerate(text.split("\n"), 1):
        began_inside = bool(inside)
        position = 0
        while position < len(line):
            pair = line[position : position + 2]
            if inside:
                if pair == inside:
                    inside = ""
                    position += 1
            elif pair in closing:
                inside = closing[pair]
                position += 1
            position += 1
        stripped = line.strip()
        plain = not began_inside and not inside and stripped
        if plain and not stripped.startswith(("{%", "<#")) and not stripped.endswith(("%}", "#>", "-}}")):
            line = f"{line}\ue000{number}:{count}\ue001"
        marked.append(line)
    return "\n".join(marked)


def unmark(text: str, files: list[Path]) -> Rendered:
    """Take the marks out again; a rendered line without one has the place of the next marked line."""
    lines = []
    places: list[Place | None] = []
    for line in text.split("\n"):
        found = _MARK.findall(line)
        lines.append(_MARK.sub("", line))
        places.append(Place(files[int(found[-1][0])], int(found[-1][1])) if found else None)
    following: Place = next((place for place in reversed(places) if place), Place(files[0], 1))
    filled: list[Place] = []
    for place in reversed(places):
        if place is not None:
            following = place
        filled.append(following)
    return Rendered("\n".join(lines), tuple(reversed(filled)))
