"""What follows the training of a reward model: it is measured by its numbers, and never asked for words."""

from __future__ import annotations

import json

import method_runs
import pytest
from workshop import Done, Workshop

PIECES = {"lora": [], "full": ["--set", "adapter=full"]}


@pytest.fixture(scope="module")
def done(workshop: Workshop) -> dict[str, Done]:
    """Reward models that have hardly learned, so that some pairs are still the wrong way round, and what was asked."""
    method_runs.write(workshop)
    hardly = ["--set", "schedule.steps=1", "--set", "schedule.learning_rate=1e-6", "--set", "schedule.seed=2"]
    hardly += ["--set", "evaluation={split: 14, every: 1, batch: 14}", "--set", "backend=hf"]
    commands = {
        name: ["of-reward.yaml", "--run-dir", f"scorer-{name}", *hardly, *more] for name, more in PIECES.items()
    }
    for name in PIECES:
        commands |= {
            f"{name}-eval": ["eval", f"scorer-{name}", "--batch", "3"],
            f"{name}-generate": ["generate", f"scorer-{name}", "-p", "What follows red?"],
            f"{name}-chat": ["chat", f"scorer-{name}"],
            f"{name}-merged": ["export", f"scorer-{name}", "--as", "merged"],
            f"{name}-questions": ["eval", f"scorer-{name}", "--questions", "rows.jsonl"],
            f"{name}-adapter": ["export", f"scorer-{name}", "--as", "adapter", "--to", f"sent-{name}"],
        }
    commands["sent"] = ["generate", "sent-lora", "-p", "What follows red?"]
    return dict(zip(commands, workshop.several(list(commands.values())), strict=True))


@pytest.mark.parametrize("name", PIECES)
def test_it_is_measured_by_the_numbers_that_it_gives(done: dict[str, Done], workshop: Workshop, name: str) -> None:
    assert done[name].code == 0, done[name].err
    lines = (workshop.path / f"scorer-{name}" / "evaluations.jsonl").read_text().splitlines()
    share = json.loads(lines[-1])["eval_accuracy"]
    assert 0.1 < share < 0.9
    found = done[f"{name}-eval"]
    assert (found.code, found.out) == (0, f"better preferred  {share:.1%} (of 14 pairs)\n"), found.err


@pytest.mark.parametrize("name", PIECES)
def test_it_is_never_asked_for_words(done: dict[str, Done], name: str) -> None:
    """Loaded as a language model it has lost its head, and says nonsense with exit code 0."""
    for wish, why in (
        ("generate", "so it cannot be asked"),
        ("chat", "so it cannot be asked"),
        ("merged", "so there is no export of it as merged"),
        ("questions", "so it can be asked no questions and no tasks"),
    ):
        found = done[f"{name}-{wish}"]
        assert found.code == 2, wish
        assert "is a reward model, which gives numbers and no words, " + why in found.err
        assert "load it with AutoModelForSequenceClassification of transformers, or measure it" in found.err
        assert found.err.count("train: ") == 1


def test_its_adapter_can_be_sent_away(done: dict[str, Done]) -> None:
    assert done["lora-adapter"].code == 0
    assert done["sent"].code == 2
    assert "sent-lora is a reward model" in done["sent"].err
    assert done["full-adapter"].code == 2
    assert "so there is no export of it as adapter" in done["full-adapter"].err
