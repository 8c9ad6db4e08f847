"""Every method really trains: its loss and its margins move the right way, on both backends alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import method_runs
import pytest
import tiny_models as tiny
from workshop import Done, Workshop, metrics, report


@pytest.fixture(scope="module")
def done(workshop: Workshop) -> dict[str, Done]:
    """All runs of method_runs, one process a backend."""
    method_runs.write(workshop)
    found: dict[str, Done] = {}
    for backend in ("unsloth", "hf"):
        mine = {name: words for name, used, words in method_runs.runs() if used == backend}
        commands = [[*words, "--run-dir", name, "--set", f"backend={backend}"] for name, words in mine.items()]
        found |= dict(zip(mine, workshop.several(commands), strict=True))
    return found


@pytest.fixture
def run(done: dict[str, Done], workshop: Workshop, request: pytest.FixtureRequest) -> Path:
    """The folder of the run that a test is about."""
    name = request.param
    assert (done[name].code, done[name].err) == (0, ""), done[name].out
    return workshop.path / name


def of(*methods: str) -> Any:
    """Return the parameters of tests about these methods on both backends."""
    names = [f"{method}-{backend}" for method in methods for backend in ("unsloth", "hf")]
    return pytest.mark.parametrize("run", names, indirect=True)


def column(run: Path, name: str) -> list[float]:
    return [float(row[name]) for row in metrics(run) if name in row]


@of("cpt", "dpo", "orpo", "kto")
def test_the_loss_falls_and_the_result_is_written(run: Path) -> None:
    losses = column(run, "loss")
    assert len(losses) == method_runs.STEPS
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    found = report(run)
    assert found["method"] == run.name.split("-")[0]
    assert found["eval_loss"] < losses[0]
    assert found["tokens"] > 0
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    assert (run / "adapter" / "adapter_model.safetensors").is_file()
    # the copy of the adapter that TRL makes for a reference is gone
    assert not list((run / "adapter").glob("ref*"))


@of("dpo", "orpo", "kto")
def test_good_answers_get_likelier_than_bad_ones(run: Path) -> None:
    margins = column(run, "rewards/margins")
    if "orpo" not in run.name:
        assert margins[0] == 0
    assert sum(margins[-3:]) / 3 > margins[0] + 0.1
    chosen, rejected = column(run, "logps/chosen"), column(run, "logps/rejected")
    assert chosen[-1] - rejected[-1] > chosen[0] - rejected[0]


@of("dpo", "orpo")
def test_the_first_batch_of_pairs_is_told(run: Path) -> None:
    found = report(run)["first_batch"]
    answers = {row["messages"][1]["content"] + "<|im_end|>" for row in tiny.rows(24)}
    assert found["learned_text_of_chosen"] in answers
    assert found["learned_text_of_rejected"].startswith("It is ")
    assert found["learned_text_of_rejected"].endswith(", I think.<|im_end|>")
    assert 0 < found["learned_tokens"] < found["tokens"]


@of("kto")
def test_the_first_batch_of_marked_rows_is_told(run: Path) -> None:
    found = report(run)["first_batch"]
    assert found["learned_text_of_row_1"].endswith("<|im_end|>")
    assert found["rows"] == 4


@of("cpt")
def test_every_token_of_plain_text_is_learned(run: Path) -> None:
    found = report(run)["first_batch"]
    assert found["learned_tokens"] == found["tokens"]
    assert "After " in found["learned_text_of_row_1"]
    assert "<|im_start|>" not in found["learned_text_of_row_1"]


@of("grpo")
def test_answers_earn_more_and_more(run: Path) -> None:
    earned = column(run, "reward")
    assert len(earned) == 20
    assert sum(earned[-3:]) / 3 > 2 * sum(earned[:3]) / 3
    assert column(run, "rewards/vowels/mean")[-1] > 0.3
    assert len(column(run, "rewards/match/mean")) == 20
    found = report(run)
    assert found["first_batch"]["prompts"] == 32
    assert found["first_batch"]["different_prompts"] == 2
    assert found["tokens"] > 20 * 32 * 8
    assert (run / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("run", ["reward-hf"], indirect=True)
def test_a_reward_model_gives_chosen_answers_more(run: Path, workshop: Workshop) -> None:
    assert sum(column(run, "accuracy")[-3:]) / 3 == 1.0
    assert column(run, "margin")[-1] > column(run, "margin")[0] + 1
    assert not (run / "answers.jsonl").exists()
    import torch
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run / "adapter")
    base = AutoModelForSequenceClassification.from_pretrained(workshop.path / "models" / "llama", num_labels=1)
    base.config.pad_token_id = tokenizer.pad_token_id
    model = PeftModel.from_pretrained(base, str(run / "adapter")).eval()
    for pair in method_runs.preferences(4):
        scores = []
        for which in ("chosen", "rejected"):
            text = tokenizer.apply_chat_template([*pair["prompt"], *pair[which]], tokenize=False)
            with torch.no_grad():
                found = tokenizer(text, add_special_tokens=False, return_tensors="pt")
                scores.append(float(model(**found).logits[0, 0]))
        assert scores[0] > scores[1] + 0.5


@pytest.mark.parametrize(
    "run", [f"{name}-{backend}" for name, used in method_runs.ADAPTERS.items() for backend in used], indirect=True
)
def test_every_adapter_learns(run: Path) -> None:
    losses = column(run, "loss")
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])
    kind = run.name.split("-")[0]
    found = report(run)
    if kind == "full":
        assert found["trainable_parameters"] == found["parameters"]
        assert (run / "model" / "model.safetensors").is_file()
        return
    assert found["trainable_parameters"] < found["parameters"]
    written = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert (written["use_rslora"], written["use_dora"]) == (kind == "rslora", kind == "dora")
    # held in fewer bits, the frozen model says other things than in 16
    if kind in ("qlora", "lora8bit"):
        assert losses[0] != pytest.approx(column(run.parent / "rslora-hf", "loss")[0], rel=1e-4)


@pytest.mark.parametrize("run", ["dpo-full-hf"], indirect=True)
def test_a_model_that_learns_whole_keeps_its_reference(run: Path) -> None:
    margins = column(run, "rewards/margins")
    assert margins[0] == 0
    assert margins[-1] > 1
    assert (run / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("method", ["cpt", "dpo", "orpo", "kto", "grpo"])
def test_both_backends_walk_the_same_way(done: dict[str, Done], workshop: Workshop, method: str) -> None:
    ours, theirs = (column(workshop.path / f"{method}-{backend}", "loss") for backend in ("unsloth", "hf"))
    assert ours == pytest.approx(theirs, rel=5e-3, abs=1e-4)


@pytest.mark.parametrize("backend", ["unsloth", "hf"])
def test_packed_rows_have_the_loss_and_the_gradient_of_single_ones(
    done: dict[str, Done], workshop: Workshop, backend: str
) -> None:
    plain, packed = (workshop.path / f"{name}-{backend}" for name in ("plain", "packed"))
    assert (done[plain.name].err, done[packed.name].err) == ("", "")
    assert "packing   24 rows in 4 of 128 tokens" in done[packed.name].out
    for name in ("loss", "grad_norm"):
        assert column(packed, name) == pytest.approx(column(plain, name), rel=1e-4)
    # the first token of each row is no label, as it is none without packing either
    assert report(packed)["first_batch"]["learned_tokens"] == report(plain)["first_batch"]["learned_tokens"]
    assert report(packed)["tokens"] == report(plain)["tokens"]


def test_every_method_goes_on_to_the_same_end(done: dict[str, Done], workshop: Workshop) -> None:
    """Resumed from the middle of a run, and of an epoch's end, the weights are the same to the last bit."""
    methods = ("cpt", "dpo", "orpo", "kto", "reward", "grpo")
    short = ["--set", "backend=hf", "--set", "schedule.steps=8", "--set", "checkpoints={every: 4, keep: 2}"]
    commands = [[f"of-{method}.yaml", *short, "--run-dir", f"long-{method}"] for method in methods]
    for each in workshop.several(commands):
        assert (each.code, each.err) == (0, ""), each.out
    for method in methods:
        whole, cut = workshop.path / f"long-{method}", workshop.path / f"cut-{method}"
        shutil.copytree(whole, cut)
        for name in ("status.json", "report.json", "report.html", "loss.png"):
            (cut / name).unlink(missing_ok=True)
        for name in ("adapter", "checkpoints/checkpoint-8"):
            shutil.rmtree(cut / name)
    commands = [[f"of-{method}.yaml", *short, "--run-dir", f"cut-{method}", "--resume"] for method in methods]
    for method, each in zip(methods, workshop.several(commands), strict=True):
        assert (each.code, each.err) == (0, ""), each.out
        assert "resume    from step 4 of 8" in each.out
        whole, cut = workshop.path / f"long-{method}", workshop.path / f"cut-{method}"
        weights = [(run / "adapter" / "adapter_model.safetensors").read_bytes() for run in (whole, cut)]
        assert weights[0] == weights[1], method
        assert column(whole, "loss") == column(cut, "loss")
