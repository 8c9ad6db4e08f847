"""What a run leaves when its end is disturbed, and that it goes on as what it was: the same model, rewards and rows."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
from safetensors.torch import load_file, save_file
from test_train_resume import result
from workshop import ROOT, Forks, Workshop, metrics, report

Hf = Callable[[str], Forks]
# as wandb and trackio are: nothing may be logged before init, nor after finish
TRACKER = """
import json
open_ = None
def init(dir=".", **how):
    global open_
    open_ = open(dir + "/told.jsonl", "a")
def log(values, step):
    if open_ is None: raise RuntimeError("You must call wandb.init() before wandb.log()")
    print(json.dumps([step, sorted(values)]), file=open_, flush=True)
def finish():
    global open_
    open_.close(); open_ = None
"""


def recipe(workshop: Workshop, name: str, **keys: Any) -> list[Any]:
    path = workshop.recipe(name, **{"precision": "fp32", "backend": "hf", "schedule__steps": 6} | keys)
    return [path, "--run-dir", workshop.path / f"run-{name}"]


def rows_of(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def steps_kept(run: Path) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in (run / "checkpoints").glob("checkpoint-*")}


def test_a_tracker_hears_of_the_evaluation_at_the_end(workshop: Workshop) -> None:
    tools = workshop.path / "tools"
    tools.mkdir()
    (tools / "wandb.py").write_text(TRACKER)
    words = recipe(workshop, "tracked", logging={"to": ["wandb"]}, evaluation={"split": 4})
    done = workshop.train(*map(str, words), env={"PYTHONPATH": f"{ROOT / 'src'}:{tools}"})
    assert done.code == 0, done.err
    told = rows_of(words[-1], "told.jsonl")
    assert told[-1] == [6, ["eval_loss"]]
    assert [step for step, names in told if "loss" in names] == list(range(1, 7))


def test_how_often_is_looked_may_change_while_a_run_goes_on(workshop: Workshop, forks: Hf) -> None:
    keys = {"schedule__steps": 20, "evaluation": {"split": 4, "every": 20}, "checkpoints": {"every": 0}}
    words = recipe(workshop, "oftener", **keys)
    kill = {"signal": signal.SIGINT, "step": 2, "metrics": str(words[-1] / "metrics.jsonl")}
    assert forks("hf").train(*words, kill=kill).code == 130
    [began] = steps_kept(words[-1])
    more = ["--set", "checkpoints={every: 2, keep: 99}", "--set", "evaluation.every=3"]
    done = forks("hf").train(*words, "--resume", *more)
    assert done.code == 0, done.err
    assert steps_kept(words[-1]) == {began, *(step for step in range(2, 21, 2) if step > began)}
    looked = [row["step"] for row in rows_of(words[-1], "evaluations.jsonl")]
    assert looked == [*(step for step in range(3, 20, 3) if step > began), 20]
    # one after the last step is not done again at the end
    looks = recipe(workshop, "once", evaluation={"split": 4, "every": 3})
    assert forks("hf").train(*looks).code == 0
    assert [row["step"] for row in rows_of(looks[-1], "evaluations.jsonl")] == [3, 6]
    assert report(looks[-1])["eval_loss"] == rows_of(looks[-1], "evaluations.jsonl")[-1]["eval_loss"]


def test_evaluations_change_no_weight(workshop: Workshop, forks: Hf) -> None:
    adapter = {"kind": "lora", "r": 8, "dropout": 0.2}
    for name, every in (("seldom", 0), ("often", 2)):
        words = recipe(workshop, name, adapter=adapter, evaluation={"split": 4, "every": every})
        assert forks("hf").train(*words).code == 0
    assert result(workshop.path / "run-seldom") == result(workshop.path / "run-often")


def test_the_result_is_there_before_the_last_evaluation(workshop: Workshop) -> None:
    tiny.write_rows(workshop.path / "many.jsonl", tiny.rows(24) * 250)
    keys = {"data": {"train": "rows.jsonl", "eval": "many.jsonl"}, "evaluation": {"batch": 1}}
    words = recipe(workshop, "long-end", **keys)
    running = workshop.start(*map(str, words))
    try:
        while running.poll() is None and not (words[-1] / "adapter").is_dir():
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=100)
    finally:
        running.kill()
    assert running.returncode == 130, out + err
    assert not (words[-1] / "evaluations.jsonl").exists()
    assert len(result(words[-1])) > 10_000


def changed_model(workshop: Workshop) -> list[Any]:
    shutil.copytree(workshop.path / "models/llama", workshop.path / "models/other")
    return recipe(workshop, "other-model", model="other", checkpoints={"every": 2})


def change_model(workshop: Workshop) -> None:
    path = workshop.path / "models/other/model.safetensors"
    save_file({name: weight * 1.01 for name, weight in load_file(path).items()}, path, metadata={"format": "pt"})


def changed_template(workshop: Workshop) -> list[Any]:
    (workshop.path / "mine.jinja").write_text(TEMPLATE)
    data = {"train": "rows.jsonl", "template": "mine.jinja"}
    return recipe(workshop, "other-template", data=data, checkpoints={"every": 2})


def change_template(workshop: Workshop) -> None:
    (workshop.path / "mine.jinja").write_text(TEMPLATE.replace("said", "says"))


TEMPLATE = "{% for m in messages %}{{ m.role }} said: {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("begin", "change", "what"),
    [
        (changed_model, change_model, "the content of the model"),
        (changed_template, change_template, "the content of data.template"),
    ],
)
def test_a_run_goes_on_with_what_it_began_with(
    workshop: Workshop, forks: Hf, begin: Callable[..., list[Any]], change: Callable[..., None], what: str
) -> None:
    words = begin(workshop)
    kill = {"signal": signal.SIGINT, "step": 3, "metrics": str(words[-1] / "metrics.jsonl")}
    assert forks("hf").train(*words, kill=kill).code == 130
    before = metrics(words[-1])
    change(workshop)
    done = forks("hf").train(*words, "--resume")
    assert done.code == 2, done.out + done.err
    assert f"{what} differs from what it was; resume with the same recipe and data" in done.err
    assert metrics(words[-1]) == before


def test_odds_ratios_of_a_model_without_a_pad_token(workshop: Workshop, forks: Hf) -> None:
    folder = shutil.copytree(workshop.path / "models/llama", workshop.path / "models/nopad")
    for name in ("tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            value = json.loads((folder / name).read_text())
            value.pop("pad_token", None)
            value.pop("pad_token_id", None)
            (folder / name).write_text(json.dumps(value))
    pairs = str(ROOT / "recipes/data/demo-preferences.jsonl")
    words = recipe(workshop, "nopad", model="nopad", method="orpo", data={"train": pairs}, schedule__max_length=256)
    done = forks("hf").train(*words)
    assert done.code == 0, done.err


def test_prompts_that_fill_no_step(workshop: Workshop, forks: Hf) -> None:
    tiny.write_rows(workshop.path / "few.jsonl", [{"prompt": f"Say {word}"} for word in tiny.WORDS])
    method = {"kind": "grpo", "rewards": [{"kind": "length", "most": 9}], "generations": 2, "max_new_tokens": 4}
    keys = {"method": method, "data": {"train": "few.jsonl"}, "schedule__steps": None, "schedule__epochs": 2}
    words = recipe(workshop, "few", **keys, schedule__accumulation=6)
    done = forks("hf").train(*words)
    assert done.code == 2, done.out
    assert "a step takes 12 prompts, and there are 10; lower schedule.accumulation" in done.err
    assert not (words[-1] / "adapter").exists()
    # of ten, each epoch trains two steps of four prompts
    words = recipe(workshop, "fewer", **keys, schedule__accumulation=2)
    assert forks("hf").train(*words).code == 0
    assert len(metrics(words[-1])) == 4
