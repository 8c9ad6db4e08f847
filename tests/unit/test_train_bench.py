"""`train bench`: every cell tells what came of it, and nothing that did not run looks as if it had."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from strix_train.__main__ import main
from strix_train.benchmark import cells, table
from strix_train.benchmark.cells import Cell, Result, Size
from strix_train.estimate.machines import GIB, Machine

MACHINE = Machine("a GPU", "rocm", 24 * GIB, 100e12, "gfx1100")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "small"
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 300,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(
    folder: Path, model: Path, machine: Machine = MACHINE, *, adapter: str = "lora", anyway: bool = False
) -> Result:
    cells.prepare(folder, Size())
    return cells.run(folder, Cell(str(model), adapter, "hf"), Size(), machine, settings=(), limit=5, anyway=anyway)


def pretend(monkeypatch: pytest.MonkeyPatch, code: int | None, said: str = "") -> list[Sequence[str]]:
    seen: list[Sequence[str]] = []

    def process(words: Sequence[str], log: Path, limit: float) -> tuple[int | None, str]:
        seen.append(words)
        work = Path(words[words.index("--run-dir") + 1])
        (work / "adapter").mkdir(parents=True)
        if code == 0:
            rows = [{"loss": 9 - step, "seconds": 100 if step < 3 else step, "tokens": 2000} for step in range(8)]
            # what is left of the rows at their end is no whole step
            rows += [{"loss": 2, "seconds": 0.1, "tokens": 500}] * 3
            (work / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            (work / "report.json").write_text(json.dumps({"peak_memory": 3 * GIB}))
        return code, said

    monkeypatch.setattr(cells, "_process", process)
    return seen


def test_a_cell_that_ran_is_measured_without_its_first_steps(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = pretend(monkeypatch, 0)
    found = run(tmp_path, model)
    assert (found.state, found.seconds, found.memory, found.tokens_per_s) == ("ok", 5, 3 * GIB, 400)
    assert (found.loss_first, found.loss_last) == (9, 2)
    assert found.estimate > 2**20
    assert found.estimated_seconds > 0
    assert seen[0][3:5] == ["run", str(tmp_path / f"{Cell(str(model), 'lora', 'hf').name}.yaml")]
    assert not [*tmp_path.glob("*/adapter")]


@pytest.mark.parametrize(
    ("code", "said", "state", "reason"),
    [
        (1, "train: the device is out of memory (x has the details); lower", "out of memory", "the device is out of"),
        (-signal.SIGKILL, "", "out of memory", "the system ended the process"),
        (2, "train: adapter qlora needs bitsandbytes", "not run", "adapter qlora needs bitsandbytes"),
        (1, "train: training failed: ValueError: x", "failed", "training failed: ValueError: x"),
        (-signal.SIGSEGV, "", "failed", "it said nothing"),
        (None, "", "not run", "it took longer than 5 s"),
    ],
)
def test_what_did_not_run_says_why(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, said: str, state: str, reason: str
) -> None:
    pretend(monkeypatch, code, said)
    found = run(tmp_path, model)
    assert found.state == state
    assert found.reason.startswith(reason)
    assert (found.seconds, found.memory) == (0, 0)


def test_what_does_not_fit_is_not_tried(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = pretend(monkeypatch, 0)
    found = run(tmp_path, model, Machine("small", "rocm", 1 * GIB, arch="gfx1100"))
    assert found.state == "not run"
    assert "the estimate is 0." in found.reason
    assert not seen
    assert run(tmp_path, model, Machine("small", "rocm", 1 * GIB, arch="gfx1100"), anyway=True).state == "ok"


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    words = ["sh", "-c", "echo train: waiting; sleep 60 & sleep 60"]
    assert cells._process(words, tmp_path / "log", 0.3) == (None, "train: waiting")
    assert cells._process(["sh", "-c", "echo no; exit 3"], tmp_path / "log", 5) == (3, "")


RESULTS = [
    Result("a/b", "lora", "hf", "ok", seconds=1.234, memory=3 * GIB, tokens_per_s=100.2, estimate=2 * GIB),
    Result("a/b", "qlora", "hf", "out of memory", "the device is out of memory"),
    Result("a/b", "lora", "unsloth", "not run", "why, it is so"),
]


def test_the_table_as_text_and_as_csv(tmp_path: Path) -> None:
    lines = table.text(RESULTS, ["lora", "qlora"]).splitlines()
    assert lines[0].split() == ["model", "backend", "LoRA", "QLoRA"]
    assert "1.23 s, 3.00 GiB, 100 tokens/s  out of memory" in lines[1]
    assert lines[2].endswith("not run                         not run yet")
    assert lines[-1] == "a/b, lora, unsloth: why, it is so"
    rows = [*csv.DictReader(table.as_csv(RESULTS).splitlines())]
    assert [row["state"] for row in rows] == ["ok", "out of memory", "not run"]
    assert (rows[0]["memory"], rows[1]["memory"]) == (str(3 * GIB), "")
    pytest.importorskip("matplotlib")
    assert table.picture(RESULTS, ["lora", "qlora"], tmp_path / "t.png", "title")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    assert not table.picture(RESULTS[1:], ["lora"], tmp_path / "n.png", "title")


def test_wrong_words_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["--adapters", "lora,qlara"], "there is no adapter 'qlara'; did you mean 'qlora'?"),
        (["--backends", ","], "no backend is named; name some of unsloth, hf"),
        (["--to", str(tmp_path)], "holds something already; name another folder with --to"),
        (["--to", str(tmp_path / "x"), "--set", "schedule.lenght=5"], "lenght"),
    ):
        (tmp_path / "there").touch()
        assert main(["bench", "owner/name", *words]) == 2, words
        assert told in capsys.readouterr().err
