"""bench/gpu_runs.py and the like at tiny size: what a machine with a GPU runs in one command works before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench import gpu_rounding, gpu_runs
from workshop import ROOT, Workshop

from strix_train.estimate import configs, shapes


def started(workshop: Workshop, *words: str, seconds: float = 600) -> str:
    """Run a module of bench at tiny size and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", *words, "--tiny"],
        cwd=ROOT,
        env=workshop.environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(workshop: Workshop, folder: Path, *words: str) -> str:
    """Run a part of gpu_runs and return what it printed."""
    return started(workshop, "bench.gpu_runs", words[0], "--out", str(folder), *words[1:])


def test_the_cells_are_those_that_were_asked_for() -> None:
    wanted = [*gpu_runs.grid(gpu_runs.SIZES)]
    names = [each.name for each in wanted]
    assert len(set(names)) == len(names) >= 24
    assert len({each.shape for each in wanted}) == 4
    assert {each.adapter for each in wanted} == {"full", "lora", "lora8bit", "qlora"}
    assert len({each.size for each in wanted}) >= 4
    for each in [*wanted, *gpu_runs.families(gpu_runs.SIZES)]:
        shape = shapes.of_config(gpu_runs.random_model.config(each.shape, layers=each.layers))
        assert shape.layers <= shapes.of_config(configs.known()[each.shape]).layers
        tiny = shapes.of_config(gpu_runs.random_model.config(each.shape, tiny=True))
        assert tiny.weights < 2e6


def test_lean_layers_lose_less_of_a_small_step_than_peft() -> None:
    rows = {line[:22].strip(): line.split() for line in gpu_rounding.measure(tiny=True)[1:]}
    kept = {name: int(words[-1].rstrip("%")) for name, words in rows.items()}
    assert kept["32 bits"] == 100
    assert kept["peft"] < 90 < kept["lean layers"] < 110


@pytest.mark.long
def test_every_part_runs_at_tiny_size(workshop: Workshop, tmp_path: Path) -> None:
    """pytest tests/train -m long"""
    words = ["--steps", "4", "--only", "Qwen3-4B-lora-"]
    out = run(workshop, tmp_path, "estimate", *words)
    assert "median error of the memory" in out
    assert len((tmp_path / "estimate" / "results.jsonl").read_text().splitlines()) == 2
    # started again, nothing is run again
    assert "1 of 2" not in run(workshop, tmp_path, "estimate", *words)
    assert "gpt-oss-20b-lora-hf" in run(workshop, tmp_path, "families", "--steps", "2", "--only", "gpt-oss-20b-lora")
    run(workshop, tmp_path, "grpo", "--steps", "6")
    for line in (tmp_path / "grpo" / "results.jsonl").read_text().splitlines():
        # answers earn differently, so that there is something to learn
        assert max(json.loads(line)["reward_std"]) > 0
    run(workshop, tmp_path, "curves", "--steps", "6")
    found = json.loads((tmp_path / "curves" / "results.jsonl").read_text())
    assert found["apart"] < 0.05
    assert (tmp_path / "curves" / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.parametrize("words", [("compare",), ("profile", "--variants", "any", "tokens2048")])
def test_speed_and_memory_are_measured_at_tiny_size(workshop: Workshop, tmp_path: Path, words: tuple[str]) -> None:
    """pytest tests/train -m long"""
    told = started(workshop, "bench.gpu_speed", *words, "--out", str(tmp_path), seconds=900)
    if words[0] == "profile":
        assert [told.count(f" {name} ") for name in ("as it is", "any", "tokens2048")] == [2, 2, 2]
        return
    rows = [json.loads(line) for line in (tmp_path / "compare-16-hf.jsonl").read_text().splitlines()]
    sides = {side: {row["name"]: row for row in rows if row["side"] == side} for side in ("trl", "ours")}
    assert len(sides["ours"]) == 4
    for name, theirs in sides["trl"].items():
        # the same rows, the same start, the same hyperparameters
        assert sides["ours"][name]["first"] == pytest.approx(theirs["first"], abs=2e-3)
        assert sides["ours"][name]["last"] == pytest.approx(theirs["last"], abs=5e-3)
        assert sides["ours"][name]["steps"] == theirs["steps"]


@pytest.mark.long
def test_what_a_strategy_costs_alone_is_measured_with_the_strategy(workshop: Workshop, tmp_path: Path) -> None:
    """pytest tests/train -m long"""
    told = started(workshop, "bench.gpu_cluster", "one", "--out", str(tmp_path))
    rows = {line[:20].strip(): line.split() for line in (tmp_path / "table.txt").read_text().splitlines()[1:]}
    # each run fails by itself where its model is not wrapped by DDP, or not cut by FSDP
    shared = ["ddp of one", "fsdp of one, once", "fsdp of one, every"]
    assert [*rows] == ["one process", *shared, "one process, again"]
    assert all("ok" in words for words in rows.values())
    assert [told.count(f"strategy  {words}") for words in ("ddp (asked for)", "fsdp (asked for)")] == [1, 2]
