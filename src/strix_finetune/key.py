"""The key of a layer: sha256 over what makes it. Same key, same layer. Pure, but for reading the files.

What is in it: the rendered Dockerfile, each context file (path, content, executable bit), the locked inputs, the
keys of the parent and builders, the platform. What is never in it: the clock, the host, the network settings.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace

from strix_finetune.context import digest
from strix_finetune.model import Keyed, RenderedLayer

PLATFORM = "linux/amd64"
FORMAT = "1"
SHORT = 12
LONGEST = 60


def short(content: bytes) -> str:
    """The first 12 hex digits of sha256."""
    return hashlib.sha256(content).hexdigest()[:SHORT]


def keyed(layer: RenderedLayer, parents: Mapping[str, str]) -> Keyed:
    """Compute the key. `parents`: layer name → key, of the parent and the builders.

    The files carry their digests from here on, so that what is built later is what the key says.
    """
    layer = replace(layer, files=tuple(replace(file, digest=digest(file)) for file in layer.files))
    files = {file.path: file.digest for file in layer.files}
    dockerfile = hashlib.sha256(layer.dockerfile.encode()).hexdigest()
    whole = {
        "format": FORMAT,
        "layer": layer.node.name,
        "platform": PLATFORM,
        "dockerfile": dockerfile,
        "files": files,
        "inputs": dict(layer.inputs),
        "parents": dict(parents),
    }
    text = json.dumps(whole, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    kind = {name: "parent" if name == layer.node.parent else "builder" for name in parents}
    parts = {f"{kind[name]} {name}": value[:SHORT] for name, value in parents.items()}
    parts |= {name: shown(value) for name, value in layer.inputs.items()}
    parts |= {path: value[:SHORT] for path, value in files.items() if not path.startswith("inputs/")}
    # the names of parents hold their keys: without them, what is left is the layer's own text
    parts["Dockerfile"] = short(_without_parents(layer.dockerfile, parents).encode())
    return Keyed(layer, key_of(text), parts, text)


def key_of(inputs: str) -> str:
    """The key of what `Keyed.inputs` records: 64 hex digits."""
    return hashlib.sha256(inputs.encode()).hexdigest()


def recorded(inputs: str) -> tuple[str, dict[str, str]]:
    """The layer's name and the parts that a record of a key tells of; raises ValueError for anything that is no record.

    The parts are `Keyed.parts`, but for the Dockerfile, of which only the whole is recorded, and builders are parents.
    """
    try:
        whole = json.loads(inputs)
        layer, given = whole["layer"], {name: dict(whole[name]) for name in ("parents", "inputs", "files")}
        if whole["format"] != FORMAT or whole["platform"] != PLATFORM or not isinstance(layer, str):
            raise ValueError("it is of another format or platform")
        parts = {f"parent {name}": value[:SHORT] for name, value in given["parents"].items()}
        parts |= {name: shown(value) for name, value in given["inputs"].items()}
        parts |= {path: value[:SHORT] for path, value in given["files"].items() if not path.startswith("inputs/")}
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it is no record of a layer's inputs ({type(error).__name__})") from None
    return layer, parts


def tells_of(inputs: str, parts: Mapping[str, str]) -> bool:
    """Whether an image's parts are those of a record. Raises ValueError where that is none."""
    told = {re.sub(r"^builder ", "parent ", name): value for name, value in parts.items() if name != "Dockerfile"}
    return told == recorded(inputs)[1]


def shown(value: str) -> str:
    """A locked input as a reason names it: a digest by its beginning, and nothing that two values could share."""
    found = re.fullmatch(r"(?:.*@sha256:)?([0-9a-f]{64})", value)
    if found:
        return found[1][:SHORT]
    return value if len(value) <= LONGEST else f"{value[: LONGEST - SHORT]}…{short(value.encode())}"


def _without_parents(dockerfile: str, parents: Mapping[str, str]) -> str:
    for value in parents.values():
        dockerfile = dockerfile.replace(value[:SHORT], "")
    return dockerfile
