"""LoRA on tiny models of three families: what is learned, what is written, and that it is what was trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_models as tiny
from scenarios import SHIPPED
from workshop import Done, Workshop, metrics, report

NAMES = [*tiny.FAMILIES, "hf"]


@pytest.fixture
def folders(runs: dict[str, Done], workshop: Workshop) -> dict[str, Path]:
    """The run folders by family, and 'hf' for llama on plain transformers."""
    for name in NAMES:
        assert (runs[f"run-{name}"].code, runs[f"run-{name}"].err) == (0, "")
    return {name: workshop.path / f"run-{name}" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_falls_and_everything_is_written(folders: dict[str, Path], name: str) -> None:
    run = folders[name]
    rows = metrics(run)
    assert [row["step"] for row in rows] == list(range(1, 31))
    losses = [row["loss"] for row in rows]
    assert sum(losses[-5:]) / 5 < 0.6 * sum(losses[:3]) / 3
    assert all(row["lr"] == 5e-3 and row["seconds"] > 0 and row["tokens"] > 0 for row in rows)
    assert all(row["grad_norm"] > 0 and row["peak_memory"] > 1e8 and row["tokens_per_s"] > 0 for row in rows)
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (run / "recipe.resolved.yaml").is_file()
    assert "Unsloth" in (run / "log.txt").read_text() or name == "hf"
    for file in ("adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (run / "adapter" / file).is_file(), file
    answers = [json.loads(line) for line in (run / "answers.jsonl").read_text().splitlines()]
    assert [answer["phase"] for answer in answers] == ["before", "after"]
    assert not list(run.rglob("*.partial"))


@pytest.mark.parametrize("name", NAMES)
def test_only_the_answers_were_learned(folders: dict[str, Path], name: str) -> None:
    found = report(folders[name])["first_batch"]
    end = "<end_of_turn>" if name == "gemma3" else "<|im_end|>"
    answers = {row["messages"][1]["content"] + end for row in tiny.rows(24)}
    assert found["learned_text_of_row_1"] in answers
    assert found["rows"] == 4
    assert 4 * 3 < found["learned_tokens"] < found["tokens"]


def test_the_versions_say_what_it_ran_on(folders: dict[str, Path]) -> None:
    found = json.loads((folders["llama"] / "versions.json").read_text())
    assert found["backend"] == "unsloth"
    assert found["packages"]["unsloth"] == "2026.10.9"
    assert found["device"]["kind"] == "cpu"
    assert found["torch"]["threads"] == 1
    assert len(found["inputs"]["train_sha256"]) == 64


def test_both_backends_walk_the_same_way(folders: dict[str, Path]) -> None:
    """Every hyperparameter is set on both sides, so that the losses agree, not only their direction."""
    ours, theirs = ([row["loss"] for row in metrics(folders[name])] for name in ("llama", "hf"))
    assert ours == pytest.approx(theirs, rel=2e-3)
    ours, theirs = ([row["grad_norm"] for row in metrics(folders[name])][:10] for name in ("llama", "hf"))
    assert ours == pytest.approx(theirs, rel=2e-2)


def test_what_the_user_sees(runs: dict[str, Done]) -> None:
    lines = runs["run-hf"].out.splitlines()
    assert lines[0].startswith("strix-train ")
    assert "torch 2." in lines[0]
    assert "no GPU will be used" in lines[0]
    words = [line.split()[0] for line in lines]
    for word in (
        "recipe",
        "model",
        "data",
        "run",
        "backend",
        "rows",
        "adapter",
        "before",
        "eval",
        "after",
        "loss",
        "time",
    ):
        assert word in words, word
    assert any(line.startswith("backend   transformers") and "(asked for), fp32" in line for line in lines)
    assert any(line.startswith("step 30/30") for line in lines)


@pytest.mark.parametrize("name", ["llama", "gemma3", "hf"])
def test_the_saved_adapter_is_the_trained_model(folders: dict[str, Path], workshop: Workshop, name: str) -> None:
    """Loaded again by peft alone, and merged by hand, it has the loss that the trainer measured."""
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = folders[name]
    folder = workshop.path / "models" / ("llama" if name == "hf" else name)
    tokenizer = AutoTokenizer.from_pretrained(run / "adapter")
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    plain = base.eval()
    total, count, logits, inputs = 0.0, 0, [], []
    texts = []
    for row in tiny.rows(30)[24:]:
        whole = tokenizer.apply_chat_template(row["messages"], tokenize=False)
        start = len(tokenizer.apply_chat_template(row["messages"][:1], tokenize=False, add_generation_prompt=True))
        texts.append((whole, start, start + len(row["messages"][1]["content"])))
    with torch.no_grad():
        untrained = [
            plain(**tokenizer(text, add_special_tokens=False, return_tensors="pt")).logits for text, *_ in texts
        ]
    model = PeftModel.from_pretrained(base, str(run / "adapter")).eval()
    with torch.no_grad():
        for whole, start, end in texts:
            found = tokenizer(whole, add_special_tokens=False, return_tensors="pt", return_offsets_mapping=True)
            spans = found.pop("offset_mapping")[0].tolist()
            labels = [index for index, (a, _) in enumerate(spans) if start <= a <= end]
            out = model(**found).logits
            scores = out[0].log_softmax(-1)
            for index in labels:
                total -= float(scores[index - 1, found["input_ids"][0, index]])
                count += 1
            logits.append(out)
            inputs.append(found)
    mean = total / count
    # the trainer averages over batches of rows, which differ a little in length
    assert mean == pytest.approx(report(run)["eval_loss"], rel=0.05)
    assert max(float((a - b).abs().max()) for a, b in zip(untrained, logits, strict=True)) > 0.5

    config = json.loads((run / "adapter" / "adapter_config.json").read_text())
    weights = load_file(run / "adapter" / "adapter_model.safetensors")
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    modules = dict(merged.named_modules())
    touched = 0
    for key, low in weights.items():
        if key.endswith("lora_A.weight"):
            target = modules[key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")]
            high = weights[key.replace("lora_A", "lora_B")]
            target.weight.data += (config["lora_alpha"] / config["r"]) * high.float() @ low.float()
            touched += 1
    assert touched == 2 * 7
    with torch.no_grad():
        for found, expected in zip(inputs, logits, strict=True):
            assert torch.allclose(merged(**found).logits, expected, atol=2e-3)


def test_generate_answers_as_the_run_did(folders: dict[str, Path], workshop: Workshop) -> None:
    (answer,) = (
        json.loads(line)
        for line in (folders["hf"] / "answers.jsonl").read_text().splitlines()
        if json.loads(line)["phase"] == "after"
    )
    done = workshop.train(
        "generate", "run-hf", "-p", answer["prompt"], "-p", "What follows stone?", "--json", "--max-new-tokens", "64"
    )
    assert (done.code, done.err) == (0, "")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["prompt"] for line in lines] == [answer["prompt"], "What follows stone?"]
    assert lines[0]["answer"] == answer["answer"]
    assert "<|im_end|>" not in done.out


def test_the_shipped_recipes_run_at_tiny_size(runs: dict[str, Done], workshop: Workshop) -> None:
    for name in SHIPPED:
        assert (runs[f"run-{name}"].code, runs[f"run-{name}"].err) == (0, "")
        assert report(workshop.path / f"run-{name}")["steps_done"] == 2
