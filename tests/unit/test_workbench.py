"""The command that starts JupyterLab, and the image's program for it: what each refuses, and what it says."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from strix_finetune.cli import main
from strix_train import environment

LAYER = Path(__file__).resolve().parents[2] / "images/workbench/files"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The image's program, which has no ending, as a module."""
    loader = SourceFileLoader("workbench_program", str(LAYER / "bin/workbench"))
    spec = spec_from_loader("workbench_program", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_a_port_that_is_taken_is_said_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        assert main(["workbench", "-t", "cpu", "-c", "debian", "--port", str(port)]) == 2
    said = f"error: something else listens on port {port}; give another --port, such as {port + 1}\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("folder", ["..", "/srv", "a/../../b"])
def test_examples_go_where_the_container_sees_them(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["workbench", "-t", "cpu", "-c", "debian", "--examples", folder]) == 2
    assert f"error: {folder} lies outside the current folder" in capsys.readouterr().err


def test_examples_overwrite_nothing(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "NOTEBOOKS", LAYER / "notebooks")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/2-fine-tune.ipynb").write_text("mine")
    program.copy_examples(tmp_path / "mine")
    assert (tmp_path / "mine/2-fine-tune.ipynb").read_text() == "mine"
    assert len(list((tmp_path / "mine").iterdir())) == 3
    assert "2-fine-tune.ipynb is there already and stays as it is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "address"),
    [([], "--ServerApp.ip=127.0.0.1"), (["--published", "--port", "9000"], "--ServerApp.ip=0.0.0.0")],
)
def test_only_a_published_server_leaves_the_loopback(
    words: list[str], address: str, program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    given: list[list[str]] = []
    monkeypatch.setattr(program, "serve", lambda arguments: given.append(arguments) or 0)
    assert program.main(words) == 0
    assert address in given[0]
    assert ("--ServerApp.port_retries=0" in given[0]) == ("--published" in words)


@pytest.mark.parametrize("words", [["--port", "0"], ["--port", "70000"], ["--port", "x"], ["--publish"]])
def test_wrong_words_end_with_2(words: list[str], program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: workbench")


def test_notebooks_are_shipped_clean() -> None:
    found = sorted((LAYER / "notebooks").glob("*.ipynb"))
    assert len(found) == 3
    for path in found:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]
        assert len([cell for cell in code if "parameters" in cell["metadata"].get("tags", [])]) == 1
        assert all(cell["source"] for cell in cells)


@pytest.mark.parametrize("home", [None, "/", "/nonexistent"])
def test_whoever_has_no_home_gets_one(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private_tmp: Callable[[], Path]
) -> None:
    folder = private_tmp()
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", home)
    own = environment.settle()
    assert own.is_relative_to(folder)
    assert os.environ["HOME"] == str(own)
    assert own.stat().st_mode & 0o077 == 0


@pytest.fixture
def private_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Make a temporary folder of the test's own the one that Python uses, and undo what `settle` sets."""

    def make() -> Path:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        for name in (*environment._CACHES, "USER", "LOGNAME"):
            monkeypatch.setenv(name, "x")
            monkeypatch.delenv(name)
        return tmp_path

    return make
