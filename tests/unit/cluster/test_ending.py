"""Which node is to blame, and the sentence and exit code for it."""

from __future__ import annotations

from pathlib import Path

from strix_finetune.cluster.ending import End, cause, exit_code, sentence
from strix_finetune.cluster.nodes import Node
from strix_finetune.errors import Place

FILE = Path("cluster.toml")
ONE, TWO = (Node(f"strix{rank + 1}", rank, place=Place(FILE, 3 * rank + 2)) for rank in range(2))
GONE = (
    "train: process 1 (on strix2) ended without a word, so the run was stopped; it was killed, ran out of memory, or "
    "its machine or network is gone: look there, then add --resume"
)


def end(node: Node, at: float = 1, code: int | None = 1, **more: object) -> End:
    return End(node, at, code=code, **more)  # type: ignore[arg-type]


def said(*ends: End) -> str:
    return str(cause(ends))


def test_all_went_well() -> None:
    assert cause([end(ONE, code=0), end(TWO, code=0)]) is None
    assert exit_code([end(ONE, code=0), end(TWO, code=0)], interrupted=False) == 0


def test_the_one_that_failed_is_named_and_not_the_one_that_noticed() -> None:
    last = ("step 3", "train: rank 1: the device is out of memory; lower schedule.batch or max_length")
    noticed = ("train: process 1 (on strix2) failed: the device is out of memory; lower schedule.batch or max_length",)
    ends = [end(ONE, at=1, last=noticed), end(TWO, at=2, last=last)]
    assert said(*ends) == (
        "cluster.toml:5: rank 1, node strix2: the device is out of memory; lower schedule.batch or max_length"
    )
    assert exit_code(ends, interrupted=False) == 1


def test_a_machine_that_is_gone_explains_what_the_others_say() -> None:
    lost = end(TWO, at=17, code=None, how="lost", why="ada@strix2 does not answer")
    ends = [end(ONE, at=12, last=(GONE,)), lost]
    assert said(*ends) == (
        "cluster.toml:5: node strix2 was lost: ada@strix2 does not answer; check its power and its cable"
    )
    assert exit_code(ends, interrupted=False) == 1


def test_memory_that_ran_out_explains_all() -> None:
    ends = [end(ONE, at=1, last=(GONE,)), end(TWO, at=2, code=137, out_of_memory=True)]
    assert "node strix2 ran out of memory, and the kernel ended rank 1" in said(*ends)


def test_a_process_that_was_killed_is_named_with_its_signal() -> None:
    ends = [end(ONE, at=1, last=(GONE,)), end(TWO, at=2, code=137)]
    assert "node strix2: training was ended by SIGKILL (killed from outside" in said(*ends)
    assert "node strix2: training was ended by SIGSEGV" in said(end(ONE, last=(GONE,)), end(TWO, code=139))


def test_one_that_we_stopped_is_not_to_blame() -> None:
    ends = [end(ONE, at=9, code=137, how="stopped"), end(TWO, at=1, code=3, last=("Traceback", "ValueError: no"))]
    assert said(*ends).endswith("node strix2: training ended with exit code 3, and said last: ValueError: no")
    assert "without a word" in said(end(TWO, code=3))


def test_wrong_input_is_2_and_said_once() -> None:
    words = ("train: the rows of 'train' differ: rank 1 (on strix2) has others than rank 0; copy them",)
    ends = [end(ONE, code=2, last=words), end(TWO, code=2, last=("train: rank 1" + words[0][5:],))]
    assert exit_code(ends, interrupted=False) == 2
    assert "node strix1: the rows of 'train' differ" in said(*ends)


def test_interrupted_is_130_also_when_one_was_killed_at_last() -> None:
    ends = [end(ONE, code=130), end(TWO, code=137, how="stopped")]
    assert exit_code(ends, interrupted=True) == 130
    assert exit_code([end(ONE, code=130), end(TWO, code=130)], interrupted=False) == 130
    # somebody else did that
    assert exit_code([end(ONE, code=130), end(TWO, code=1)], interrupted=False) == 1


def test_torchrun_puts_the_rank_in_front() -> None:
    assert sentence(["[rank3]:train: the disk is full", "traceback"]) == (3, "the disk is full")
    assert sentence(["train: SIGINT: stopping after this step"]) is None
    assert sentence(["train: rank 2: no"]) == (2, "no")
