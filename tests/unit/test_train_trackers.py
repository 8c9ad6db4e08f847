"""Trackers: what they are told, and what happens where they are not installed. They are stand-ins here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strix_train import trackers
from strix_train.errors import InputError
from strix_train.recipe.schema import Logging
from strix_train.runfolder import RunFolder


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the stand-ins were told, in order."""
    found: list[Any] = []

    def tell(what: str) -> Any:
        return lambda *args, **more: found.append((what, args, more))

    class Writer:
        def __init__(self, *args: Any, **more: Any) -> None:
            found.append(("writer", args, more))

        def __getattr__(self, name: str) -> Any:
            return tell(name)

    for name in ("trackio", "wandb"):
        module: Any = ModuleType(name)
        module.init, module.log, module.finish = tell(f"{name}.init"), tell(f"{name}.log"), tell(f"{name}.finish")
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("torch", "torch.utils", "torch.utils.tensorboard"):
        module = ModuleType(name)
        module.SummaryWriter = Writer
        monkeypatch.setitem(sys.modules, name, module)
    return found


def start(tmp_path: Path, began: int = 0, **wish: Any) -> Any:
    return trackers.start(Logging(**wish), RunFolder(tmp_path), "recipe", {"model": "m"}, began)


def test_none_is_asked_for(tmp_path: Path, told: list[Any]) -> None:
    assert list(start(tmp_path)) == []
    assert told == []


def test_tensorboard_hides_what_is_done_again(tmp_path: Path, told: list[Any]) -> None:
    (board,) = start(tmp_path, 7, to=["tensorboard"])
    board.numbers(8, {"loss": 1.5})
    board.texts(8, {"Say": "so"})
    board.close()
    assert told == [
        ("writer", (str(tmp_path / "tensorboard"),), {"purge_step": 8}),
        ("add_scalar", ("loss", 1.5, 8), {}),
        ("flush", (), {}),
        ("add_text", ("Say", "so", 8), {}),
        ("close", (), {}),
    ]
    told.clear()
    start(tmp_path, to=["tensorboard"])
    assert told[0][2] == {"purge_step": None}


def test_trackio_and_wandb(tmp_path: Path, told: list[Any]) -> None:
    one, two = start(tmp_path, to=["trackio", "wandb"], project="mine")
    for tracker in (one, two):
        tracker.numbers(3, {"loss": 1.5})
        tracker.texts(3, {"Say": "so"})
        tracker.close()
    same = {"project": "mine", "name": tmp_path.name, "config": {"model": "m"}}
    assert told[0] == ("trackio.init", (), {**same, "resume": "never"})
    known = told[1][2].pop("id")
    assert told[1] == ("wandb.init", (), {**same, "dir": str(tmp_path), "resume": "allow"})
    assert told[2:4] == [("trackio.log", ({"loss": 1.5},), {"step": 3}), ("trackio.finish", (), {})]
    told.clear()
    start(tmp_path, 5, to=["trackio", "wandb"])
    assert told[0][2]["resume"] == "allow"
    assert told[0][2]["project"] == "recipe"
    assert told[1][2]["id"] == known  # the same folder is the same run


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "wandb" else name)
    trackers.check(Logging(to=["tensorboard"]))
    with pytest.raises(
        InputError, match=r"logging to wandb needs the package wandb, which is not here; install it, or"
    ):
        trackers.check(Logging(to=["tensorboard", "wandb"]))
