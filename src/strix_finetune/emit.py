"""Definitions for other tools, from the templates in `toolbox/`: pure but for reading those.

A rendered file says in its first lines that it is ours, with a digest of the rest: so a file that somebody has edited
is known, and not overwritten.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from strix_finetune import hostwsl
from strix_finetune.caches import CACHES, ENVIRONMENT, TOKEN
from strix_finetune.errors import InputError, Place, Problem, TemplateError

# stands in a template where the line goes that says whose the file is
MARK = "@mark@"
_MARKED = re.compile(r"^(?:#|//) made by strix-finetune emit \w+, digest ([0-9a-f]{12}).*\n", re.M)
# neither all engines' --mount and --volume nor all of these file formats can hold them
_UNHOLDABLE = re.compile(r"[,:\"'\\$%`\x00-\x1f\x7f]")
IMAGE = re.compile(r"[a-z0-9][\w.:/-]*(?:@sha256:[0-9a-f]{64})?")
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_WSL = {
    "device": hostwsl.DEVICE,
    "dxcore": hostwsl.DXCORE,
    "dxcore_inside": hostwsl.DXCORE_INSIDE,
    "bridge": hostwsl.BRIDGE_INSIDE,
    "environment": hostwsl.ENVIRONMENT,
}
_DEVICE = re.compile(r"/dev/[\w./-]+")


def holdable(path: str) -> None:
    """Raises InputError for a path that a definition could not mount."""
    if found := _UNHOLDABLE.search(path):
        raise InputError(f"the path '{path}' has {found[0]!r}, which no mount can hold", cure="use another path")


@dataclass(frozen=True, slots=True)
class Kind:
    """`files`: template → ending of the emitted file. `options`: what of the command line it makes use of."""

    files: Mapping[str, str]
    options: frozenset[str]


_HERE = {"image", "name", "device", "group", "user", "project", "hf_token", "shm", "rdma", "selinux", "command"}
KINDS: Mapping[str, Kind] = {
    "distrobox": Kind({"distrobox.ini.j2": ".ini"}, frozenset({"image", "name", "rdma"})),
    "quadlet": Kind(
        {"quadlet.container.j2": ".container", "quadlet.image.j2": ".image"}, frozenset(_HERE - {"group", "user"})
    ),
    "compose": Kind({"compose.yaml.j2": ".yaml"}, frozenset({*_HERE, "engine"})),
    "devcontainer": Kind({"devcontainer.json.j2": ".json"}, frozenset({*_HERE, "engine"} - {"project", "command"})),
    "docker": Kind({"run.sh.j2": ".sh"}, frozenset(_HERE - {"name"})),
    "podman": Kind({"run.sh.j2": ".sh"}, frozenset(_HERE - {"name", "group", "user"})),
    "udev": Kind({"udev.rules.j2": ".rules"}, frozenset({"access"})),
    "modprobe": Kind({"modprobe.conf.j2": ".conf"}, frozenset({"gtt", "module"})),
    "wsl": Kind({"wsl.sh.j2": ".sh"}, frozenset({"image", "user", "project", "hf_token", "shm", "command"})),
    "toolbox": Kind({"toolbox.conf.j2": ".conf"}, frozenset({"image", "name"})),
}


@dataclass(frozen=True, slots=True)
class Values:
    """What the templates see. Empty means: found out where the definition is used, or left to the tool.

    `devices`: device files; `groups`: their groups on the host, as numbers; `user`: "UID:GID"; `project`: the folder
    that is mounted; `token`: a file; `moved`: caches that are not in their usual places, by name; `shm`, `gtt`: GiB.
    Raises InputError for what no definition could hold.
    """

    image: str
    name: str = "strix-finetune"
    gpu: bool = True
    engine: str = "docker"
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    user: str = ""
    project: str = ""
    token: str = ""
    moved: Mapping[str, str] = field(default_factory=dict)
    shm: int = 8
    rdma: bool = False
    selinux: bool = False
    command: tuple[str, ...] = ()
    access: str = "group"
    gtt: int = 0
    module: str = "ttm"

    def __post_init__(self) -> None:
        if not IMAGE.fullmatch(self.image):
            raise InputError(f"'{self.image}' is no name of an image", cure="write registry/name:tag")
        if not NAME.fullmatch(self.name):
            raise InputError(f"'{self.name}' is no name of a container", cure="take lower-case letters, digits and -_.")
        for path in (self.project, self.token, *self.moved.values()):
            holdable(path)
        for device in self.devices:
            if not _DEVICE.fullmatch(device):
                raise InputError(f"'{device}' is no device file", cure="name one below /dev")
        for word in self.command:
            if re.search(r"[\x00-\x1f\x7f]", word):
                raise InputError(f"the word {word!r} has a control character", cure="put the command into a script")

    @property
    def local(self) -> bool:
        """Whether the image has no registry that it could be pulled from."""
        return self.image.startswith("localhost/")

    @property
    def run_args(self) -> list[str]:
        """What is given to `docker run` or `podman run` by a tool that does the rest of it."""
        words = [f"--device={device}" for device in (self.devices or ("/dev/kfd", "/dev/dri")) if self.gpu]
        if self.engine == "podman":
            words += ["--userns=keep-id", *["--group-add=keep-groups"] * self.gpu]
        else:
            words += [f"--group-add={group}" for group in self.groups]
        if self.rdma:
            words += ["--device=/dev/infiniband", "--ulimit=memlock=-1:-1", "--network=host"]
        return [*words, *["--security-opt=label=disable"] * self.selinux, f"--shm-size={self.shm}g"]


@dataclass(frozen=True, slots=True)
class Emitted:
    """A file: what its name ends in, its default name, and its text."""

    ending: str
    name: str
    text: str


def render(kind: str, values: Values, folder: Path) -> tuple[Emitted, ...]:
    """The files of `kind`, from the templates in `folder`. Raises TemplateError, and InputError for missing values."""
    if kind == "modprobe" and values.gtt < 1:
        raise InputError("how much memory the GPU may map is not said", cure="give --gtt GIB; doctor advises a size")
    if kind == "wsl" and not values.gpu:
        raise InputError("WSL2 is only different for a GPU", cure="take the kind docker")
    if kind in ("compose", "devcontainer") and values.gpu and values.engine == "docker" and not values.groups:
        raise InputError(
            "the groups that may use the GPU are not known here", cure="give --group for each of 'stat -c %g /dev/kfd'"
        )
    templates = list(KINDS[kind].files.items())
    if kind == "quadlet" and values.local:
        # nothing could be pulled
        templates = templates[:1]
    return tuple(
        Emitted(ending, _file_name(kind, values.name, ending), signed(kind, _render(template, values, folder)))
        for template, ending in templates
    )


def edited(text: str) -> bool:
    """Whether `text` is not, or no longer, what `render` made."""
    found = _MARKED.search(text[:400])
    return not found or found[1] != _digest(text[: found.start()] + text[found.end() :])


def _file_name(kind: str, name: str, ending: str) -> str:
    known = {"compose": "compose.yaml", "devcontainer": "devcontainer.json", "toolbox": "toolbox.conf"}
    known |= {"udev": "70-strix-finetune.rules", "modprobe": "strix-finetune.conf"}
    return known.get(kind, f"{name}{ending}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def signed(kind: str, text: str) -> str:
    """The text with the line that says whose it is, in the place of the mark."""
    line = next(line for line in text.splitlines(keepends=True) if MARK in line)
    said = f"made by strix-finetune emit {kind}, digest {_digest(text.replace(line, '', 1))}"
    return text.replace(MARK, said, 1)


def _render(template: str, values: Values, folder: Path) -> str:
    known = asdict(values) | {"local": values.local, "run_args": values.run_args, "mark": MARK}
    known |= {"caches": [{**asdict(cache), "moved": values.moved.get(cache.name, "")} for cache in CACHES]}
    known |= {"environment": ENVIRONMENT, "token_inside": TOKEN, "wsl": _WSL}
    return rendered(template, known, folder)


def rendered(template: str, known: Mapping[str, object], folder: Path) -> str:
    """One template of `folder` with what it asks for. Raises TemplateError."""
    from jinja2 import FileSystemLoader, TemplateSyntaxError
    from jinja2.exceptions import TemplateError as JinjaError

    from strix_finetune.templates import make_environment

    environment = make_environment(FileSystemLoader(folder))
    environment.filters |= {"sh": shlex.quote, "word": _unit_word, "compose": _compose, "place": _place}
    environment.filters |= {"quoted": '"{}"'.format, "json": _json}
    place = Place(folder / template)
    try:
        return environment.get_template(template).render(known)
    except TemplateSyntaxError as error:
        raise TemplateError(Problem(str(error.message), Place(folder / template, error.lineno), "mend it")) from error
    except TemplateError as error:
        raise TemplateError(Problem(error.problems[0].message, place, error.problems[0].cure)) from error
    except JinjaError as error:
        raise TemplateError(Problem(error.message or str(error), place, "mend it, or install anew")) from error


def _place(cache: Mapping[str, str], home: str) -> str:
    """Where a cache lies, in the words of a tool whose word for the home is `home`."""
    return cache["moved"] or f"{home}/.cache/{cache['folder']}"


def _unit_word(text: str) -> str:
    """One word of a command line in a unit: neither a variable nor a specifier is meant."""
    plain = text.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w./=:@,+%$-]+", plain):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _json(value: object) -> str:
    """As JSON that YAML reads as the same: some characters end lines there, and a pair of escapes is two letters."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _compose(value: str | Sequence[str]) -> str:
    """As YAML; compose reads variables in every value."""
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")
