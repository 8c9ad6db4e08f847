"""FSDP2 by torch's own fully_shard: pieces indeed, results of one process, checkpoints for any number of processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from several import Crowd, apart, weights
from workshop import Workshop, metrics, report

FSDP = ["--set", "strategy=fsdp"]


@pytest.fixture(scope="module")
def recipe(workshop: Workshop) -> Path:
    schedule = {"steps": 4, "batch": 2, "accumulation": 2, "learning_rate": 5e-3, "max_length": 128, "seed": 3}
    questions = {"ask": [{"prompt": "What follows red?", "expect": "green"}], "max_new_tokens": 6}
    return workshop.recipe(
        "pieces", backend="hf", precision="fp32", schedule=schedule, questions=questions, adapter__dropout=0.0
    )


def test_lora_in_pieces_is_lora(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    """However much stays gathered, and with activations computed again: as one process with the same rows."""
    alone = tmp_path / "alone"
    assert crowd.train(1, recipe, "--run-dir", alone, "--set", "schedule.batch=4")["codes"] == [0]
    for keep in ("nothing", "step", "frozen"):
        run = tmp_path / keep
        words = [*FSDP, "--set", f"strategy.keep={keep}", "--set", "recompute=on"]
        done = crowd.train(2, recipe, "--run-dir", run, *FSDP, *words[2:])
        assert done["codes"] == [0, 0], done
        assert "strategy  fsdp (asked for): " in done["ranks"][0]["out"]
        assert apart(alone, run) < 1e-4, keep
        norms = [[row["grad_norm"] for row in metrics(each)] for each in (alone, run)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-4)
        assert report(run)["questions"] == report(alone)["questions"]


def test_what_the_questions_gathered_is_in_pieces_again(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    """Also where nothing moves the model to its device behind them, as with quantized weights."""
    alone = tmp_path / "alone"
    assert crowd.train(1, recipe, "--run-dir", alone, "--set", "schedule.batch=4")["codes"] == [0]
    for keep in ("step", "frozen"):
        run = tmp_path / keep
        words = [*FSDP, "--set", f"strategy.keep={keep}"]
        done = crowd.train(2, recipe, "--run-dir", run, *words, env={"all": {"STRIX_TEST_STILL": "1"}})
        assert done["codes"] == [0, 0], done
        assert apart(alone, run) < 1e-4, keep


def test_a_whole_model_in_pieces_goes_on_with_others(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    """Two processes with FSDP, then one alone, then two with DDP: one checkpoint is as good as the other."""
    words = [recipe, "--set", "adapter=full", "--set", "schedule.steps=8", "--set", "schedule.learning_rate=1e-3"]
    alone, run = tmp_path / "alone", tmp_path / "run"
    assert crowd.train(1, *words, "--run-dir", alone, "--set", "schedule.batch=4")["codes"] == [0]
    kill = {"rank": 1, "signal": signal.SIGTERM, "metrics": str(run / "metrics.jsonl"), "step": 2}
    done = crowd.train(2, *words, *FSDP, "--run-dir", run, kill=kill)
    assert done["codes"] == [130, 130], done
    kill = {"rank": 0, "signal": signal.SIGTERM, "metrics": str(run / "metrics.jsonl"), "step": 5}
    done = crowd.train(2, *words, "--set", "strategy=ddp", "--run-dir", run, "--resume", kill=kill)
    assert done["codes"] == [130, 130], done
    done = crowd.train(4, *words, *FSDP, "--run-dir", run, "--resume")
    assert done["codes"] == [0] * 4, done
    assert apart(alone, run) < 1e-4
    assert weights(alone).keys() == weights(run).keys()


def test_what_cannot_be_shared_is_refused_with_its_cure(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    done = crowd.train(2, recipe, *FSDP, "--set", "backend=unsloth", "--run-dir", tmp_path / "run")
    assert done["codes"] == [2, 2]
    assert "Unsloth has whole weights here, which strategy fsdp shares; write backend: hf" in done["said"][0]
    done = crowd.train(2, recipe, "--set", "strategy=none", "--run-dir", tmp_path / "run")
    assert done["codes"] == [2, 2]
    assert "strategy none is for one process, and 2 were started" in done["said"][0]
