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
    return Keyed(layer, hashlib.sha256(text.encode()).hexdigest(), parts)


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
