"""The key of a layer: sha256 over what makes it. Same key, same layer. Pure, but for reading the files.

What is in it: the rendered Dockerfile, each context file (path, content, executable bit), the locked inputs, the
keys of the parent and builders, the platform. What is never in it: the clock, the host, the network settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from strix_finetune.model import ContextFile, Keyed, RenderedLayer

PLATFORM = "linux/amd64"
FORMAT = "1"
SHORT = 12


def short(content: bytes) -> str:
    """The first 12 hex digits of sha256."""
    return hashlib.sha256(content).hexdigest()[:SHORT]


def digest(file: ContextFile) -> str:
    """sha256 of one context file, read in pieces; the executable bit counts."""
    hasher = hashlib.sha256(b"x" if file.executable else b"-")
    if isinstance(file.source, Path):
        with file.source.open("rb") as stream:
            while piece := stream.read(1 << 20):
                hasher.update(piece)
    else:
        hasher.update(file.source)
    return hasher.hexdigest()


def keyed(layer: RenderedLayer, parents: Mapping[str, str]) -> Keyed:
    """Compute the key. `parents`: layer name → key, of the parent and the builders."""
    files = {file.path: digest(file) for file in layer.files}
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
    parts = {f"parent {name}": value[:SHORT] for name, value in parents.items()}
    parts |= {name: value if len(value) < 40 else value[:SHORT] for name, value in layer.inputs.items()}
    parts |= {path: value[:SHORT] for path, value in files.items() if not path.startswith("inputs/")}
    # the names of parents hold their keys: without them, what is left is the layer's own text
    parts["Dockerfile"] = short(_without_parents(layer.dockerfile, parents).encode())
    return Keyed(layer, hashlib.sha256(text.encode()).hexdigest(), parts)


def _without_parents(dockerfile: str, parents: Mapping[str, str]) -> str:
    for value in parents.values():
        dockerfile = dockerfile.replace(value[:SHORT], "")
    return dockerfile
