"""What gloo sends between processes: Debian's knows no numbers of 16 bits, where PyPI's torch brings one that does."""

from __future__ import annotations

from strix_train.device import Precision
from strix_train.errors import InputError, Problem


def by_gloo(precision: Precision, wanted: str) -> Precision:
    """The format to train in with several processes on CPUs: 32 bits where `wanted` is auto and 16 cannot be sent.

    Raises InputError where the recipe insists on 16.
    """
    if precision == "fp32" or sends_narrow():
        return precision
    if wanted == "auto":
        return "fp32"
    raise InputError(
        Problem(f"the gloo of this torch sends no {precision} between processes", cure="write precision: auto, or fp32")
    )


def sends_narrow() -> bool:
    """Whether numbers of 16 bits can be summed: asked of a group of this process alone, which needs no network."""
    import torch
    from torch import distributed

    from strix_train.quietly import quietly

    # gloo writes to standard error how many peers it has
    with quietly():
        group = distributed.ProcessGroupGloo(distributed.HashStore(), 0, 1)
        try:
            group.allreduce([torch.ones(1, dtype=torch.bfloat16)]).wait()
        except RuntimeError:
            return False
    return True
