"""One rank of `python -m bench pipeline`: steps of a small Llama's adapter, shared in each way, as told on stdin.

`prove` holds the pipeline against one process that takes the same rows one after the other, unpadded, through the
whole model and with the loss of transformers. `measure` times one way to share, whose steps have the same rows in all.
"""

from __future__ import annotations

import ctypes
import gc
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from bench import cluster_worker, stages
from bench.measure import memory

Told = dict[str, Any]
RATE = 5e-4


class Batch(NamedTuple):
    """Rows of a step, [rows, tokens], padded on the right; `labels` as transformers takes them."""

    rows: torch.Tensor
    labels: torch.Tensor


class Trained(NamedTuple):
    """What some steps gave: `losses` and gradients' `norms` of each, and the adapter after the last one."""

    losses: list[float]
    norms: list[float]
    adapter: dict[str, torch.Tensor]


def batches(told: Told) -> Iterator[Batch]:
    """Yield the same rows on every rank: each of its own length, and of each only the later part is learned."""
    dice = torch.Generator().manual_seed(2)
    for _ in range(told["steps"]):
        lengths = torch.randint(4, told["length"] + 1, (told["rows"],), generator=dice)
        rows = torch.randint(0, told["config"]["vocab_size"], (told["rows"], int(lengths.max())), generator=dice)
        labels = rows.clone()
        for label, length in zip(labels, lengths.tolist(), strict=True):
            label[length:] = stages.IGNORED
            label[: 1 + int(torch.randint(0, length - 2, (1,), generator=dice))] = stages.IGNORED
        yield Batch(rows.masked_fill(torch.arange(rows.shape[1]) >= lengths[:, None], 0), labels)


def alone(told: Told) -> Trained:
    """Train in this process alone, a row a pass, without padding."""
    model: Any = cluster_worker.model(told)
    learning = {name: each for name, each in model.named_parameters() if each.requires_grad}
    optimizer = torch.optim.AdamW(learning.values(), lr=RATE)
    losses, norms = [], []
    for rows, labels in batches(told):
        learned = int((labels[:, 1:] != stages.IGNORED).sum())
        total = 0.0
        for row, label in zip(rows, labels, strict=True):
            end = int((label != stages.IGNORED).nonzero().max()) + 1
            loss = model(input_ids=row[None, :end], labels=label[None, :end], num_items_in_batch=learned).loss
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        norms.append(math.sqrt(sum(float(each.grad.square().sum()) for each in learning.values())))
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, norms, {name: each.detach().clone() for name, each in learning.items()})


def piped(told: Told) -> Trained:
    """Train as one stage of the pipeline; every rank returns the losses and the adapter of all."""
    pipeline = _pipeline(told)
    optimizer = torch.optim.AdamW(pipeline.learning.values(), lr=RATE)
    losses, norms = [], []
    for rows, labels in batches(told):
        losses.append(pipeline.step(rows, labels))
        norms.append(pipeline.norm())
        optimizer.step()
        optimizer.zero_grad()
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, {name: each.detach() for name, each in pipeline.learning.items()})
    shown = torch.tensor(losses)
    dist.broadcast(shown, dist.get_world_size() - 1)
    return Trained(shown.tolist(), norms, {name: each for part in parts for name, each in part.items()})


def averaged(told: Told) -> float:
    """Return the first step's loss if microbatches of any size counted the same, which would be wrong."""
    model: Any = cluster_worker.model(told)
    rows, labels = next(batches(told))
    with torch.no_grad():
        pairs = zip(rows.chunk(told["microbatches"]), labels.chunk(told["microbatches"]), strict=True)
        losses = [float(model(input_ids=some, labels=label).loss) for some, label in pairs]
    return sum(losses) / len(losses)


def prove(told: Told) -> dict[str, Any]:
    """Return losses, norms, how far the adapters are apart, how far they went, and the loss of a wrong average."""
    found = piped(told)
    if dist.get_rank():
        return {}
    right = alone(told)
    start = {name: each for name, each in cluster_worker.model(told).named_parameters() if each.requires_grad}
    assert found.adapter.keys() == right.adapter.keys(), "the stages have not the adapter of the model"
    return {
        "losses": [found.losses, right.losses],
        "norms": [found.norms, right.norms],
        "apart": max(float((found.adapter[name] - each).abs().max()) for name, each in right.adapter.items()),
        "moved": min(float((each.detach() - found.adapter[name]).abs().max()) for name, each in start.items()),
        "averaged": averaged(told),
        "tensors": len(right.adapter),
    }


def _pipeline(told: Told) -> stages.Pipeline:
    """Return this rank's stage; what the others hold of the model is free again."""
    cut = stages.even(told["config"]["num_hidden_layers"], dist.get_world_size())
    return stages.Pipeline(cluster_worker.model(told), cut, told["kind"], told["microbatches"])


def _way(told: Told, rows: torch.Tensor) -> tuple[Callable[[], None], float]:
    """Return what does a step of this rank's part in it, and the MB of weights that this rank holds."""
    way, rank, ranks = told["way"], dist.get_rank(), dist.get_world_size()
    if way == "pipeline":
        pipeline = _pipeline(told)
        learned = torch.optim.AdamW(pipeline.learning.values(), lr=RATE)

        def step() -> None:
            pipeline.step(rows, rows)
            learned.step()
            learned.zero_grad()

        return step, _held(pipeline.part)
    whole = cluster_worker.model(told)
    if way != "alone":
        whole = cluster_worker.shared(whole, way, told["bucket"])
    optimizer = torch.optim.AdamW([each for each in whole.parameters() if each.requires_grad], lr=RATE)
    # as many rows a pass as the others have, and one pass after the other where nobody helps
    own, passes = rows.chunk(ranks)[rank], ranks if way == "alone" else 1

    def work() -> None:
        if way != "alone" or rank == 0:
            cluster_worker.step(whole, optimizer, own, passes)

    return work, _held(whole)


def _held(module: torch.nn.Module) -> float:
    pieces = (each.to_local() if isinstance(each, DTensor) else each for each in module.parameters())
    return float(sum(each.numel() * each.element_size() for each in pieces)) / 1e6


def measure(told: Told) -> dict[str, Any]:
    """Return the seconds of the quickest step, and of each rank the MB that it sent, holds, and took above a bare one.

    All rows are of one length. The first step, which lays out buffers, is not counted.
    """
    freed()
    bare = memory("VmRSS")
    dice = torch.Generator().manual_seed(2)
    rows = torch.randint(0, told["config"]["vocab_size"], (told["rows"], told["length"]), generator=dice)
    step, held = _way(told, rows)
    freed()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    times, sent = [], []
    for _ in range(told["steps"] + 1):
        dist.barrier()
        before, began = cluster_worker.counted(), time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
        sent.append((cluster_worker.counted() - before) / 1e6)
    mine = {"times": times[1:], "sent": min(sent[1:]), "held": held, "above": (memory("VmHWM") - bare) / 1e6}
    all_: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_, mine)
    seconds = min(map(max, zip(*(each["times"] for each in all_), strict=True)))
    return {"seconds": seconds, **{name: [each[name] for each in all_] for name in ("sent", "held", "above")}}


def waited(told: Told) -> dict[str, Any]:
    """Return the seconds of the quickest step in which each stage waits instead of computing, and sends as ever.

    `bytes`: of a microbatch at a border, in 32 bits. `forward`, `backward`: seconds of a microbatch in one stage.
    """
    count, rank, ranks = told["microbatches"], dist.get_rank(), dist.get_world_size()
    between = torch.empty(1, told["bytes"] // 4, device="meta", requires_grad=True)
    part = stages.Waiting(told["forward"], told["backward"])
    schedule = stages.schedule(part, between, between, told["kind"], count, lambda found, _: found.sum())
    whole = torch.zeros(count, told["bytes"] // 4)
    times = []
    for _ in range(told["steps"] + 1):
        dist.barrier()
        began = time.perf_counter()
        last: Told = {"target": torch.zeros(count), "losses": []} if rank == ranks - 1 else {}
        schedule.step(*((whole,) if rank == 0 else ()), **last, return_outputs=False)
        times.append(time.perf_counter() - began)
    longest = torch.tensor(times[1:])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return {"seconds": float(longest.min())}


def freed() -> None:
    """Give back to the system what nobody holds any more, so that the next peak is its own."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    cluster_worker.serve({"prove": prove, "measure": measure, "waited": waited, "probe": cluster_worker.probe})
