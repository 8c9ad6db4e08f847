"""The image in the user's toolbox.conf: put in and taken out, with every other sign of the file as it was.

Pure: texts in, texts out. What cannot be kept is refused. The file: toolbox.conf(5).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from strix_finetune.errors import InputError, Place, Problem

_MARK = "# by strix-finetune"
_BEFORE = "# before strix-finetune: "
_HEADER = re.compile(r"^\s*\[\s*general\s*\]\s*(#.*)?$")
_TABLE = re.compile(r"^\s*\[")
_IMAGE = re.compile(r"^\s*image\s*=")


def with_image(text: str, ref: str, path: Path) -> str:
    """The file's text with `image = ref` under [general]; the line that was there before stays as a comment."""
    document = _parsed(text, path)
    general = document.setdefault("general", {})
    if not isinstance(general, dict):
        raise _refused(path, "'general' is not a table", "make it one")
    for name in ("distro", "release"):
        if name in general:
            why = f"[general] has '{name}', which Toolbx does not take together with an image"
            raise _refused(path, why, f"remove '{name}', or create with `strix-finetune toolbox create`")
    if general.get("image") == ref:
        return text
    ours = f'image = "{ref}"  {_MARK}\n'
    lines = _without_ours(text).splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    header = next((at for at, line in enumerate(lines) if _HEADER.match(line)), None)
    if header is None:
        lines += ["\n"] * bool(lines) + ["[general]\n", ours]
    else:
        end = next((at for at in range(header + 1, len(lines)) if _TABLE.match(lines[at])), len(lines))
        found = [at for at in range(header + 1, end) if _IMAGE.match(lines[at])]
        if found:
            lines[found[0]] = f"{_BEFORE}{lines[found[0]]}{ours}"
        else:
            lines.insert(header + 1, ours)
    made = "".join(lines)
    general["image"] = ref
    try:
        kept = tomllib.loads(made) == document
    except tomllib.TOMLDecodeError:
        kept = False
    if not kept:
        raise _refused(
            path, "it is written in a way that cannot be changed line by line", f"write {ours.strip()} there"
        )
    return made


def without_image(text: str, path: Path) -> str | None:
    """The text as it was before; None where nothing is left of it. Raises InputError where nothing of ours is in it."""
    _parsed(text, path)
    if _MARK not in text:
        raise InputError(Problem("has no line of strix-finetune", Place(path), "there is nothing to undo"))
    made = _without_ours(text)
    _parsed(made, path)
    return None if made.strip() in ("", "[general]") else made


def _without_ours(text: str) -> str:
    lines = [line for line in text.splitlines(keepends=True) if not line.rstrip().endswith(_MARK)]
    return "".join(line.removeprefix(_BEFORE) for line in lines)


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _refused(path, f"it is not valid TOML: {error}", "correct it, Toolbx cannot read it either") from None


def _refused(path: Path, why: str, cure: str) -> InputError:
    return InputError(Problem(f"is left as it is: {why}", Place(path), cure))
