"""One stand-in with its locks, vendored inputs and images, made in this order when the first test asks for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from strix_finetune.engine.base import Engine
from strix_finetune.engine.select import connect
from tests.e2e.amd.images import FIRST, OTHERS, offline_build, remove_images
from tests.standin.amd import NEWER, OLDER, RELEASE, archives
from tests.standin.place import Place, Said
from tests.standin.server import Standin
from tests.standin.tree import Tree


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    published = [*archives(RELEASE, (FIRST, *OTHERS)), *archives(NEWER, [FIRST])]
    with Standin(Tree(published, legacy=archives(OLDER, [FIRST]))) as amd:
        made = Place.made(tmp_path_factory.mktemp("amd"), amd)
        remove_images()
        try:
            yield made
        finally:
            remove_images()
            # half a gigabyte that pytest would keep for three runs
            shutil.rmtree(made.root)


@pytest.fixture(autouse=True)
def healthy(place: Place) -> None:
    """Each test begins with a server that nothing is wrong with, and that remembers nothing."""
    place.amd.heal()


@pytest.fixture(scope="package")
def docker() -> Iterator[Engine]:
    engine = connect("docker", os.environ)
    yield engine
    engine.close()


@pytest.fixture(scope="package")
def locked(place: Place) -> Place:
    """The locks of all targets."""
    place.amd.heal()
    place.well("lock")
    for target in OTHERS:
        place.well("lock", "--from-lock", FIRST, target=target)
    return place


@pytest.fixture(scope="package")
def vendored(locked: Place) -> Path:
    """The inputs of all targets in one folder."""
    folder = locked.root / "vendored"
    for target in (FIRST, *OTHERS):
        locked.well("vendor", str(folder), target=target)
    return folder


@pytest.fixture(scope="package")
def built(locked: Place, vendored: Path) -> Said:
    """The whole chain of the first target, built from the folder."""
    return offline_build(locked, vendored, FIRST)
