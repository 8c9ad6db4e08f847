"""The one Jinja environment: sandboxed, strict, blind to the host.

Comment delimiters are `<# #>`, because `${#array[@]}` is shell.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Environment, TemplateNotFound, TemplateSyntaxError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strix_finetune.errors import Place, Problem, TemplateError, nearest
from strix_finetune.model import Project
from strix_finetune.template_faults import Missing, Unknown, name_cure, plain, printable, refined, syntax_problem
from strix_finetune.template_places import MarkLines, Rendered, align, fill, unmark

__all__ = ["LayerLoader", "Rendered", "Templates", "make_environment"]

# not the same each time they are asked
_UNSTEADY_GLOBALS = ("lipsum",)
_UNSTEADY_FILTERS = ("random", "pprint")


class LayerLoader(BaseLoader):
    """Finds `layer:<name>` (the shipped template), `user:<name>` (the override's) and `macros.j2`."""

    def __init__(self, project: Project) -> None:
        self._paths: dict[str, Path] = {"macros.j2": project.macros}
        for name, layer in project.layers.items():
            self._paths[f"layer:{name}"] = layer.templates[-1]
            if len(layer.templates) > 1:
                self._paths[f"user:{name}"] = layer.templates[0]

    def entry(self, layer: str) -> str:
        return f"user:{layer}" if f"user:{layer}" in self._paths else f"layer:{layer}"

    def path(self, name: str) -> Path:
        return self._paths[name]

    def list_templates(self) -> list[str]:
        return sorted(self._paths)

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        path = self._paths.get(template)
        if path is None:
            raise TemplateNotFound(template)
        try:
            return path.read_text("utf-8"), str(path), lambda: True
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            # without a place: the line that asks for it says more
            raise TemplateError(
                Problem(f"the template {path} cannot be read ({reason})", cure="put it there")
            ) from error
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise TemplateError(Problem("the template is not UTF-8", Place(path, line), "save it as UTF-8")) from error


def make_environment(loader: BaseLoader, extensions: Sequence[Any] = ()) -> Environment:
    environment = ImmutableSandboxedEnvironment(
        loader=loader,
        undefined=Missing,
        finalize=printable,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="<#",
        comment_end_string="#>",
        extensions=["jinja2.ext.do", *extensions],
    )
    for name in _UNSTEADY_GLOBALS:
        del environment.globals[name]
    for name in _UNSTEADY_FILTERS:
        del environment.filters[name]
    return environment


class Templates:
    """Renders the templates of one project."""

    def __init__(self, project: Project) -> None:
        self._loader = LayerLoader(project)
        self._environment = make_environment(self._loader)
        self._marked: Environment | None = None
        self._files: list[Path] = []

    def render(self, layer: str, values: Mapping[str, Any]) -> Rendered:
        """Render a layer's template. Raises TemplateError with the template's file:line."""
        name = self._loader.entry(layer)
        try:
            text = self._environment.get_template(name).render(values)
        except TemplateSyntaxError as error:
            path = Path(error.filename or self._loader.path(name))
            problem = syntax_problem(self._environment, error, path, error.source or "")
            raise TemplateError(problem) from error
        except TemplateError as error:
            # raised by a function that the template called: add the place of the call
            problem = error.problems[0]
            raise TemplateError(
                Problem(problem.message, problem.place or self._where(error, name, problem.message), problem.cure)
            ) from error
        except RecursionError as error:
            raise TemplateError(
                Problem("the template calls or includes itself", self._where(error, name), "end the recursion")
            ) from error
        except (JinjaError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, MemoryError) as error:
            raise TemplateError(self._problem(error, name, values)) from error
        return Rendered(text, functools.cache(lambda: self._places(name, values, text)))

    def _problem(self, error: Exception, name: str, values: Mapping[str, Any]) -> Problem:
        if isinstance(error, Unknown):
            return error.problem(values, self._where(error, name, f"'{error.name}'"))
        if isinstance(error, TemplateNotFound):
            message = f"there is no template '{error.name}'"
            return Problem(message, self._where(error, name), nearest(str(error.name), self._loader.list_templates()))
        prefix = "" if isinstance(error, JinjaError) else "the template fails: "
        cure = name_cure(self._environment, str(error)) or "check the values of this line"
        return Problem(f"{prefix}{plain(error)}", self._where(error, name), cure)

    def _where(self, error: BaseException, name: str, message: str = "") -> Place:
        """Jinja puts its templates into the traceback as if they were Python files: the innermost is the place, or the
        innermost that holds the word which `message` quotes (an undefined argument fails inside the macro)."""
        places: list[Place] = []
        frame = error.__traceback__
        known = {str(self._loader.path(other)) for other in self._loader.list_templates()}
        while frame is not None:
            if frame.tb_frame.f_code.co_filename in known:
                places.insert(0, Place(Path(frame.tb_frame.f_code.co_filename), frame.tb_lineno))
            frame = frame.tb_next
        quoted = message.split("'")
        if len(quoted) > 2:
            # thousands of frames only when a template calls itself, and then the innermost will do
            places[:0] = [found for place in places[:20] if (found := refined(place, quoted[-2]))][:1]
        return places[0] if places else Place(self._loader.path(name))

    def _places(self, name: str, values: Mapping[str, Any], text: str) -> list[Place]:
        """The template line behind each line of `text`."""
        if self._marked is None:
            self._marked = make_environment(self._loader, [MarkLines])
            self._marked.extend(marked_files=self._file_number)
        first = Place(self._loader.path(name), 1)
        try:
            marked, places = unmark(self._marked.get_template(name).render(values), self._files)
        except (JinjaError, TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
            # a value with marks in it went where only a plain one can go
            return [first] * (text.count("\n") + 1)
        return fill(align(text, marked, places), first)

    def _file_number(self, filename: str) -> int:
        path = Path(filename)
        if path not in self._files:
            self._files.append(path)
        return self._files.index(path)
