"""The stand-in with one release."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standin.amd import RELEASE
from tests.standin.server import Standin
from tests.standin.tree import Tree
from tests.unit.simple.shop import Shop, archives


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Standin(Tree(archives(RELEASE))) as amd:
        yield Shop(amd, tmp_path / "cache")
