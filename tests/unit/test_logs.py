"""Every layer keeps its own log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strix_finetune.events import LayerDone, LayerStarted, Notice, SmokeResult, StepOutput, StepProgress
from strix_finetune.logs import LayerLogs


def test_a_log_holds_all_of_one_layer(tmp_path: Path) -> None:
    logs = LayerLogs(tmp_path / "deep/logs")
    assert logs.path("a") == tmp_path / "deep/logs/a.log"
    assert not logs.path("a").parent.exists(), "nothing is made before something is built"
    for event in (
        Notice("x"),
        StepOutput("a", "before it began"),
        LayerStarted("a", "rebuild, x changed", ""),
        LayerStarted("b", "why", ""),
        StepProgress("a", "RUN make"),
        StepOutput("a", "out of a"),
        StepOutput("b", "out of b"),
        StepProgress("a", "RUN make", seconds=1.25),
        StepProgress("a", "COPY x", cached=True, seconds=0.0),
        SmokeResult("a", "a/t.sh", "static", "passed", "fine"),
        LayerDone("a", "built", 3.0),
        StepOutput("a", "after its end"),
        LayerDone("c", "blocked", 0.0, message="never began"),
    ):
        logs.write(event)
    # written as it comes: a killed driver leaves what there was
    assert "out of b" in logs.path("b").read_text()
    logs.close()
    text = logs.path("a").read_text("utf-8")
    assert re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "NOW", text) == (
        "# a, NOW: rebuild, x changed\n\n> RUN make\nout of a\n< RUN make (1.2 s)\n< COPY x (cached)\n"
        "smoke a/t.sh: passed: fine\n# built after 3.0 s \n"
    )
    assert not logs.path("c").exists()


def test_the_log_before_is_kept(tmp_path: Path) -> None:
    logs = LayerLogs(tmp_path)
    for number in range(3):
        logs.write(LayerStarted("a.b", f"run {number}", ""))
        logs.write(LayerDone("a.b", "failed", 1.0, message="no"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.b.log", "a.b.log.1"]
    assert "run 2" in (tmp_path / "a.b.log").read_text()
    assert "run 1" in (tmp_path / "a.b.log.1").read_text()


def test_what_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    logs = LayerLogs(tmp_path)
    logs.write(LayerStarted("a", "x → y", ""))
    logs.write(StepOutput("a", "bad \udcff byte"))
    logs.close()
    assert logs.path("a").read_text("utf-8").endswith("bad \\udcff byte\n")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        LayerLogs(tmp_path / "file" / "logs").write(LayerStarted("a", "", ""))
