"""What `pip install` of the built wheel gives: a driver that works outside a checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.stranger import Stranger


@pytest.fixture(scope="module")
def wheel(stranger: Stranger, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    stranger.run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), ".")
    return next(out.glob("strix_finetune-*.whl"))


def test_definitions_and_recipes_travel_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = ("images/targets.toml", "images/macros.j2", "images/unsloth/patches/series", "recipes/demo.yaml")
    wanted += ("toolbox/run.sh.j2",)
    assert {f"strix_finetune/_data/{name}" for name in wanted} <= names
    assert "strix_train/__main__.py" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/")) or name.endswith(".pyc")]


def test_an_installed_driver_plans_the_same_keys_as_the_checkout(
    wheel: Path, stranger: Stranger, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    stranger.run(str(tmp_path / "venv/bin/pip"), "install", "--quiet", str(wheel))
    program = str(tmp_path / "venv/bin/strix-finetune")
    elsewhere = Stranger(tmp_path, stranger.home)
    assert "gfx1151 (default)" in elsewhere.run(program, "targets")
    installed = elsewhere.run(program, "plan", "--json", "--target", "cpu")
    assert installed == stranger.strix("plan", "--json", "--target", "cpu")
    assert elsewhere.run(program, "emit", "docker", "-t", "cpu") == stranger.strix("emit", "docker", "-t", "cpu")
    # the driver alone: no torch came along
    said = elsewhere.run(str(tmp_path / "venv/bin/pip"), "list")
    assert "torch" not in said
