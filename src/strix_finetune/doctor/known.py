"""The table of known kernels and firmware (known.toml), and which of its entries apply to a host: pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from strix_finetune.doctor.values import Verdict

FILE = Path(__file__).parent / "known.toml"
Flavour = Literal["mainline", "ubuntu", "ubuntu-oem", "other"]
Release = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """What is known of a range of kernels. `cure`: the version to go to."""

    targets: tuple[str, ...]
    flavour: Flavour
    verdict: Verdict
    says: str
    link: str
    date: str
    codename: str = ""
    since: str = ""
    below: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class FirmwareEntry:
    """What is known of firmware. `mes`: versions of the queue scheduler's; `dates`: those of the packages with it."""

    targets: tuple[str, ...]
    mes: tuple[int, ...]
    packages: tuple[str, ...]
    dates: tuple[str, ...]
    verdict: Verdict
    says: str
    link: str
    date: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Peak of memory in GB (10^9 bytes) by what is trained."""

    peak_gb: Mapping[str, int]
    link: str
    date: str


@dataclass(frozen=True, slots=True)
class Known:
    kernels: tuple[KernelEntry, ...]
    firmware: tuple[FirmwareEntry, ...]
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Kernel:
    """A running kernel: what it calls itself, whose it is, and the numbers that entries compare."""

    name: str
    flavour: Flavour
    release: Release


@cache
def table() -> Known:
    """The table that ships. Its form is held by a test: a fault in it is one of this program."""
    data: dict[str, Any] = tomllib.loads(FILE.read_text("utf-8"))
    kernels = tuple(
        KernelEntry(**{_FIELDS.get(key, key): _frozen(value) for key, value in row.items()}) for row in data["kernel"]
    )
    firmware = tuple(
        FirmwareEntry(**{key: _frozen(value) for key, value in row.items()} | {"mes": _numbers(row["mes"])})
        for row in data["firmware"]
    )
    sizes = data["sizes"]
    return Known(kernels, firmware, Sizes(dict(sizes["peak_gb"]), sizes["link"], sizes["date"]))


_FIELDS = {"from": "since"}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _numbers(words: Sequence[str]) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in words)


def kernel(name: str, *, ubuntu: bool) -> Kernel:
    """Whose kernel this is, by its release string ("6.17.0-19-generic") and the distribution that it runs.

    kernel.org's own builds for Ubuntu have a six-digit number where Ubuntu has its upload ("6.18.35-061835-generic").
    """
    match = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?(?:-(\d{1,6}))?(.*)", name)
    if not match:
        return Kernel(name, "other", ())
    version = tuple(int(part or 0) for part in match.group(1, 2, 3))
    upload, rest = match[4] or "", match[5]
    if re.search(r"\.el\d|microsoft|-pve|-(aws|azure|gcp|oracle|kvm|ibm|raspi|nvidia|xilinx)\b", name):
        return Kernel(name, "other", version)
    if ubuntu and rest.endswith("-oem"):
        return Kernel(name, "ubuntu-oem", (*version, int(upload or 0)))
    if ubuntu and re.search(r"-(generic|lowlatency)", rest) and len(upload) < 6:
        return Kernel(name, "ubuntu", (*version, int(upload or 0)))
    return Kernel(name, "mainline", version)


def kernel_entry(entries: Sequence[KernelEntry], target: str, found: Kernel, codename: str) -> KernelEntry | None:
    """The first entry that speaks of this kernel."""
    return next(
        (
            entry
            for entry in entries
            if any(fnmatchcase(target, pattern) for pattern in entry.targets)
            and entry.flavour == found.flavour
            and entry.codename in ("", codename)
            and (not entry.since or found.release >= release(entry.since))
            and (not entry.below or found.release < release(entry.below))
        ),
        None,
    )


def release(text: str) -> Release:
    """ "6.17.0-19" → (6, 17, 0, 19)."""
    return tuple(int(part) for part in re.split(r"[.-]", text))


def firmware_entry(entries: Sequence[FirmwareEntry], target: str, mes: int) -> FirmwareEntry | None:
    return next((entry for entry in entries if target in entry.targets and mes in entry.mes), None)


def package_entry(entries: Sequence[FirmwareEntry], target: str, package: str, version: str) -> FirmwareEntry | None:
    """The entry of a firmware package, by the date in its version (after an epoch)."""
    digits = version.rpartition(":")[2][:8]
    return next(
        (entry for entry in entries if target in entry.targets and package in entry.packages and digits in entry.dates),
        None,
    )


def fitting(sizes: Sizes, usable: int) -> list[str]:
    """What fits into so many bytes, the largest of each kind of training, largest need first."""
    largest: dict[str, tuple[int, str]] = {}
    for name, peak in sizes.peak_gb.items():
        kind = name.split(" of a ")[0]
        if peak * 10**9 <= usable and (kind not in largest or peak >= largest[kind][0]):
            largest[kind] = (peak, name)
    return [name for _, name in sorted(largest.values(), reverse=True)]
