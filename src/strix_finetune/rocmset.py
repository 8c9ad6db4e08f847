"""All wheels of a lock belong together: one ROCm, and the device code of the target, no more and no less. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from strix_finetune import wanted
from strix_finetune.errors import Place, Problem
from strix_finetune.lockmodel import Lock
from strix_finetune.model import Stack

# amd-torch-device-gfx1151, rocm-sdk-device-gfx1151; a family's pack has another ending ("gfx115x", "gfx12-0", "gfx11")
_PACK = re.compile(r"(?:amd-(?P<host>.+)|(?P<rocm>rocm-sdk))-device-(?P<gfx>gfx[0-9a-z-]+)")
_TARGET = re.compile(r"gfx[0-9]+[0-9a-f]{2}")
# AMD's, which the index of Python packages has only as empty files that keep the name
_KEPT_NAMES = re.compile(r"amd-.+-device-.+|rocm-sdk-.+")
_CURE = "lock the set anew with '--update {name}'"


@dataclass(frozen=True, slots=True)
class _Held:
    """A locked wheel, the set that it is in, and where the set is declared."""

    name: str
    version: str
    set: str
    place: Place

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def inconsistencies(stack: Stack, lock: Lock) -> Iterator[Problem]:
    """What does not fit together in the wheels of the lock, or is missing among them."""
    held = {
        wheel.name: _Held(wheel.name, wheel.version, name, wanted.set_place(stack, node, "wheels", name))
        for node in stack.nodes
        for name in node.wheels
        for wheel in (lock.wheels[name].wheels if name in lock.wheels else ())
    }
    yield from _placeholders(stack, lock)
    if held:
        yield from _one_rocm(held)
        yield from _packs(held, stack.target.id)


def _placeholders(stack: Stack, lock: Lock) -> Iterator[Problem]:
    for node in stack.nodes:
        for name in node.pip:
            for package, version in lock.pip[name].packages.items() if name in lock.pip else ():
                if _KEPT_NAMES.fullmatch(package):
                    yield Problem(
                        f"'{name}' has {package} {version} from the index of Python packages, where it is empty",
                        wanted.set_place(stack, node, "pip", name),
                        "exclude it, and ask for it in a set of wheels of AMD's index",
                    )


def _one_rocm(held: dict[str, _Held]) -> Iterator[Problem]:
    from packaging.version import Version

    from strix_finetune.resolve.versions import rocm_of

    releases: dict[Version, _Held] = {}
    for wheel in held.values():
        rocm = rocm_of(wheel.name, Version(wheel.version))
        if rocm is not None:
            releases.setdefault(rocm, wheel)
    first = next(iter(releases.items()), None)
    for rocm, wheel in releases.items():
        if first and wheel is not first[1]:
            message = f"{wheel} is for ROCm {rocm}, and {first[1]} for ROCm {first[0]}"
            yield Problem(message, wheel.place, _CURE.format(name=wheel.set))


def _packs(held: dict[str, _Held], target: str) -> Iterator[Problem]:
    """A distribution whose device code lies apart needs the target's pack, in its own version."""
    hosts: dict[str, list[_Held]] = {}
    for wheel in held.values():
        match = _PACK.fullmatch(wheel.name)
        if match is None:
            continue
        host = match["host"] or "rocm-sdk-libraries"
        hosts.setdefault(host, []).append(wheel)
        if _TARGET.fullmatch(match["gfx"]) and match["gfx"] != target:
            yield Problem(f"{wheel} has device code for another GPU than {target}", wheel.place, "take it out")
        if host not in held:
            yield Problem(f"{wheel} is of no use without {host}, which is not locked", wheel.place, f"ask for {host}")
        elif held[host].version != wheel.version:
            message = f"{wheel} does not belong to {held[host]}"
            yield Problem(message, wheel.place, _CURE.format(name=wheel.set))
    # its device code always lies apart
    if "rocm-sdk-libraries" in held:
        hosts.setdefault("rocm-sdk-libraries", [])
    for host, packs in hosts.items():
        pack = f"rocm-sdk-device-{target}" if host == "rocm-sdk-libraries" else f"amd-{host}-device-{target}"
        if host in held and all(found.name != pack for found in packs):
            message = f"{pack} is not locked, and without it {held[host]} has no code for {target}"
            yield Problem(message, held[host].place, f"ask for it, or for the extra 'device-{target}'")
