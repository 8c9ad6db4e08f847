"""Word for word what doctor prints on a dozen machines.

After a change that is meant: python -m tests.unit.doctor.test_said
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from click import unstyle

from strix_finetune.doctor import show
from tests.unit.doctor.scenes_engine import ENGINES
from tests.unit.doctor.scenes_hardware import HARDWARE

SCENES = HARDWARE | ENGINES
FOLDER = Path(__file__).parent / "said"
MACHINES = (
    "Fedora 43, Strix Halo",
    "Ubuntu 24.04, Strix Halo",
    "RX 7900 desktop whose processor has a GPU, too",
    "MI300X server",
    "WSL2",
    "laptop with a GPU to hide",
    "Ubuntu 24.04 with its first kernel",
    "a user outside the group render",
    "firmware left by AMD's driver",
    "BIOS gives 96 GB away",
    "leftovers of old guides",
    "no user namespaces, no newuidmap, no crun",
    "Toolbx without its bus, an image, or the group's rights",
)


def place(name: str) -> Path:
    return FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.txt"


def said(name: str, folder: Path) -> str:
    return unstyle(show.text(SCENES[name].report(folder))) + "\n"


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_printed(name: str, tmp_path: Path) -> None:
    assert said(name, tmp_path) == place(name).read_text("utf-8")


def test_every_text_is_of_a_machine() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {place(name).name for name in MACHINES}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            place(each).write_text(said(each, Path(folder)), "utf-8")
