"""A checkout as a stranger has it: a fresh clone and an empty home."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.stranger import Stranger

# of the engine tests: a registry for all tests that only need one
from tests.engine.conftest import registry as registry

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    """A clone of what is committed. Uncommitted changes are not in it, as they would not be for anybody."""
    place = tmp_path_factory.mktemp("stranger")
    home = place / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place / "clone")], check=True)
    return Stranger(place / "clone", home)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test here, and skip long ones unless `-m long` asks for them."""
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.e2e)
            if "long" in item.keywords and "long" not in config.getoption("markexpr"):
                item.add_marker(pytest.mark.skip(reason="takes many minutes: pytest tests/e2e -m long"))
