"""What a recipe names is looked up on the host before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strix_finetune.errors import InputError
from strix_finetune.recipefacts import RecipeFacts, find, of_words

RECIPE = """\
model: ./model
data:
  train: rows.jsonl
  eval: [eval.jsonl, someone/somewhere]
questions: {file: questions.jsonl}
schedule: {steps: 1}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A project with a recipe and all that it names."""
    project = tmp_path / "project"
    (project / "model").mkdir(parents=True)
    (project / "model/config.json").write_text("{}")
    for name in ("rows.jsonl", "eval.jsonl", "questions.jsonl"):
        (project / name).write_text("")
    (project / "mine.yaml").write_text(RECIPE)
    (tmp_path / "recipes/data").mkdir(parents=True)
    (tmp_path / "recipes/demo.yaml").write_text("model: demo\ndata: data/x.jsonl\nschedule: {steps: 1}\n")
    (tmp_path / "recipes/data/x.jsonl").write_text("")
    (tmp_path / "models/demo").mkdir(parents=True)
    (tmp_path / "models/demo/config.json").write_text("{}")
    return tmp_path


def look(place: Path, word: str, *arguments: str, workdir: str = "project") -> RecipeFacts:
    return find(word, arguments, place / workdir, place / "recipes", place / "models")


def test_all_that_a_recipe_reads_and_writes(place: Path) -> None:
    project = place / "project"
    facts = look(place, "mine.yaml")
    assert facts.argument == str(project / "mine.yaml")
    names = ("mine.yaml", "rows.jsonl", "eval.jsonl", "questions.jsonl", "model")
    assert facts.reads == tuple(project / name for name in names)
    assert facts.writes == (project / "runs",)
    assert look(place, "mine.yaml", "--run-dir=/tmp/x").writes == (Path("/tmp/x"),)
    assert look(place, "mine.yaml", "--set", "output=../out").writes == (place / "out",)


def test_a_name_of_ours_needs_the_model_alone(place: Path) -> None:
    facts = look(place, "demo")
    assert facts.argument == "/opt/strix-finetune/recipes/demo.yaml"
    assert facts.reads == (place / "models/demo",)
    assert "STRIX_MODELS" not in os.environ
    rows = place / "project/rows.jsonl"
    assert look(place, "demo", f"--set=data={rows}").reads == (rows, place / "models/demo")
    # the same file by its path is a file of the user's, and so is what lies beside it
    assert place / "recipes/data/x.jsonl" in look(place, "../recipes/demo.yaml").reads


@pytest.mark.parametrize("name", ["rows.jsonl", "eval.jsonl", "questions.jsonl"])
def test_a_missing_file_is_one_sentence_with_its_line(place: Path, name: str) -> None:
    (place / "project" / name).unlink()
    with pytest.raises(InputError, match=rf"mine\.yaml:\d+:\d+: the file .*/{name} does not exist; ") as caught:
        look(place, "mine.yaml")
    assert len(caught.value.problems) == 1
    assert not (place / "project" / name).exists()


def test_a_missing_model_is_one_sentence(place: Path) -> None:
    (place / "project/mine.yaml").write_text(RECIPE.replace("./model", "./other"))
    with pytest.raises(InputError, match=r"mine\.yaml:1:1: there is no folder .*/other"):
        look(place, "mine.yaml")
    (place / "models/demo/config.json").unlink()
    with pytest.raises(InputError, match=r"has no config\.json"):
        look(place, "demo")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("other.yaml", r"other\.yaml: the recipe does not exist"),
        ("sub/other", "sub/other: the recipe does not exist"),
        ("model", "model: the recipe is a folder"),
        ("dema", "no recipe 'dema', neither here nor among ours; did you mean 'demo'"),
    ],
)
def test_a_recipe_that_is_not_there(place: Path, word: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        look(place, word)


def test_a_fault_of_a_recipe_is_told_before_any_container(place: Path) -> None:
    (place / "project/mine.yaml").write_text(RECIPE + "shedule: {}\n")
    with pytest.raises(InputError, match=r"mine\.yaml:7:1: .*shedule"):
        look(place, "mine.yaml")
    with pytest.raises(InputError, match="--set"):
        look(place, "demo", "--set", "steps")


def test_links_are_followed_out_of_what_is_mounted(place: Path) -> None:
    outside = place / "outside"
    outside.mkdir()
    (outside / "rows.jsonl").write_text("")
    (outside / "blob").write_text("")
    rows = place / "project/rows.jsonl"
    rows.unlink()
    rows.symlink_to(outside / "rows.jsonl")
    (place / "project/model/weights").symlink_to("../../outside/blob")
    (place / "project/runs").symlink_to(outside)
    facts = look(place, "mine.yaml")
    assert outside / "rows.jsonl" in facts.reads
    assert outside in facts.reads
    assert facts.writes == (place / "project/runs", outside)


def test_words_of_other_commands_that_are_paths(place: Path) -> None:
    project = place / "project"
    words = ("export", "../models/demo", "--as", "gguf", f"--to={place}/new", "rows.jsonl", "/no/such/folder/x", "/new")
    assert of_words(words, project) == RecipeFacts("", (project / "rows.jsonl",), (place / "models/demo", place))


def test_what_lies_above_is_not_taken_for_something_in_the_project(place: Path) -> None:
    (place / "rows.jsonl").write_text("")
    (place / "project/mine.yaml").write_text(RECIPE.replace("rows.jsonl", "../rows.jsonl"))
    assert place / "rows.jsonl" in look(place, "mine.yaml").reads
    assert look(place, "../project/mine.yaml").argument == str(place / "project/mine.yaml")


def test_where_a_run_goes_must_be_a_folder_of_ones_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"mine\.yaml is not a folder"):
        look(place, "mine.yaml", "--run-dir", "mine.yaml/run")
    with pytest.raises(InputError, match=r"there is no run folder .*/gone; leave --resume out"):
        look(place, "mine.yaml", "--resume", "--run-dir", "gone")
    (place / "project/old").mkdir()
    assert look(place, "mine.yaml", "--resume", "--run-dir", "old").writes == (place / "project/old",)
    # root may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("/old"))
    with pytest.raises(InputError, match="/old is not yours to write to; name another folder"):
        look(place, "mine.yaml", "--run-dir", "old/new")
