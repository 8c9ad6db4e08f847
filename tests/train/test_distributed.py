"""Several processes train one model: as one process with the same rows, and all end when one does."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from pathlib import Path

import pytest
from several import Crowd, apart
from workshop import Workshop, metrics, report


@pytest.fixture(scope="module")
def recipe(workshop: Workshop) -> Path:
    """14 rows, so that the last step of an epoch has fewer: 6 and then 2, or 4, 4, 4 and then 2."""
    path = workshop.path / "fourteen.jsonl"
    path.write_text("".join((workshop.path / "rows.jsonl").read_text().splitlines(keepends=True)[:14]))
    return workshop.recipe(
        "several",
        data={"train": str(path)},
        backend="hf",
        precision="fp32",
        schedule={"epochs": 2, "batch": 2, "accumulation": 1, "learning_rate": 5e-3, "max_length": 128, "seed": 3},
    )


def test_three_processes_are_one_process_with_their_rows(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    alone, three = tmp_path / "alone", tmp_path / "three"
    done = crowd.train(1, recipe, "--run-dir", alone, "--set", "schedule.batch=6")
    assert done["codes"] == [0], done["said"]
    done = crowd.train(3, recipe, "--run-dir", three, env={"all": {"STRIX_TEST_SPARING": "1"}})
    assert done["codes"] == [0, 0, 0], done["said"]
    assert done["said"] == ["", "", ""]
    assert [bool(rank["out"]) for rank in done["ranks"]] == [True, False, False]
    # the learned tokens of a step are those of all processes, also where an epoch ends in the middle of a batch
    assert [row["loss"] for row in metrics(three)] == pytest.approx([row["loss"] for row in metrics(alone)], rel=1e-5)
    assert len(metrics(three)) == 6
    assert apart(alone, three) < 1e-4
    assert report(three)["parameters"] == report(alone)["parameters"]
    assert "all 3 processes ended with the same weights" in done["ranks"][0]["out"]
    assert report(three)["same_weights"] is True
    assert report(alone)["same_weights"] is None


def test_a_process_that_ends_with_other_weights_is_named(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    done = crowd.train(
        3, recipe, "--run-dir", tmp_path, "--set", "schedule.epochs=1", env={1: {"STRIX_TEST_DRIFT": "1"}}
    )
    assert done["codes"] == [0, 0, 0], done["said"]
    said = done["ranks"][0]["out"]
    assert "warning   process 1 ended with other weights than process 0, which are saved: " in said
    assert report(tmp_path)["same_weights"] is False


def test_a_run_goes_on_with_another_number_of_processes(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    """Ended by a signal to one of two, resumed by one alone, and again by two whose folders are not shared."""
    words = [recipe, "--set", "schedule.epochs=6", "--set", "schedule.batch=4"]
    alone, run = tmp_path / "alone", tmp_path / "run"
    assert crowd.train(1, *words, "--set", "schedule.batch=8", "--run-dir", alone)["codes"] == [0]
    last = {0: ["--run-dir", str(run)], 1: ["--run-dir", str(tmp_path / "elsewhere")]}
    kill = {"rank": 1, "signal": signal.SIGTERM, "metrics": str(run / "metrics.jsonl"), "step": 3}
    assert crowd.train(2, *words, each=last, kill=kill)["codes"] == [130, 130]
    assert 3 <= len(metrics(run)) < 10
    kill = {"rank": 0, "signal": signal.SIGINT, "metrics": str(run / "metrics.jsonl"), "step": 7}
    done = crowd.train(1, *words, "--run-dir", run, "--resume", kill=kill)
    assert done["codes"] == [130], done
    assert "1 now: 2 × 4 rows each instead of 1 × 4, so that a step keeps its 8 rows" in done["ranks"][0]["out"]
    shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)
    done = crowd.train(3, *words, "--resume", "--run-dir", run)
    assert done["codes"] == [2, 2, 2]
    assert "a step of this run has 8 rows, which 3 processes cannot share evenly; go on with one of" in done["said"][0]
    done = crowd.train(2, *words, "--resume", each=last)
    assert done["codes"] == [0, 0], done["said"]
    assert not (tmp_path / "elsewhere").exists()
    assert apart(alone, run) < 1e-4
    assert [row["step"] for row in metrics(run)] == list(range(1, 13))


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (
            ["schedule.learning_rate=0.1"],
            "another recipe than process 0: schedule.learning_rate is 0.1 there and 0.005",
        ),
        (["data.train=rows.jsonl"], "other rows than process 0; give every node the same files and the same recipe"),
        (["model=qwen3"], "a model whose config.json has digest"),
    ],
)
def test_what_differs_ends_all_of_them(
    crowd: Crowd, recipe: Path, tmp_path: Path, what: list[str], sentence: str
) -> None:
    done = crowd.train(2, recipe, "--run-dir", tmp_path / "run", each={1: ["--set", *what]})
    assert done["codes"] == [2, 2]
    assert sentence in done["said"][0]
    assert done["said"][0].startswith("train: process 1 has ")
    assert done["said"][1] == done["said"][0].replace("train: ", "train: rank 1: ")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_other_versions_are_named(workshop: Workshop, crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    """Process 1 finds another peft first, by its metadata; the library itself is the same."""
    fake = tmp_path / "site" / "peft-0.0.1.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: peft\nVersion: 0.0.1\n")
    env = {1: {"STRIX_TEST_PATH": str(fake.parent)}}
    done = crowd.train(2, recipe, "--run-dir", tmp_path / "run", env=env)
    assert done["codes"] == [2, 2]
    assert "process 1 has other versions than process 0: peft is 0.0.1 there and " in done["said"][0]
    assert "start the same image on every node" in done["said"][0]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_is_killed_ends_the_others(crowd: Crowd, recipe: Path, tmp_path: Path, rank: int) -> None:
    run = tmp_path / "run"
    kill = {"rank": rank, "signal": signal.SIGKILL, "metrics": str(run / "metrics.jsonl"), "step": 2}
    done = crowd.train(3, recipe, "--run-dir", run, "--set", "schedule.epochs=300", kill=kill)
    assert done["codes"] == [-9 if each == rank else 1 for each in range(3)]
    assert done["after"] < 60
    told = [text for text in done["said"] if text]
    assert f"process {rank} ended without a word, so the run was stopped; it was killed" in told[0]
    if rank:
        assert len(told) == 1
        status = json.loads((run / "status.json").read_text())
        assert (status["state"], status["reason"][:30]) == ("failed", "process 1 ended without a word")


def test_one_that_fails_ends_the_others_with_its_sentence(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    done = crowd.train(2, recipe, "--run-dir", tmp_path / "run", each={1: ["--set", "data.train=none.jsonl"]})
    assert done["codes"] == [2, 2]
    assert "process 1 failed: --set data.train=none.jsonl: the file " in done["said"][0]
    assert done["said"][1].startswith("train: rank 1: --set data.train=none.jsonl: the file ")


def test_who_gets_through_to_nobody_says_so(crowd: Crowd, recipe: Path, tmp_path: Path) -> None:
    env = {"STRIX_DIST_TIMEOUT": "9"}
    words = [recipe, "--run-dir", tmp_path, "--set", "schedule.epochs=1"]
    done = crowd.train(2, *words, env={0: env, 1: {**env, "STRIX_TEST_LATE": "1"}})
    assert done["codes"] == [0, 0], done["said"]
    assert done["said"][0].startswith("train: the processes have met, and do not get through to one another yet: gloo")
    assert done["said"][1] == ""


def test_a_port_that_is_taken_and_a_process_that_does_not_come(workshop: Workshop, crowd: Crowd, recipe: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = crowd.train(1, recipe, "--run-dir", "none", env={0: {"WORLD_SIZE": "2", "MASTER_PORT": port}})
    assert done["codes"] == [2]
    assert f"port {port} is taken, so the processes cannot meet there; set MASTER_PORT" in done["said"][0]
    done = crowd.train(1, recipe, "--run-dir", "none", env={0: {"WORLD_SIZE": "2", "STRIX_DIST_TIMEOUT": "2"}})
    assert done["codes"] == [1]
    # what is waited for is told before it is given up
    assert done["said"][0].startswith("train: waits for process 1 of 2, for 2 s at most; is it started?\n")
    assert "process 1 of 2 has not come within 2 s" in done["said"][0]
    done = crowd.train(
        1, recipe, "--run-dir", "none", env={0: {"WORLD_SIZE": "2", "RANK": "1", "STRIX_DIST_TIMEOUT": "3"}}
    )
    assert done["codes"] == [1]
    assert "train: rank 1: has not reached process 0 at 127.0.0.1:" in done["said"][0]
    assert "train: rank 1: process 1 found nobody at 127.0.0.1:" in done["said"][0]
    assert not (workshop.path / "none").exists()
