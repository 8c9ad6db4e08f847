"""Check a rendered Dockerfile against the subset that Docker 20.10's BuildKit and buildah 1.28 share: pure.

Each fault names the template line. The rules are the project's own as well: no ENTRYPOINT (it breaks Toolbx), no
variable in ENV that hides a GPU or fakes an architecture, no secret, nothing fetched that the lock does not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from strix_finetune.dockerfile import Instruction, Word, exec_form, heredoc_offsets, instructions, words
from strix_finetune.errors import Problem
from strix_finetune.names import PREFIX
from strix_finetune.templates import Rendered

INSTRUCTIONS = frozenset(
    {"ADD", "ARG", "CMD", "COPY", "ENV", "ENTRYPOINT", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER"}
    | {"ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)
# the flags that both engines know
FLAGS = {
    "ADD": ("chown", "chmod"),
    "COPY": ("from", "chown", "chmod"),
    "FROM": ("platform",),
    "HEALTHCHECK": ("interval", "timeout", "start-period", "retries"),
    "RUN": ("mount",),
}
MOUNTS = ("bind", "cache", "tmpfs")
# variables that must never be baked in: they hide GPUs, fake architectures or break Toolbx
BANNED_ENV = (
    "LD_PRELOAD",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HSA_OVERRIDE_GFX_VERSION",
)
_DIRECTIVE = re.compile(r"\s*#\s*(syntax|escape|check)\s*=", re.IGNORECASE)
_SECRET = re.compile(
    r"(hf|github|gh|gitlab|hugging_?face(_hub)?)_token|.*(passw(or)?d|secret_key|access_token|api_key)", re.IGNORECASE
)
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://|git@|//", re.IGNORECASE)
_LOCKED = re.compile(rf".+@sha256:[0-9a-f]{{64}}|{re.escape(PREFIX)}/[^:@]+:[^:@]+-[0-9a-f]{{12}}")
# a requirement whose version is empty: name, extras, comparisons that are whole, and one that is not
_NO_VERSION = re.compile(
    r"([A-Za-z0-9][\w.-]*\s*(?:\[[\w\s,.-]*\])?\s*(?:(?:[=~!<>]=|===|[<>])\s*[\w.*+!-]+\s*,\s*)*(?:===|[=~!<>]=))\s*"
)
# commands that look for a text or compare texts
_PATTERN_COMMANDS = ("grep", "egrep", "fgrep", "rg", "sed", "awk", "gawk", "mawk", "expr", "test", "[", "[[", "case")

# of an instruction as a whole, not of one of its words
WHOLE = -1

Fault = tuple[int, str, str]


def lint(rendered: Rendered) -> list[Problem]:
    """Every fault of a rendered Dockerfile."""
    problems: list[Problem] = []
    for number, line in enumerate(rendered.text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if _DIRECTIVE.match(line):
            message = "a parser directive is not in the subset of both engines"
            problems.append(Problem(message, rendered.place(number), "remove it"))
    stages: list[str] = []
    for item in instructions(rendered.text):
        for offset, message, cure in _faults(item, stages):
            problems.append(Problem(message, rendered.place(item.line_at(offset)), cure))
        if item.keyword == "FROM":
            stages.append(_stage_name(item) or str(len(stages)))
    if not stages:
        problems.append(Problem("the Dockerfile has no FROM", rendered.place(1), "begin with FROM {{ parent }}"))
    return problems


def _faults(item: Instruction, stages: list[str]) -> Iterator[Fault]:
    if item.keyword not in INSTRUCTIONS:
        yield WHOLE, f"'{item.keyword[:40]}' is not a Dockerfile instruction", "a backslash may be missing a line above"
        return
    if not item.body:
        yield (
            WHOLE,
            f"{item.keyword} has nothing after it",
            "a variable in it is empty: set it in [vars] or in the channel",
        )
        return
    flags, arguments = split_flags(item)
    yield from _flag_faults(item, flags, stages)
    if item.keyword == "FROM":
        yield from _from_faults(arguments, stages)
    elif item.keyword == "ENTRYPOINT":
        yield WHOLE, "ENTRYPOINT breaks Toolbx", "put the program on PATH and use CMD"
    elif item.keyword == "ONBUILD":
        keyword, *rest = item.body.split(None, 1)
        yield from _faults(Instruction(keyword.upper(), rest[0] if rest else "", item.line, item.starts), stages)
    elif item.keyword in ("ADD", "COPY"):
        yield from _copy_faults(item, arguments)
    elif item.keyword == "RUN":
        yield from _heredoc_faults(item)
        yield from _version_faults(arguments)
    elif item.keyword in ("ARG", "ENV"):
        yield from _variable_faults(item, arguments)


def split_flags(item: Instruction) -> tuple[list[Word], list[Word]]:
    """The leading --flags of an instruction, and the words behind them."""
    found = words(item.body)
    count = next((n for n, word in enumerate(found) if not word.text.startswith("--") or word.separates), len(found))
    listed = exec_form(item.body[found[count].offset :]) if count < len(found) else None
    if listed is not None:
        return found[:count], [Word(text, found[count].offset) for text in listed]
    return found[:count], found[count:]


def _flag_faults(item: Instruction, flags: list[Word], stages: list[str]) -> Iterator[Fault]:
    for word in flags:
        name, _, value = word.text.removeprefix("--").partition("=")
        if name not in FLAGS.get(item.keyword, ()):
            yield word.offset, f"{item.keyword} --{name} is not in the subset of both engines", "leave it out"
        elif name == "from":
            yield from _source_faults(value, word.offset, stages)
        elif name == "mount":
            options = dict(part.partition("=")[::2] for part in value.split(","))
            kind = options.get("type", "bind").lower()
            if kind in ("secret", "ssh"):
                message = "secrets in a build end up in somebody's layer"
                yield word.offset, message, "no build step of this project needs one"
            elif kind not in MOUNTS:
                yield word.offset, f"a mount of type '{kind}' is not in the subset of both engines", "leave it out"
            if "from" in options:
                yield from _source_faults(options["from"], word.offset, stages)


def _from_faults(arguments: list[Word], stages: list[str]) -> Iterator[Fault]:
    if not arguments or arguments[0].text.lower() == "as":
        yield WHOLE, "FROM names no image", "a variable in it is empty"
    elif arguments[0].text != "scratch":
        yield from _source_faults(arguments[0].text, arguments[0].offset, stages)


def _source_faults(name: str, offset: int, stages: list[str]) -> Iterator[Fault]:
    known = {stage.lower() for stage in stages} | {str(number) for number in range(len(stages))}
    if name.lower() not in known and not _LOCKED.fullmatch(name):
        message = f"the lock does not name the image '{name}'"
        yield offset, message, "take {{ parent }}, {{ base_image }}, {{ builder('…') }} or an earlier stage"


def _copy_faults(item: Instruction, arguments: list[Word]) -> Iterator[Fault]:
    yield from _heredoc_faults(item)
    if len(arguments) < 2:
        message = f"{item.keyword} needs a source and a destination, and has '{item.body[:60]}'"
        yield WHOLE, message, "a variable in it is empty"
    for word in arguments[:-1] if item.keyword == "ADD" else ():
        if _REMOTE.match(word.text):
            message = "ADD from the network reads what the lock does not name"
            yield word.offset, message, "declare it under [archives] in layer.toml"


def _heredoc_faults(item: Instruction) -> Iterator[Fault]:
    for offset in heredoc_offsets(item)[:1]:
        message = "a heredoc is not in the subset of both engines"
        yield offset, message, "put the text into files/ and COPY or mount it"


def _version_faults(arguments: list[Word]) -> Iterator[Fault]:
    """A requirement such as `torch==` with nothing behind it, unless the command looks for that text."""
    command = ""
    for number, word in enumerate(arguments):
        if word.separates:
            command = ""
            continue
        if not command and not re.fullmatch(
            r"[A-Za-z_]\w*=.*|if|then|else|elif|do|while|until|!|\{|time|exec", word.text
        ):
            command = word.text.rsplit("/", 1)[-1]
            if command in ("sh", "bash", "dash") and number + 2 < len(arguments) and arguments[number + 1].text == "-c":
                script = arguments[number + 2]
                yield from ((script.offset, message, cure) for _, message, cure in _version_faults(words(script.text)))
        if command not in _PATTERN_COMMANDS:
            yield from _no_version(word)


def _no_version(word: Word) -> Iterator[Fault]:
    text = re.sub(r"^(--[\w-]+|[A-Za-z_]\w*)=(?!=)", "", word.text)
    found = _NO_VERSION.fullmatch(text)
    if found:
        yield word.offset, f"'{found[1]}' has nothing after it", "the version is empty: is it in the lock?"


def _variable_faults(item: Instruction, arguments: list[Word]) -> Iterator[Fault]:
    assigns = item.keyword == "ARG" or (bool(arguments) and "=" in arguments[0].text)
    for word in arguments if assigns else arguments[:1]:
        name = word.text.partition("=")[0]
        if item.keyword == "ENV" and name in BANNED_ENV:
            yield word.offset, f"ENV {name} must not be baked into an image", "set it for one run, where it is needed"
        if _SECRET.fullmatch(name):
            yield word.offset, f"{item.keyword} {name} holds a secret", "give it at run time"
    for word in arguments:
        yield from _no_version(word)


def _stage_name(item: Instruction) -> str:
    _, arguments = split_flags(item)
    return arguments[2].text if len(arguments) == 3 and arguments[1].text.lower() == "as" else ""
