"""Hundreds of malformed recipes and sets: each ends in sentences with place and cure, exit 2, and none trains."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strix_train import backends, refusals
from strix_train.__main__ import main
from tests.unit import malformed
from tests.unit.malformed import GOOD, METHODS, RECIPE

DATA = list(malformed.data_cases())
RECIPES = list(malformed.recipe_cases())
_GOOD_ROW = '{"prompt": "Who?", "completion": "Me."}\n'
_PLACE = r"^train: (?:[^:;]+?(?::\d+(?::\d+)?)?|--set [^;]+?): "


@pytest.fixture(scope="module", autouse=True)
def _every_method(request: pytest.FixtureRequest) -> Iterator[None]:
    """Refuse nothing only because it is not done yet, and find every backend installed: the rows are what is wrong."""
    patch = pytest.MonkeyPatch()
    patch.setattr(refusals, "METHODS", ("orpo", *(method for method, _ in GOOD.values())))
    patch.setattr(backends, "find_spec", lambda name: object())
    yield
    patch.undo()


def workplace(folder: Path) -> Path:
    """A folder with a model and good rows."""
    (folder / "m").mkdir(parents=True, exist_ok=True)
    (folder / "m" / "config.json").write_text("{}")
    (folder / "good.jsonl").write_text(_GOOD_ROW * 4 + _GOOD_ROW.replace("Who", "What"))
    return folder


def run(*words: str) -> tuple[int, list[str]]:
    """Run `train` and return its exit code and what it says on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(words))
    return code, err.getvalue().splitlines()


def assert_sentences(code: int, lines: list[str], where: str) -> None:
    """Check the form: exit 2, and for each fault one line with its place and a cure, then perhaps the text around."""
    assert code == 2, (where, lines)
    assert lines, where
    told = [line for line in lines if not line.startswith("train:     ")]
    assert told, where
    assert not any("Traceback" in line or "Error:" in line for line in lines), (where, lines)
    for line in told:
        assert re.match(_PLACE, line), (where, line)
        assert "; " in line, (where, line)
        assert 20 < len(line) < 900, (where, line)
    assert lines[0] in told, where


def test_there_are_hundreds() -> None:
    assert len(DATA) >= 300
    assert len(RECIPES) >= 300


def test_the_good_ones_are_good(tmp_path: Path) -> None:
    folder = workplace(tmp_path)
    import json

    for name, (method, row) in GOOD.items():
        (folder / "d.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(malformed.last(name)) + "\n")
        (folder / "r.yaml").write_text(
            f"model: m\ndata: d.jsonl\nmethod: {METHODS.get(method, method)}\nschedule: {{steps: 1}}\n"
        )
        assert run("check", str(folder / "r.yaml")) == (0, []), name
    (folder / "r.yaml").write_text(yaml.safe_dump(RECIPE))
    assert run("check", str(folder / "r.yaml")) == (0, [])


def test_malformed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workplace(tmp_path)
    monkeypatch.chdir(tmp_path)
    for index, case in enumerate(DATA):
        path = folder / case.file
        path.write_bytes(case.content)
        (folder / "r.yaml").write_text(
            f"model: m\ndata: {case.file}\nmethod: {METHODS.get(case.method, case.method)}\nschedule: {{steps: 1}}\n"
        )
        words = ("check", str(folder / "r.yaml")) if index % 2 else (str(folder / "r.yaml"),)
        assert_sentences(*run(*words), where=case.name)
        path.unlink()
    assert not (tmp_path / "runs").exists()


def test_malformed_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workplace(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRIX_MODELS", str(tmp_path / "models"))
    for index, (name, text) in enumerate(RECIPES):
        (folder / "r.yaml").write_text(text)
        words = ("check", str(folder / "r.yaml")) if index % 2 else (str(folder / "r.yaml"),)
        assert_sentences(*run(*words), where=name)
    assert not (tmp_path / "runs").exists()


_BASE = yaml.safe_dump(RECIPE, sort_keys=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    st.integers(0, len(_BASE) - 1),
    st.sampled_from(["", "x", ":", "\t", "'", '"', "{", "]", "#", "- ", "\n", "&a ", "*a", "!", "%", "@", "\x00", "é"]),
    st.integers(0, 3),
)
def test_a_recipe_with_a_slip_of_the_keyboard(tmp_path: Path, at: int, new: str, gone: int) -> None:
    """It is still right, or it is refused in sentences; nothing else happens."""
    folder = workplace(tmp_path)
    (folder / "r.yaml").write_text(_BASE[:at] + new + _BASE[at + gone :])
    code, lines = run("check", str(folder / "r.yaml"))
    if code:
        assert_sentences(code, lines, f"{at} {new!r} {gone}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    st.sampled_from(DATA),
    st.integers(0, 400),
    st.binary(max_size=3),
    st.integers(0, 3),
    st.sampled_from(["d.jsonl", "d.json", "d.csv", "d.txt"]),
)
def test_rows_with_any_damage(tmp_path: Path, case: malformed.Case, at: int, new: bytes, gone: int, file: str) -> None:
    folder = workplace(tmp_path)
    content = case.content[:at] + new + case.content[at + gone :]
    (folder / file).write_bytes(content)
    method = METHODS.get(case.method, case.method)
    (folder / "r.yaml").write_text(f"model: m\ndata: {file}\nmethod: {method}\nschedule: {{steps: 1}}\n")
    code, lines = run("check", str(folder / "r.yaml"))
    if code:
        assert_sentences(code, lines, f"{case.name} {at} {new!r} {gone} {file}")
