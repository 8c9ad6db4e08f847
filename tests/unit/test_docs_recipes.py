"""docs/recipes.md says what is so: its recipes are read, its rows are rows, its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from strix_train import backends
from strix_train.__main__ import main
from strix_train.data.formats import FORMATS, learned_by
from strix_train.data.load import Shape, load
from strix_train.recipe import method, rows
from strix_train.recipe.load import load as load_recipe

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "recipes.md").read_text()
RECIPES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
ROWS = re.findall(r"^\| (`[a-z`, ]+) \| `([a-z-]+)` \| `(\{.*\})` \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("text", RECIPES, ids=range(len(RECIPES)))
def test_the_recipes_are_recipes(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    assert load_recipe(tmp_path / "r.yaml").recipe.model


@pytest.mark.parametrize(("methods", "name", "row"), ROWS, ids=[name for _, name, _ in ROWS])
def test_the_rows_are_rows_of_their_format(tmp_path: Path, methods: str, name: str, row: str) -> None:
    (tmp_path / "d.jsonl").write_text(row + "\n")
    named = re.findall(r"[a-z]+", methods)
    assert set(named) == set(FORMATS[name].methods)
    for each in named:
        assert load(tmp_path / "d.jsonl", Shape(method=each)).format == name


def test_all_formats_methods_and_adapters_are_there() -> None:
    assert {name for _, name, _ in ROWS} == set(FORMATS) == set(rows.RowFormat.__args__) - {"auto"}
    for kind in method.MethodKind.__args__:
        assert f"`{kind}`" in TEXT
        assert learned_by(kind)


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    (tmp_path / "my-recipe.yaml").write_text(RECIPES[0])
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "c", "completion": "d"}\n')
    run = []
    for line in COMMANDS:
        words = shlex.split(line)
        assert words[0] == "train"
        # what trains or answers is run by tests/train, as are all commands of the way to a chat
        if words[1] in ("check", "estimate", "schema") or "--dry-run" in words:
            assert main(words[1:]) == 0, line
            run.append(words[1])
        else:
            assert "--set" in words or words[1] == "generate" or "my-run" in words
    assert run == ["check", "estimate", "my-recipe.yaml", "check", "schema"]
    assert capsys.readouterr().err == ""
