"""What comes after a run says where its model or its rows are others than they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strix_train import origin, plan
from strix_train.origin import find
from strix_train.plan import Plan


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder, model = tmp_path / "r-1", tmp_path / "base"
    (folder / "adapter").mkdir(parents=True)
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{at}", "completion": "b"}}\n' for at in range(20)))
    recipe = f"model: {model}\ndata: {tmp_path}/rows.jsonl\nschedule: {{steps: 1}}\nevaluation: {{split: 4}}\n"
    (folder / "recipe.resolved.yaml").write_text(recipe)
    (folder / "adapter" / "adapter_config.json").write_text('{"r": 8}')
    (folder / "versions.json").write_text(json.dumps({"inputs": planned(folder).inputs()}))
    return folder


def planned(folder: Path) -> Plan:
    return plan.make(str(folder / "recipe.resolved.yaml"), with_backend=False)


def test_all_as_it_was(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin.look(find(str(run)), planned(run))
    assert capsys.readouterr() == ("", "")


def test_another_model_below_an_adapter(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run.parent / "base" / "model.safetensors").write_bytes(b"WEIGHTS")
    find(str(run))
    said = f"the content of the model differs from what it was, so the adapter in {run}/adapter may not fit it"
    assert capsys.readouterr() == ("", f"train: warning: {said}\n")


def test_rows_that_were_added(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (run.parent / "rows.jsonl").open("a") as stream:
        stream.write('{"prompt": "new", "completion": "b"}\n')
    origin.look(find(str(run)), planned(run))
    said = "the content of data.train differs from what it was, so rows that it learned may be among those"
    assert capsys.readouterr().err == f"train: warning: {said} that are measured\n"


@pytest.mark.parametrize("text", ["", "[]", '{"inputs": 3}', "{}"])
def test_runs_that_do_not_say_what_they_were_trained_on(
    run: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (run / "versions.json").write_text(text)
    origin.look(find(str(run)), planned(run))
    assert capsys.readouterr() == ("", "")
