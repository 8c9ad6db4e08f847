"""One distribution comes into an image one way: from one set of wheels or one requirement set, in one version. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune import wanted
from strix_finetune.errors import Problem
from strix_finetune.lockmodel import Lock
from strix_finetune.model import Node, Stack


def overlaps(stack: Stack, lock: Lock) -> Iterator[Problem]:
    """Distributions that a later step would put over what a set of wheels brought, or brings as another file.

    That is how a build of PyTorch for CUDA gets over the one for ROCm.
    """
    told: set[tuple[str, str, str]] = set()
    for node in stack.nodes:
        for problem, about in _of_lineage(node, stack, lock):
            if about not in told:
                told.add(about)
                yield problem


def _of_lineage(node: Node, stack: Stack, lock: Lock) -> Iterator[tuple[Problem, tuple[str, str, str]]]:
    brought: dict[str, tuple[str, str]] = {}
    lineage = tuple(reversed(stack.lineage(node.name)))
    for held in lineage:
        for name in held.wheels:
            for wheel in lock.wheels[name].wheels if name in lock.wheels else ():
                first, sha256 = brought.setdefault(wheel.name, (name, wheel.sha256))
                if sha256 != wheel.sha256:
                    message = f"the sets of wheels '{first}' and '{name}' lock two files of '{wheel.name}'"
                    place = wanted.set_place(stack, held, "wheels", name)
                    cure = "pin the same version in both, or do not follow it in one"
                    yield Problem(message, place, cure), (first, name, wheel.name)
    for held in lineage:
        for name in held.pip:
            for package, version in lock.pip[name].packages.items() if name in lock.pip else ():
                if package in brought:
                    first = brought[package][0]
                    message = f"'{name}' would put {package} {version} over that of the set of wheels '{first}'"
                    place = wanted.set_place(stack, held, "pip", name)
                    yield Problem(message, place, f"exclude {package} from '{name}'"), (first, name, package)
