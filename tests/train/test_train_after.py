"""What watches a run, and what comes after it: samples, the guard, exports, evaluation, the page."""

from __future__ import annotations

import json
import math
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from scenarios import STEPS
from workshop import Done, Workshop, metrics, report

from strix_train import checkpoints as checkpointing


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def after(runs: dict[str, Done], workshop: Workshop) -> dict[str, Done]:
    """The commands of these tests, in one process."""
    _misfit(workshop.path / "run-hf" / "adapter", workshop.path / "misfit")
    commands: dict[str, list[str]] = {
        "merged-llama": ["export", "run-llama", "--as", "merged"],
        "merged-gemma3": ["export", "run-gemma3", "--as", "merged"],
        "adapter": ["export", "run-hf", "--as", "adapter", "--to", "sent"],
        "checkpoint": ["export", "whole-hf/checkpoints/checkpoint-30", "--as", "merged", "--to", "at-30"],
        "twice": ["export", "run-llama", "--as", "merged"],
        "gguf": ["export", "run-hf", "--as", "gguf"],
        "eval": ["eval", "run-hf", "--json"],
        "eval-checkpoint": ["eval", "whole-hf/checkpoints/checkpoint-30", "--rows", "1"],
        "eval-pairs": ["eval", "run-hf", "--data", "pairs.jsonl", "--rows", "5"],
        "eval-nothing": ["eval", "pairs"],
        "eval-tasks": ["eval", "run-hf", "--tasks", "hellaswag"],
        "report": ["report", "run-hf", "--to", "page.html"],
        "generate": ["generate", "run-llama/export/merged", "-p", "What follows red?"],
        "misfit": ["generate", "misfit", "-p", "What follows red?"],
        "generate-adapter": ["generate", "run-llama", "-p", "What follows red?"],
    }
    return dict(zip(commands, workshop.several(list(commands.values())), strict=True))


def _misfit(adapter: Path, target: Path) -> None:
    """Make an adapter for a model with more layers."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(adapter, target)
    weights = load_file(adapter / "adapter_model.safetensors")
    renamed = {name.replace(".layers.1.", ".layers.7."): value for name, value in weights.items()}
    save_file(renamed, target / "adapter_model.safetensors", metadata={"format": "pt"})


def test_an_adapter_that_does_not_fit_is_refused(after: dict[str, Done]) -> None:
    """peft only warns, and the model would answer as if it had never been trained."""
    assert after["misfit"].code == 1
    assert "does not fit the model: 14 of its 28 weights have no place in it, such as" in after["misfit"].err


@pytest.mark.parametrize("backend", ["unsloth", "hf"])
def test_samples_are_taken_and_change_nothing(runs: dict[str, Done], workshop: Workshop, backend: str) -> None:
    assert (runs[f"sampled-{backend}"].code, runs[f"sampled-{backend}"].err) == (0, "")
    run, plain = workshop.path / f"sampled-{backend}", workshop.path / f"whole-{backend}"
    found = lines(run / "samples.jsonl")
    assert [line["step"] for line in found] == [step for step in range(5, STEPS + 1, 5) for _ in range(2)]
    assert {line["prompt"] for line in found} == {"What follows red?", "Blue"}
    assert "sample    step 5: What follows red? → " in runs[f"sampled-{backend}"].out
    adapter = Path("adapter") / "adapter_model.safetensors"
    assert (run / adapter).read_bytes() == (plain / adapter).read_bytes()
    assert [row["loss"] for row in metrics(run)] == [row["loss"] for row in metrics(plain)]


def test_a_run_that_loses_what_it_learned_stops_at_its_last_good_checkpoint(
    runs: dict[str, Done], workshop: Workshop
) -> None:
    done, run = runs["spiked"], workshop.path / "spiked"
    assert done.code == 1
    losses = [row["loss"] for row in metrics(run)]
    assert len(losses) < 100
    (left,) = (run / "checkpoints").iterdir()
    good = checkpointing.step_of(left)
    assert checkpointing.fault(left, deep=True) == ""
    assert len(losses) - 5 - 3 <= good <= len(losses) - 5
    assert f"at step {len(losses)}, and " in done.err
    assert f"the last good checkpoint is {left}; try a lower schedule.learning_rate" in done.err
    # which steps rise depends on how this machine's torch rounds; those that stopped the run are above the limit
    said = re.search(r"above ([\d.]+) since step (\d+)", done.err)
    assert said
    assert int(said[2]) == len(losses) - 4
    assert min(losses[-5:]) > float(said[1]) - 0.01 > min(losses) + 1
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    assert "the loss has been above" in (run / "report.html").read_text()


def test_a_run_ends_with_its_exports_and_was_evaluated_on_the_way(runs: dict[str, Done], workshop: Workshop) -> None:
    done, run = runs["exported"], workshop.path / "exported"
    assert (done.code, done.err) == (0, "")
    evaluations = lines(run / "evaluations.jsonl")
    assert [line["step"] for line in evaluations][:3] == [2, 4, 6]
    assert all(math.isfinite(float(str(line["eval_loss"]))) for line in evaluations)
    assert report(run)["eval_loss"] == pytest.approx(evaluations[-1]["eval_loss"])
    assert (run / "export" / "merged" / "model.safetensors").is_file()
    assert "model.safetensors" in done.out
    assert "answers are the model's own" in done.out
    page = (run / "report.html").read_text()
    assert "export/merged" in page
    assert "held-out rows" in page


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_merged_model_is_the_trained_model(after: dict[str, Done], workshop: Workshop, family: str) -> None:
    """Loaded as any model, without peft, it has the trained adapter's logits."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = after[f"merged-{family}"]
    assert done.code == 0, done.err
    run = workshop.path / f"run-{family}"
    merged = run / "export" / "merged"
    facts = json.loads((merged / "export.json").read_text())
    assert facts["comparison"]["alike"] == facts["comparison"]["of"] == 1
    assert facts["comparison"]["distance"] < 0.01
    assert not list(run.glob("export/.*"))
    tokenizer = AutoTokenizer.from_pretrained(merged)
    base = AutoModelForCausalLM.from_pretrained(workshop.path / "models" / family, dtype=torch.float32)
    found = tokenizer("What follows red? After", return_tensors="pt")
    with torch.no_grad():
        plain = base(**found).logits
        trained = PeftModel.from_pretrained(base, str(run / "adapter")).eval()(**found).logits
        alone = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()(**found).logits
    assert torch.allclose(alone, trained, atol=2e-3)
    assert float((plain - trained).abs().max()) > 0.5


def test_a_merged_model_answers_as_its_run(after: dict[str, Done]) -> None:
    assert after["generate"].code == after["generate-adapter"].code == 0
    assert after["generate"].out == after["generate-adapter"].out


def test_other_exports(after: dict[str, Done], workshop: Workshop) -> None:
    assert after["adapter"].code == after["checkpoint"].code == 0
    assert (
        json.loads((workshop.path / "sent" / "adapter_config.json").read_text())["base_model_name_or_path"] == "llama"
    )
    assert (workshop.path / "at-30" / "model.safetensors").is_file()
    assert after["twice"].code == 2
    assert "export/merged exists; remove it, or name another folder with --to" in after["twice"].err
    # this tokenizer is of nobody's, and llama.cpp wants to know whose it is
    assert after["gguf"].code in (1, 2)
    assert len(after["gguf"].err.splitlines()[-1:]) == 1
    assert "BPE pre-tokenizer was not recognized" in after["gguf"].err or "use an image with" in after["gguf"].err
    assert not (workshop.path / "run-hf" / "export" / "gguf-q8_0").exists()


def test_evaluation_measures_what_training_changed(after: dict[str, Done], workshop: Workshop) -> None:
    run = workshop.path / "run-hf"
    assert after["eval"].code == 0, after["eval"].err
    found = json.loads(after["eval"].out)
    told = found["after"]["foretold"]
    assert told["rows"] == 6
    # the trainer averages over batches of rows, which differ a little in length
    assert told["loss"] == pytest.approx(report(run)["eval_loss"], rel=0.05)
    assert told["perplexity"] == pytest.approx(math.exp(told["loss"]))
    assert found["before"]["foretold"]["loss"] > 2 * told["loss"]
    assert found["before"]["foretold"]["tokens"] == told["tokens"]
    assert found["after"]["answered"]["questions"] == 1
    assert [line["model"] for line in found["answers"]] == ["without adapter", "trained"]
    assert "perplexity" in (run / "report.html").read_text()

    assert after["eval-checkpoint"].code == 0, after["eval-checkpoint"].err
    assert (workshop.path / "whole-hf" / "evaluation-checkpoint-30.json").is_file()
    assert not (workshop.path / "whole-hf" / "evaluation.json").exists()

    pairs = after["eval-pairs"]
    assert pairs.code == 0, pairs.err
    assert "(5 rows, " in pairs.out
    assert after["eval-nothing"].code == 2
    assert "has neither evaluation rows nor questions; give --data or --questions" in after["eval-nothing"].err
    if find_spec("lm_eval") is None:
        assert after["eval-tasks"].code == 2
        assert "--tasks needs the package lm-eval, which is not here" in after["eval-tasks"].err


def test_the_page_of_a_run(after: dict[str, Done], workshop: Workshop) -> None:
    assert after["report"].code == 0, after["report"].err
    page = (workshop.path / "page.html").read_text()
    assert page == (workshop.path / "run-hf" / "report.html").read_text()
    for words in ("transformers", "30 of 30", "What follows red?", "<polyline", "adapter:"):
        assert words in page, words


def test_a_tracker_that_is_not_here_is_asked_for_in_vain(workshop: Workshop) -> None:
    missing = next((name for name in ("trackio", "wandb", "tensorboard") if find_spec(name) is None), None)
    if missing is None:
        pytest.skip("every tracker is installed")
    done = workshop.train("short.yaml", "--set", f"logging.to={missing}")
    assert done.code == 2
    assert f"logging to {missing} needs the package {missing}, which is not here; install it, or take" in done.err
