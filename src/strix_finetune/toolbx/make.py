"""Containers of Toolbx: created and looked at, and refreshed beside the old one, which survives a failure."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from strix_finetune.engine.base import Image
from strix_finetune.errors import InputError, Problem, StrixError, WorkError
from strix_finetune.toolbx.contract import LABEL
from strix_finetune.toolbx.programs import Programs
from strix_finetune.toolbx.room import cost
from strix_finetune.toolbx.store import Say

# the user's own profile, which Toolbx reads, may put another Python before it
_PYTHON = "/opt/venv/bin/python"
_SMOKE = """
import torch
x = torch.ones(64, 64, device="cuda" if torch.cuda.is_available() else "cpu")
assert float((x @ x).sum()) == 64.0**3
print(f"torch {torch.__version__} on {torch.cuda.get_device_name(0) if x.is_cuda else 'the CPU'}")
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A container to make: its name, and the image's name and facts."""

    name: str
    ref: str
    image: Image


def create(programs: Programs, wanted: Wanted, say: Say) -> None:
    """Create a container and look at what came of it; one that is not right is removed again."""
    if programs.inspect(wanted.name) is not None:
        cure = f"enter it: toolbox enter {wanted.name}; or renew it: strix-finetune toolbox refresh {wanted.name}"
        raise InputError(Problem(f"there is a container {wanted.name} already", cure=cure))
    cost(programs, wanted.image, say)
    began = time.monotonic()
    _make(programs, wanted)
    seconds = time.monotonic() - began
    say(f"created {wanted.name} of {wanted.ref} in {seconds:.0f} s; enter it: toolbox enter {wanted.name}")


def _make(programs: Programs, wanted: Wanted) -> None:
    try:
        programs.toolbx("create", "--image", wanted.ref, wanted.name, doing=f"create {wanted.name}")
        check(programs.inspect(wanted.name), wanted, rootless=os.geteuid() != 0)
    except BaseException:
        discard(programs, wanted.name)
        raise


def check(found: dict[str, Any] | None, wanted: Wanted, *, rootless: bool) -> None:
    """Is the container what a Toolbx container must be? Raises WorkError with the first thing that is not."""
    if found is None:
        raise WorkError(Problem(f"Toolbx said that it created {wanted.name}, but Podman does not know it"))
    config, host = found.get("Config") or {}, found.get("HostConfig") or {}
    mounts = {str(mount.get("Destination")) for mount in found.get("Mounts") or ()}
    image = str(found.get("Image") or "").removeprefix("sha256:")
    faults = {
        f"is of the image {image[:12]}, not {wanted.ref}": image != wanted.image.id.removeprefix("sha256:"),
        f"lacks the label {LABEL}": (config.get("Labels") or {}).get(LABEL) != "true",
        "is not privileged, so that devices are kept from it": not host.get("Privileged"),
        "does not have the host's /dev": "/dev" not in mounts,
        "does not keep your user id": rootless and host.get("UsernsMode") not in ("keep-id", "private"),
    }
    for fault, there in faults.items():
        if there:
            raise WorkError(
                Problem(f"the container {wanted.name} {fault}", cure=f"look at podman inspect {wanted.name}")
            )


def smoke(programs: Programs, name: str) -> str:
    """Enter a container as Toolbx does and compute something in it. Returns what is there."""
    run = ("run", "--container", name)
    train = programs.toolbx(*run, "train", "--version", doing=f"run train in {name}").strip()
    torch = programs.toolbx(*run, _PYTHON, "-c", _SMOKE, doing=f"compute with torch in {name}").strip()
    return f"{train.splitlines()[-1]}, {torch.splitlines()[-1]}"


def existing(programs: Programs, name: str, say: Say) -> dict[str, Any]:
    """The container that is to be made anew. Raises InputError where there is none, or it is not Toolbx's.

    Between two renames of a refresh nothing has the name: where that refresh was killed, the old one gets it back.
    """
    before = _before(name)
    old = programs.inspect(name)
    if old is None and programs.inspect(before) is not None:
        programs.pod("rename", before, name, doing=f"put {name} back")
        say(f"{name} is back, which a refresh that was cut off had left as {before}")
        old = programs.inspect(name)
    if old is None:
        raise InputError(Problem(f"there is no container {name}", cure=f"strix-finetune toolbox create {name}"))
    if (old["Config"].get("Labels") or {}).get(LABEL) != "true":
        raise InputError(Problem(f"{name} is no Toolbx container", cure="name another one"))
    return old


def refresh(programs: Programs, wanted: Wanted, say: Say, *, force: bool) -> None:
    """A new container of the image in the place of an old one, which stays under another name.

    Whatever fails, the old one is there under its own name.
    """
    old = existing(programs, wanted.name, say)
    if str(old["Image"]).removeprefix("sha256:") == wanted.image.id.removeprefix("sha256:") and not force:
        say(f"{wanted.name} is of the newest {wanted.ref} already")
        return
    beside, before = Wanted(_beside(wanted.name), wanted.ref, wanted.image), _before(wanted.name)
    discard(programs, beside.name)  # of a refresh that was killed
    cost(programs, wanted.image, say)
    _make(programs, beside)
    try:
        say(f"tested: {smoke(programs, beside.name)}")
        if programs.inspect(before) is not None:
            programs.remove(before)
        programs.pod("rename", wanted.name, before, doing=f"rename {wanted.name}")
        try:
            programs.pod("rename", beside.name, wanted.name, doing=f"rename {beside.name}")
        except BaseException:
            programs.pod("rename", before, wanted.name, doing=f"put {wanted.name} back")
            raise
    except BaseException:
        discard(programs, beside.name)
        raise
    say(f"{wanted.name} is new; the old one, with what you installed in it, is {before} (podman rm --force {before})")


def _beside(name: str) -> str:
    return f"{name}-new"


def _before(name: str) -> str:
    return f"{name}-before"


def discard(programs: Programs, name: str) -> None:
    """Remove a container that may not be there."""
    with suppress(StrixError):
        if programs.inspect(name) is not None:
            programs.remove(name)
