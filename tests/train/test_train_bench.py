"""`train bench` for real: one cell trains, one fails, and both are told."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from workshop import Workshop


def test_a_table_of_this_machine(workshop: Workshop, tmp_path: Path) -> None:
    words = ["--adapters", "lora", "--backends", "hf", "--batch", "2", "--length", "64", "--steps", "5"]
    done = workshop.train("bench", "llama", "cut", *words, "--to", str(tmp_path / "table"))
    assert (done.code, done.err) == (0, ""), done.out
    good, bad = csv.DictReader((tmp_path / "table" / "table.csv").read_text().splitlines())
    assert (good["model"], good["state"]) == ("llama", "ok")
    assert float(good["seconds"]) > 0
    assert float(good["tokens_per_s"]) == pytest.approx(2 * 64 / float(good["seconds"]), rel=0.01)
    # of the whole process, where there is no GPU
    assert int(good["memory"]) == pytest.approx(int(good["estimate"]), rel=0.35)
    assert (bad["state"], bad["seconds"]) == ("failed", "")
    assert "SafetensorError" in bad["reason"]
    assert f"1 of 2: llama, lora, hf …\n    {float(good['seconds']):.3g} s, " in done.out
    assert "SafetensorError" in (tmp_path / "table" / "table.txt").read_text()
    assert (tmp_path / "table" / "table.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads((tmp_path / "table" / "results.json").read_text())
    assert (facts["batch"], facts["length"], len(facts["cells"])) == (2, 64, 2)
    # weights are not kept
    assert not [*(tmp_path / "table").rglob("*.safetensors")]
