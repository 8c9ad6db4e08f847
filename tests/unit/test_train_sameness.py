"""Another model, template or reward has another digest, wherever the files lie and however large they are."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from strix_train import sameness

SIZE = 8 << 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text('{"x": 1}')
    (folder / "tokenizer.json").write_text("{}")
    for number in (1, 2):
        (folder / f"model-{number}.safetensors").write_bytes(random.Random(number).randbytes(SIZE))
    return folder


def test_the_same_files_elsewhere_are_the_same(model: Path, tmp_path: Path) -> None:
    found = sameness.of_model(model)
    assert found is not None
    assert len(found) == 64
    (model / "README.md").write_text("not of the model")
    assert sameness.of_model(shutil.copytree(model, tmp_path / "elsewhere")) == found


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_small_files_count_whole(model: Path, name: str) -> None:
    before = sameness.of_model(model)
    (model / name).write_text('{"x": 2}')
    assert sameness.of_model(model) != before


@pytest.mark.parametrize("at", [0, SIZE - 1, None])
def test_weights_that_were_trained_again(model: Path, at: int | None) -> None:
    before, path = sameness.of_model(model), model / "model-2.safetensors"
    raw = bytearray(path.read_bytes())
    if at is None:  # as training does: a little everywhere
        raw[7::4096] = bytes(byte ^ 1 for byte in raw[7::4096])
    else:
        raw[at] ^= 1
    path.write_bytes(raw)
    assert sameness.of_model(model) != before


def test_weights_that_are_gone_or_longer(model: Path) -> None:
    before = sameness.of_model(model)
    with (model / "model-1.safetensors").open("ab") as stream:
        stream.write(b"x")
    assert sameness.of_model(model) != before
    (model / "model-1.safetensors").unlink()
    assert sameness.of_model(model) != before


def test_what_is_not_there(tmp_path: Path) -> None:
    assert sameness.of_model(None) is None
    assert sameness.of_model(tmp_path / "none") is None
    assert sameness.of_text(None) is None
    assert sameness.of_files([]) is None
    (tmp_path / "empty").mkdir()
    assert sameness.of_model(tmp_path / "empty") is not None


def test_files_count_one_by_one(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("xy")
    b.write_text("z")
    first = sameness.of_files([a, b])
    a.write_text("x")
    b.write_text("yz")
    assert sameness.of_files([a, b]) != first
