"""RCCL's function set `training` holds what torch really calls: a newer torch that calls more fails here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SET = HERE.parents[1] / "images/rccl/files/functions/training.txt"
# operations of c10d that copy bytes, which every function set has
COPIES = {"all_gather_into_tensor", "allgather", "allgather_base", "broadcast", "gather", "scatter"}
REDUCTIONS = {
    "all_reduce": "AllReduce",
    "allreduce": "AllReduce",
    "reduce_scatter_base": "ReduceScatter",
    "reduce_scatter_tensor": "ReduceScatter",
}
Held = set[tuple[str, str, str]]


@pytest.fixture(scope="module")
def held() -> Held:
    rows = [line.partition("#")[0].split() for line in SET.read_text("utf-8").splitlines()]
    return {(row[0], row[1], name) for row in rows if row for name in row[2:]}


@pytest.fixture(scope="module")
def called() -> dict[str, list[list[str]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "USE_LIBUV": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, HERE / "collectives.py"]
    other = subprocess.Popen(command, env={**os.environ, **env, "RANK": "1"}, stderr=subprocess.DEVNULL)
    try:
        done = subprocess.run(
            command, env={**os.environ, **env, "RANK": "0"}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert other.wait(60) == 0
    finally:
        other.kill()
        other.wait()
    found: dict[str, list[list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_strategy_reduces_and_nothing_unknown_is_called(called: dict[str, list[list[str]]]) -> None:
    for strategy in ("ddp", "fsdp", "fsdp2"):
        assert any(operation in REDUCTIONS for operation, _ in called[strategy]), called[strategy]
    names = {operation for calls in called.values() for operation, _ in calls}
    assert names <= COPIES | REDUCTIONS.keys() | {"barrier", "wait_tensor"}


def test_the_set_has_what_was_called(called: dict[str, list[list[str]]], held: Held) -> None:
    asked = {(REDUCTIONS[name], kind) for calls in called.values() for name, kind in calls if name in REDUCTIONS}
    assert ("ReduceScatter", "float32") in asked
    assert ("AllReduce", "int32") in asked
    for collective, kind in asked:
        assert (collective, "Sum", kind) in held


def test_the_set_has_what_fsdp2_calls_with_nccl(held: Held) -> None:
    """Gloo has no average, so that a run on the CPU never calls it: torch is asked for what it would do."""
    import torch
    from torch.distributed import ReduceOp
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors

    class Group:
        def size(self) -> int:
            return 2

    for kind, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        for factor in (None, 3.0):
            operations = _get_gradient_divide_factors(Group(), None, kind, "cuda", factor)[2:]
            for collective, operation in zip(("ReduceScatter", "AllReduce"), operations, strict=True):
                # NCCL makes an average of a product and a sum
                wanted = "Sum" if operation == ReduceOp.SUM else "PreMulSum"
                assert (collective, wanted, name) in held
    assert _get_gradient_divide_factors(Group(), None, torch.float32, "cuda")[2] == ReduceOp.AVG
