"""The image that a command is about, and what this installation knows of how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strix_finetune import names
from strix_finetune.engine.base import Engine, Image
from strix_finetune.errors import InputError, WorkError
from strix_finetune.lockmodel import Lock
from strix_finetune.model import Keyed
from strix_finetune.supply.locked import Expected, expected
from strix_finetune.workspace import Options, Workspace, open_workspace


@dataclass(frozen=True, slots=True)
class Known:
    """The definitions and the lock that an image was built from: its key says that they are the ones."""

    workspace: Workspace
    lock: Lock
    layers: tuple[Keyed, ...]

    def layer(self, name: str) -> Keyed:
        return next(layer for layer in self.layers if layer.name == name)

    def expected(self, name: str) -> Expected:
        return expected(self.workspace.stack, self.layers, self.lock, name)


@dataclass(frozen=True, slots=True)
class Subject:
    """An image of this project in the engine's store. `known` is None where `unknown` says why in a few words."""

    ref: str
    image: Image
    known: Known | None
    unknown: str = ""

    @property
    def layer(self) -> str:
        return self.image.labels.get(names.LAYER, "")

    def parents(self, engine: Engine) -> list[Subject]:
        """The images that it stands on, the nearest first. Raises WorkError where one is gone, or none is known."""
        if self.known is None:
            raise WorkError(f"it is not known what {self.ref} stands on: {self.unknown}")
        found = []
        for node in self.known.workspace.stack.lineage(self.layer)[1:]:
            target = self.known.workspace.stack.target.id
            ref = names.layer_ref(node.name, target, self.known.layer(node.name).key)
            image = engine.image(ref)
            if image is None:
                raise WorkError(f"{self.ref} stands on {ref}, which is gone", cure="run 'strix-finetune build'")
            found.append(Subject(ref, image, self.known))
        return found

    @property
    def expected(self) -> Expected | None:
        return self.known.expected(self.layer) if self.known else None


def find(text: str, options: Options, engine: Engine, env: Mapping[str, str]) -> Subject:
    """The image that `text` means: a target, a layer, a name or an id; empty for the target of this host.

    Raises InputError where there is no such image, or where it is not one of this project.
    """
    workspace = open_workspace(options, env)
    ref = text
    if not text or text in workspace.project.targets:
        ref = names.final_ref(text or workspace.stack.target.id)
    elif text in workspace.project.layers:
        ref = names.moving_ref(text, workspace.stack.target.id)
    image = engine.image(ref)
    if image is None:
        raise InputError(f"there is no image {ref}", cure="build it with 'strix-finetune build', or pull it")
    if not image.labels.get(names.KEY) or not image.labels.get(names.LAYER):
        raise InputError(f"the image {ref} is not one of this project: it has no label {names.KEY}")
    return Subject(ref, image, *_known(image, options, env))


def _known(image: Image, options: Options, env: Mapping[str, str]) -> tuple[Known | None, str]:
    labels = image.labels
    target, channel = labels.get(names.TARGET, ""), labels.get(names.CHANNEL, "")
    try:
        workspace = open_workspace(replace(options, target=target, channel=channel), env)
        lock = workspace.read_lock()
        if lock is None:
            return None, f"there is no lock of {channel} for {target} here"
        known = Known(workspace, lock, workspace.render(lock))
        if known.layer(labels[names.LAYER]).key == labels[names.KEY]:
            return known, ""
    except InputError as error:
        return None, str(error.problems[0].message)
    except StopIteration:
        return None, f"there is no layer '{labels[names.LAYER]}' here"
    return None, "it was built from other definitions or another lock than those here"
