"""The rows of every step, the same for any number of processes: one order for all, filled up where an epoch ends.

accelerate gives the last batches of an epoch rows from its beginning, so that all processes have as many; one process
alone would not see those twice. Here the rest is filled with rows that teach nothing: one token, and no label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from strix_train.encode import IGNORED
from strix_train.methods import Job
from strix_train.tokens import Column


def filled(job: Job, columns: dict[str, Column], pad: int) -> dict[str, Column]:
    """Add rows that teach nothing until all processes have as many batches; one process needs none."""
    share = job.plan.loaded.recipe.schedule.rows * job.world
    blank = {"input_ids": pad, "labels": IGNORED, "position_ids": 0}
    missing = -len(columns["input_ids"]) % share if job.world > 1 else 0
    if missing and columns["labels"] is columns["input_ids"]:
        ids = columns["input_ids"]
        columns = columns | {"labels": Column(ids.values[:], ids.ends[:])}
    for _ in range(missing):
        for name, column in columns.items():
            column.append([blank[name]])
    return columns


def ordered(job: Job, base: Any, rows: int | None) -> Any:
    """Return a trainer class that shuffles the first `rows` rows by seed and epoch and leaves the others at the end.

    None leaves a trainer its own order, and so does one process alone: it is the same, as accelerate draws it.
    """
    if job.world == 1 or rows is None:
        return base
    real = rows

    class Ordered(base):  # type: ignore[misc]
        """The trainer with one order of rows for all processes."""

        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            total = len(self.train_dataset if train_dataset is None else train_dataset)
            return order(real, total, int(self.args.data_seed), lambda: int((self.state.epoch or 0.0) + 1e-6))

    return Ordered


def order(rows: int, total: int, seed: int, epoch: Callable[[], int]) -> Any:
    """Return a sampler. `epoch` is asked when an epoch begins: one that goes on must not begin with the first order."""
    import torch

    class Order(torch.utils.data.Sampler):  # type: ignore[misc]
        """Shuffled rows, then the blank ones."""

        def __iter__(self) -> Iterator[int]:
            generator = torch.Generator()
            generator.manual_seed(seed + epoch())
            yield from torch.randperm(rows, generator=generator).tolist()
            yield from range(rows, total)

        def __len__(self) -> int:
            return total

    return Order()
