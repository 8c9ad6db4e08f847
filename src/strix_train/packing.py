"""The proof that packed rows see only themselves: asked of the model, since not every backend keeps them apart."""

from __future__ import annotations

from typing import Any

from strix_train.errors import TrainError
from strix_train.methods import Job
from strix_train.tokens import Column

_TOKENS = 48
# How much nearer to the row alone than to the row that sees its neighbour the packed one must come.
_SHARE = 0.25


def see_only_themselves(job: Job, model: Any, rows: dict[str, Column]) -> None:
    """Compare a row behind another one with the same row alone. Raises TrainError where it sees the other."""
    import torch

    ids = rows["input_ids"]
    if len(ids) < 2:
        return
    first, second = list(ids[0])[:_TOKENS], list(ids[len(ids) - 1])[-_TOKENS:]
    alone = [range(len(second))]
    apart = [*range(len(first)), *range(len(second))]
    together = range(len(first) + len(second))

    def states(tokens: list[int], positions: Any) -> Any:
        found = model(
            input_ids=torch.tensor([tokens], device=model.device),
            position_ids=torch.tensor([list(positions)], device=model.device),
            use_cache=False,
        )
        return found.logits[0, -len(second) :].float()

    was_training = model.training
    model.train()
    try:
        with torch.no_grad():
            mine = states(second, alone[0])
            kept = states(first + second, apart)
            seen = states(first + second, together)
    finally:
        model.train(was_training)
    off, most = float((kept - mine).abs().mean()), float((seen - mine).abs().mean())
    if off > _SHARE * most:
        raise TrainError(
            f"with backend {job.backend.name} packed rows of this model see each other (their outputs differ by "
            f"{off:.3g} from those of the rows alone)",
            cure="write data.packing: false, or backend: hf",
        )
