"""Run a layer's steps again although the engine has them in its cache, and keep the cache mounts.

Docker's own way, `nocache`, empties every cache mount that a step has: a compiler cache would be lost to the very build
that it is there for. So each step is lent a file that is different every time. It is mounted where nothing of it stays,
and mounts are in no image's history.
"""

from __future__ import annotations

import re
import secrets

from strix_finetune.dockerfile import instructions
from strix_finetune.model import ContextFile

_FILE = ".strix-afresh"
# /dev is a file system of the running step: a mount point there is in no layer
_MOUNT = f"--mount=type=bind,source={_FILE},target=/dev/{_FILE}"


def afresh(dockerfile: str) -> tuple[str, ContextFile]:
    """The Dockerfile whose steps are new to the engine, line for line the same; and the file that it needs."""
    lines = dockerfile.split("\n")
    for instruction in instructions(dockerfile):
        if instruction.keyword == "RUN":
            number = instruction.line - 1
            lines[number] = re.sub(r"^(\s*\w+)", rf"\1 {_MOUNT}", lines[number])
    return "\n".join(lines), ContextFile(_FILE, secrets.token_bytes(16))
