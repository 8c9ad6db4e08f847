"""Names of models and recipes, and the recipes that ship."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import strix_train
from strix_train import names, plan
from strix_train.errors import InputError, Place
from strix_train.recipe.load import load

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
PLACE = Place("r.yaml", 1, 1)


def model(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True)
    for name in files or ("config.json",):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("STRIX_MODELS", str(folder))
    return folder


def refused(word: str, base: Path) -> str:
    with pytest.raises(InputError) as caught:
        names.find_model(word, base, PLACE)
    return str(caught.value)


def test_a_folder_beside_the_recipe_comes_first(tmp_path: Path, models: Path) -> None:
    model(models / "m")
    beside = model(tmp_path / "base" / "m")
    found = names.find_model("m", tmp_path / "base", PLACE)
    assert (found.source, found.local) == (str(beside), True)


def test_a_folder_that_looks_like_a_hub_id_is_a_folder(tmp_path: Path, models: Path) -> None:
    folder = model(tmp_path / "owner" / "name")
    assert names.find_model("owner/name", tmp_path, PLACE).source == str(folder)
    found = names.find_model("owner/other", tmp_path, PLACE)
    assert (found.source, found.local) == ("owner/other", False)


def test_a_bare_name_is_looked_up(tmp_path: Path, models: Path) -> None:
    folder = model(models / "demo")
    assert names.find_model("demo", tmp_path, PLACE).source == str(folder)


def test_without_the_variable_the_users_cache_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRIX_MODELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert names.models_folder() == Path("/c/strix-finetune/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert names.models_folder() == Path("/h/.cache/strix-finetune/models")


def test_what_is_no_model_says_what_to_do(tmp_path: Path, models: Path) -> None:
    model(models / "llama")
    model(tmp_path / "adapter", "adapter_config.json")
    model(tmp_path / "ggufs", "a.gguf")
    (tmp_path / "x.gguf").write_text("")
    assert "did you mean 'llama'?" in refused("lama", tmp_path)
    assert "strix-finetune fetch demo" in refused("demo", tmp_path)
    assert "'$MODELS/x' holds '$' or '~'" in refused("$MODELS/x", tmp_path)
    assert "does not expand" in refused("~/x", tmp_path)
    assert "is an adapter, not a model; name the model it was made for" in refused("adapter", tmp_path)
    assert "train import" in refused("ggufs", tmp_path)
    assert "the model 'x.gguf' is a file: is not a GGUF file; name a model folder" in refused("x.gguf", tmp_path)
    assert "there is no file" in refused("none.gguf", tmp_path)
    assert f"r.yaml:1:1: there is no folder {tmp_path}/a/b/c; name a model folder" in refused("a/b/c", tmp_path)


def test_a_recipe_is_a_file_or_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = ROOT / "recipes" / "demo.yaml"
    monkeypatch.setenv("STRIX_RECIPES", str(ROOT / "recipes"))
    for word in ("demo", "demo.yaml", "recipes/demo.yaml"):
        assert names.find_recipe(word) == shipped
    (tmp_path / "demo.yaml").write_text("")
    assert names.find_recipe("demo.yaml") == Path("demo.yaml")
    for word, sentence in (("dmo", "did you mean 'demo'"), ("x/demo.yaml", "there is no recipe"), (".", "is a folder")):
        with pytest.raises(InputError, match=sentence):
            names.find_recipe(word)


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_every_shipped_recipe_and_its_data_are_right(path: Path, models: Path) -> None:
    model(models / "demo")
    made = plan.make(str(path), with_backend=False)
    assert plan.findings(made).repeated == 0
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")
    if made.loaded.recipe.model != "demo":
        assert "Not run yet with these weights" in path.read_text()


def test_the_demo_asks_what_it_does_not_teach_word_for_word(models: Path) -> None:
    model(models / "demo")
    made = plan.make("demo", with_backend=False)
    facts = plan.findings(made)
    assert (facts.rows, len(made.questions)) == (64, 8)
    assert (facts.questions_in_training, facts.shared_with_eval) == (0, 0)
    rows = [json.loads(line) for line in made.sets[0].data.path.read_text().splitlines()]
    for question in made.questions:
        taught = [row for row in rows if question.expect in row["messages"][1]["content"]]
        assert len(taught) == 8, question
        assert not any(question.expect.casefold() in row["messages"][0]["content"].casefold() for row in rows)


def test_a_plan_tells_all_that_is_wrong(tmp_path: Path, models: Path) -> None:
    recipe = tmp_path / "r.yaml"
    (tmp_path / "other.jsonl").write_text('{"a" 1}')
    recipe.write_text(
        "model: nope\ndata: {train: rows.jsonl, eval: other.jsonl}\nschedule: {steps: 1}\nquestions: q.jsonl\n"
    )
    with pytest.raises(InputError) as caught:
        plan.make(str(recipe), with_backend=False)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{recipe}:1:1: there is no model 'nope'")
    assert lines[1] == f"{recipe}:2:8: the file {tmp_path}/rows.jsonl does not exist; beside it there are other.jsonl"
    assert lines[2].startswith(f"{tmp_path}/other.jsonl:1:6: is not valid JSON")
    assert lines[3].startswith(f"{recipe}:4:1: the file {tmp_path}/q.jsonl does not exist")


def test_the_resolved_recipe_stands_alone(tmp_path: Path, models: Path) -> None:
    model(tmp_path / "near")
    (tmp_path / "d.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: near\ndata: d.jsonl\nschedule: {steps: 1}\n")
    resolved = plan.make(str(recipe), with_backend=False).resolved()
    assert resolved["model"] == str(tmp_path / "near")
    assert [each["path"] for each in resolved["data"]["train"]] == [str(tmp_path / "d.jsonl")]
    model(models / "far")
    resolved = plan.make(str(recipe), ("model=far",), with_backend=False).resolved()
    assert resolved["model"] == "far"


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert strix_train.__version__ == project["version"]


def test_the_demo_recipe_is_the_quick_one() -> None:
    schedule = load(ROOT / "recipes" / "demo.yaml").recipe.schedule
    assert schedule.learning_rate == 1e-3
    assert (schedule.steps or 0) * schedule.batch <= 256


def gguf(path: Path, version: int = 3) -> Path:
    path.write_bytes(b"GGUF" + version.to_bytes(4, "little") + b"\0" * 16)
    return path


def test_a_gguf_file_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = gguf(tmp_path / "small.Q4.gguf")
    found = names.find_model("small.Q4.gguf", tmp_path, Place("r.yaml", 1))
    assert (found.local, found.gguf) == (True, file)
    folder = Path(found.source)
    assert folder.parent == tmp_path / "cache" / "strix-finetune" / "imported"
    assert folder.name.startswith("small.Q4-")
    assert names.find_model(str(file), Path("/"), Place("r.yaml", 1)).source == found.source
    file.write_bytes(file.read_bytes() + b"\0")
    assert names.find_model("small.Q4.gguf", tmp_path, Place("r.yaml", 1)).source != found.source
    gguf(tmp_path / "old.gguf", version=1)
    assert "the model 'old.gguf' is a file: is GGUF of version 1; name a model folder" in refused("old.gguf", tmp_path)


def test_the_folder_of_a_gguf_file_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import subprocess

    from strix_train import importing
    from strix_train.console import Console
    from strix_train.errors import TrainError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gguf(tmp_path / "m.gguf")
    found = names.find_model("m.gguf", tmp_path, Place("r.yaml", 1))
    calls: list[list[str]] = []
    code = 2

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if code == 0:
            Path(command[-1]).mkdir()
        return subprocess.CompletedProcess(command, code, "", "some library's words\ntrain: the file is cut off\n")

    monkeypatch.setattr(importing.subprocess, "run", run)
    out = io.StringIO()
    with pytest.raises(TrainError, match=r"^the file is cut off$"):
        importing.ensure(found, Console(out))
    code = 0
    for _ in range(2):
        importing.ensure(found, Console(out))
    assert len(calls) == 2
    assert calls[0][-3:] == ["import", str(tmp_path / "m.gguf"), found.source]
    assert "becomes 16-bit weights in" in out.getvalue()
    importing.ensure(names.ModelName("o/n", "o/n", False), Console(out))


def test_the_resolved_recipe_names_the_folder_of_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gguf(tmp_path / "m.gguf")
    (tmp_path / "d.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: m.gguf\ndata: d.jsonl\nschedule: {steps: 1}\n")
    made = plan.make(str(recipe), with_backend=False)
    assert made.resolved()["model"] == made.model.source
    assert made.lengths == {}
