"""A recipe may name a GGUF file: it becomes a model folder once, and trains like any other."""

from __future__ import annotations

import json
from pathlib import Path

from workshop import ROOT, Workshop, report


def test_a_gguf_file_trains(workshop: Workshop, demo_gguf: Path) -> None:
    recipe = workshop.recipe(
        "of-gguf",
        model=str(demo_gguf),
        data=str(ROOT / "recipes" / "data" / "demo-train.jsonl"),
        schedule__steps=1,
        schedule__batch=2,
    )
    done = workshop.train(str(recipe), "--run-dir", "of-gguf")
    assert done.code == 0, done.err
    assert f"import    {demo_gguf} becomes 16-bit weights in" in done.out
    run = workshop.path / "of-gguf"
    assert report(run)["steps_done"] == 1
    (folder,) = (workshop.path / "home" / ".cache" / "strix-finetune" / "imported").glob("SmolLM2*")
    assert json.loads((run / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(folder)
    # it is there now: its template and its tokens are looked at before anything is loaded
    checked = workshop.train("check", str(recipe))
    assert checked.code == 0, checked.err
    assert "tokens: median" in checked.out
