"""A stand-in for AMD's index, and what is asked of it."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strix_finetune.errors import Place, StrixError
from strix_finetune.lockmodel import WheelSetLock
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve.simple import resolve_wheels
from strix_finetune.schema import Index, WheelSet
from tests.standin.amd import RELEASE, Release
from tests.standin.amd import archives as make_archives
from tests.standin.server import Standin
from tests.standin.wheels import Archive

FOLLOW = ["rocm*", "amd-torch*", "triton"]
TORCH = "torch[device-{target}]==2.13.0+rocm10.0.0"
VISION = "torchvision[device-{target}]==0.28.0+rocm10.0.0"
WHOLE = {
    "amd-torch-device-gfx1151": "2.13.0+rocm10.0.0",
    "amd-torch-device-gfx115x": "2.13.0+rocm10.0.0",
    "amd-torchvision-device-gfx1151": "0.28.0+rocm10.0.0",
    "rocm": "10.0.0",
    "rocm-bootstrap": "0.1.0",
    "rocm-sdk-core": "10.0.0",
    "rocm-sdk-device-gfx1151": "10.0.0",
    "rocm-sdk-libraries": "10.0.0",
    "torch": "2.13.0+rocm10.0.0",
    "torchvision": "0.28.0+rocm10.0.0",
    "triton": "3.8.0+git4cff872c.rocm10.0.0",
}


@functools.cache
def archives(release: Release = RELEASE, targets: tuple[str, ...] = ("gfx1151",)) -> tuple[Archive, ...]:
    """A release, made once: the same bytes each time."""
    return tuple(make_archives(release, targets))


PLACE = Place(Path("images/channels/amd.toml"), 40)


@dataclass
class Shop:
    """A stand-in and what is asked of it. `told`: the lines about files that are read whole."""

    amd: Standin
    cache: Path
    told: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def resolve(
        self,
        *requirements: str,
        target: str = "gfx1151",
        follow: Collection[str] = FOLLOW,
        absent: Collection[int] = (403,),
        index: str = "",
        glibc: str = "2.41-12",
        previous: WheelSetLock | None = None,
        upgrade: Collection[str] | None = None,
    ) -> WheelSetLock:
        return resolve_wheels(
            "torch",
            WheelSet(index="stable", requirements=list(requirements or (TORCH, VISION)), follow=list(follow)),
            Index(url=index or self.amd.index, absent=list(absent)),
            target=target,
            python="3.13",
            glibc=glibc,
            settings=NetSettings(),
            previous=previous,
            upgrade=upgrade,
            place=PLACE,
            cache=self.cache,
            tell=self.told.append,
            sleep=self.waits.append,
        )

    def refused(self, *requirements: str, **options: object) -> str:
        """The one sentence of a refusal."""
        with pytest.raises(StrixError) as caught:
            self.resolve(*requirements, **options)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def path(self, file: str) -> str:
        return self.amd.tree.path(file)


def versions(lock: WheelSetLock) -> dict[str, str]:
    return {entry.name: entry.version for entry in lock.wheels}


def published(shop: Shop) -> dict[str, Archive]:
    return {archive.filename: archive for archive in archives(RELEASE)}
