"""Check a rendered Dockerfile against the subset that Docker 20.10's BuildKit and buildah 1.28 share: pure.

Each fault names the template line. The rules are the project's own as well: no ENTRYPOINT (it breaks Toolbx), no
variable in ENV that hides a GPU or fakes an architecture, no secret, nothing fetched that the lock does not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from strix_finetune.errors import Problem
from strix_finetune.templates import Rendered

_INSTRUCTIONS = frozenset(
    "ADD ARG CMD COPY ENV ENTRYPOINT EXPOSE FROM HEALTHCHECK LABEL MAINTAINER ONBUILD RUN SHELL STOPSIGNAL USER VOLUME "
    "WORKDIR".split()  # noqa: SIM905 (a list of names is read more easily as a line)
)
# variables that must never be baked in: they hide GPUs, fake architectures or break Toolbx
BANNED_ENV = (
    "LD_PRELOAD",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HSA_OVERRIDE_GFX_VERSION",
)
_SECRET = re.compile(r"(?i)\b(hf_token|huggingface_token|wandb_api_key|[a-z_]*(password|secret_key|access_token))\s*=")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its continuation lines joined; `line` is where it begins (1-based)."""

    keyword: str
    body: str
    line: int


def instructions(text: str) -> Iterator[Instruction]:
    """Split a Dockerfile into instructions, honouring continuations and comment lines within them."""
    keyword, body, start = "", "", 0
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped.startswith("#") or (not stripped and not keyword):
            continue
        if not keyword:
            word, _, rest = stripped.partition(" ")
            keyword, body, start = word.upper(), rest.strip(), number
        else:
            body += " " + stripped
        if body.endswith("\\") or (not body and stripped.endswith("\\")):
            body = body[:-1].rstrip()
            keyword = keyword.rstrip("\\")
            continue
        yield Instruction(keyword, body, start)
        keyword, body = "", ""
    if keyword:
        yield Instruction(keyword, body, start)


def lint(rendered: Rendered) -> list[Problem]:
    """Every fault of a rendered Dockerfile."""
    problems: list[Problem] = []
    for number, line in enumerate(rendered.text.split("\n"), 1):
        if re.match(r"\s*#\s*(syntax|escape|check)\s*=", line):
            problems.append(Problem("a parser directive is not in the subset of both engines", rendered.place(number),
                                    "remove it"))  # fmt: skip
    found = list(instructions(rendered.text))
    if not any(item.keyword == "FROM" for item in found):
        problems.append(Problem("the Dockerfile has no FROM", rendered.place(1), "begin with FROM {{ parent }}"))
    for item in found:
        for message, cure in _faults(item):
            problems.append(Problem(message, rendered.place(item.line), cure))
    return problems


def _faults(item: Instruction) -> Iterator[tuple[str, str]]:
    body = item.body
    if item.keyword not in _INSTRUCTIONS:
        yield f"'{item.keyword}' is not a Dockerfile instruction", "check the line before it for a missing backslash"
        return
    if not body:
        yield f"{item.keyword} has nothing after it", "a variable in it is empty: set it in [vars] or in the channel"
        return
    if item.keyword == "FROM" and re.match(r"(?i)(--platform=\S*\s+)?(as\b|$)", body):
        yield "FROM names no image", "a variable in it is empty"
    if item.keyword == "ENTRYPOINT":
        yield "ENTRYPOINT breaks Toolbx", "put the program on PATH and use CMD"
    if item.keyword in ("RUN", "COPY", "ADD") and re.search(r"<<-?\s*[\"']?[A-Za-z_]", body.split("'")[0]):
        yield "a heredoc is not in the subset of both engines", "put the text into files/ and COPY or mount it"
    if item.keyword in ("COPY", "ADD") and re.search(r"(^|\s)--(link|parents|exclude)\b", body):
        flag = re.search(r"--(link|parents|exclude)", body)
        yield f"{item.keyword} {flag.group(0) if flag else ''} is not in the subset of both engines", "leave it out"
    if item.keyword == "ADD" and re.search(r"(^|\s)(--checksum\S*|https?://\S*|git@\S*|git://\S*)", body):
        yield "ADD from the network reads what the lock does not name", "declare it under [archives] in layer.toml"
    if item.keyword == "RUN" and re.search(r"--mount=\S*type=(secret|ssh)", body):
        yield "secrets in a build end up in somebody's layer", "no build step of this project needs one"
    if item.keyword == "RUN" and re.search(r"(^|\s)--(security|network)=", body):
        yield "RUN --security and --network are not in the subset of both engines", "leave them out"
    if item.keyword in ("RUN", "ENV", "ARG"):
        empty = re.search(r"(?<![\w\]<>=!~$])([A-Za-z][\w.+-]*)(==|~=|>=)(?=[\s\"';&|\\]|$)", body)
        if empty and not re.search(r"\[\[?[^]]*" + re.escape(empty.group(0)), body):
            yield f"'{empty.group(0)}' has nothing after it", "the version is empty: is it in the lock?"
        if item.keyword != "RUN" and _SECRET.search(body):
            yield f"{item.keyword} holds a secret", "give it at run time"
    if item.keyword == "ENV":
        for name in BANNED_ENV:
            if re.search(rf"(^|\s){name}(=|\s)", body):
                yield f"ENV {name} must not be baked into an image", "set it for one run, where it is needed"
