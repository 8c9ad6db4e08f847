"""A stack as a bake file: the same Dockerfiles and contexts, for BuildKit workers that this driver does not reach.

`contexts` joins the layers into one solve: a parent is the result of another target and is never pushed and pulled.
What a layer is tested by is no part of a bake file; its images do not say that they passed anything.
Format: https://docs.docker.com/build/bake/reference/.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_finetune import names
from strix_finetune.errors import InputError, Place, Problem
from strix_finetune.key import PLATFORM
from strix_finetune.lockmodel import Lock
from strix_finetune.model import ContextFile, Keyed
from strix_finetune.plan import tags_of
from strix_finetune.requests import Requests
from strix_finetune.workspace import Workspace

FILE = "docker-bake.json"
_BLOCK = 1 << 20
# where images are, as a variable of the bake file; the default is what this driver calls them
_VARIABLE = "PREFIX"
_MADE = "made by strix-finetune emit bake"


@dataclass(frozen=True, slots=True)
class Rendered:
    """One target's stack, ready to be built."""

    workspace: Workspace
    lock: Lock
    layers: tuple[Keyed, ...]

    @property
    def target(self) -> str:
        return self.workspace.stack.target.id


def document(stacks: Sequence[Rendered], labels: Callable[[Rendered, Keyed], Mapping[str, str]]) -> dict[str, Any]:
    """The bake file. A layer that several stacks have under one key is in it once, with the names of each."""
    targets: dict[str, dict[str, Any]] = {}
    by_key = _bake_names(stacks)
    for stack in stacks:
        made = {layer.name: layer for layer in stack.layers}
        for layer in _needed(stack):
            name = by_key[layer.key]
            tags = [_tag(tag) for tag in tags_of(layer, stack.workspace.stack)]
            if name in targets:
                targets[name]["tags"] += [tag for tag in tags if tag not in targets[name]["tags"]]
                for other in layer.layer.node.needs:
                    targets[name].setdefault("contexts", {})[_ref(stack, made[other])] = (
                        f"target:{by_key[made[other].key]}"
                    )
                continue
            said = dict(labels(stack, layer))
            # nobody has tested what this file builds
            said.pop(names.TESTS, None)
            targets[name] = {
                "context": name,
                "dockerfile": "Dockerfile",
                "platforms": [PLATFORM],
                "labels": dict(sorted(said.items())),
                "tags": tags,
                "args": {"SOURCE_DATE_EPOCH": str(stack.lock.apt.epoch)},
            }
            if needs := layer.layer.node.needs:
                targets[name]["contexts"] = {
                    _ref(stack, made[other]): f"target:{by_key[made[other].key]}" for other in needs
                }
    finals = [by_key[_final(stack).key] for stack in stacks]
    groups = {stack.target: {"targets": [final]} for stack, final in zip(stacks, finals, strict=True)}
    return {
        "//": _MADE,
        "variable": {_VARIABLE: {"default": names.PREFIX}},
        "group": {"default": {"targets": finals}, **groups},
        "target": targets,
    }


def write(
    stacks: Sequence[Rendered],
    requests: Sequence[Requests],
    text: str,
    folder: Path,
    tell: Callable[[str], None],
    *,
    force: bool = False,
) -> int:
    """Write the bake file and the context of each of its targets into `folder`, all or nothing; return their bytes.

    What a layer needs is fetched or bootstrapped. Raises InputError where `folder` is somebody else's.
    """
    if not folder.absolute().parent.is_dir():
        raise InputError(f"there is no folder {folder.absolute().parent}", cure="make it first")
    if folder.exists() and not force and not _ours(folder):
        raise InputError(Problem("was not made by emit bake", Place(folder), "--force replaces it"))
    by_key = _bake_names(stacks)
    size = 0
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as work:
        fresh = Path(work, "new")
        fresh.mkdir(mode=0o755)
        for stack, request in zip(stacks, requests, strict=True):
            for layer in _needed(stack):
                place = fresh / by_key[layer.key]
                if place.exists():
                    continue
                tell(f"{place.name}: writing its context")
                size += _lay(place, _files(request, layer, tell))
        (fresh / FILE).write_text(text, "utf-8")
        if folder.exists():
            folder.rename(Path(work, "old"))
        fresh.rename(folder)
    return size


def _files(request: Requests, layer: Keyed, tell: Callable[[str], None]) -> Iterator[ContextFile]:
    from strix_finetune.events import StepOutput

    yield ContextFile("Dockerfile", layer.layer.dockerfile.encode())
    yield from request.files(layer, lambda event: tell(event.text) if isinstance(event, StepOutput) else None)


def _lay(place: Path, files: Iterator[ContextFile]) -> int:
    size = 0
    for file in files:
        path = place / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(file.source, Path):
            with file.source.open("rb") as source, path.open("wb") as copy:
                shutil.copyfileobj(source, copy, _BLOCK)
        else:
            path.write_bytes(file.source)
        path.chmod(0o755 if file.executable else 0o644)
        size += path.stat().st_size
    return size


def _ours(folder: Path) -> bool:
    try:
        return not any(folder.iterdir()) or _MADE in (folder / FILE).read_text("utf-8")[:200]
    except (OSError, UnicodeDecodeError):
        return False


def _needed(stack: Rendered) -> list[Keyed]:
    """The final layer and what it is made of, parents first."""
    by_name = {layer.name: layer for layer in stack.layers}
    wanted = {_final(stack).name}
    for layer in reversed(stack.layers):
        if layer.name in wanted:
            wanted.update(layer.layer.node.needs)
    return [by_name[layer.name] for layer in stack.layers if layer.name in wanted]


def _final(stack: Rendered) -> Keyed:
    return next(layer for layer in stack.layers if layer.layer.node.layer.spec.final)


def _bake_names(stacks: Sequence[Rendered]) -> dict[str, str]:
    """Key → what the layer is called in the bake file: after the first target that has it."""
    found: dict[str, str] = {}
    for stack in stacks:
        for layer in stack.layers:
            found.setdefault(layer.key, f"{layer.name}-{stack.target}")
    return found


def _ref(stack: Rendered, layer: Keyed) -> str:
    """How Dockerfiles name a layer."""
    return names.layer_ref(layer.name, stack.target, layer.key)


def _tag(ref: str) -> str:
    return f"${{{_VARIABLE}}}{ref.removeprefix(names.PREFIX)}"
