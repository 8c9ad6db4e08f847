"""Specifications of AMD's GPUs as named devices (CDI), which engines read before a start.

https://github.com/cncf-tags/container-device-interface: JSON or YAML files in two folders. One that is out of date
names device files that are not there, and then no container that asks for it starts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ALL = "amd.com/gpu=all"
_FOLDERS = ("etc/cdi", "var/run/cdi")
_MOST_BYTES = 4 << 20


def usable(root: Path = Path("/")) -> bool:
    """Whether a specification names all of AMD's GPUs, and every device file in it exists."""
    return any(_whole(spec, root) for spec in _specs(root) if spec.get("kind") == "amd.com/gpu")


def _specs(root: Path) -> list[dict[str, Any]]:
    found = []
    for folder in _FOLDERS:
        for path in sorted((root / folder).glob("*")):
            if path.suffix not in (".json", ".yaml", ".yml"):
                continue
            try:
                if path.stat().st_size > _MOST_BYTES:
                    continue
                text = path.read_text("utf-8")
                spec = json.loads(text) if path.suffix == ".json" else _yaml(text)
            except (OSError, ValueError, RecursionError):
                continue
            if isinstance(spec, dict):
                found.append(spec)
    return found


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError from error


def _whole(spec: dict[str, Any], root: Path) -> bool:
    devices = [device for device in spec.get("devices") or () if isinstance(device, dict)]
    if "all" not in {device.get("name") for device in devices}:
        return False
    edits = [each.get("containerEdits") for each in (spec, *devices)]
    nodes = [node for edit in edits if isinstance(edit, dict) for node in edit.get("deviceNodes") or ()]
    paths = [str(node.get("hostPath") or node.get("path")) for node in nodes if isinstance(node, dict)]
    return bool(paths) and all((root / path.lstrip("/")).exists() for path in paths)
