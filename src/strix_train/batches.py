"""Batches: padding, and the proof, before the first step, of what the loss will see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from strix_train.encode import IGNORED
from strix_train.errors import TrainError


class Collator:
    """Makes a batch of rows of ids and labels. Shapes: (rows, tokens).

    Rows are padded on the right to the longest of the batch. Packed rows bring position_ids that begin anew inside a
    row; with `flat` they stand end to end in one row instead of being padded, as Unsloth wants them.
    """

    def __init__(self, pad: int, *, flat: bool = False) -> None:
        self.pad, self.flat = pad, flat

    def __call__(self, rows: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
        import torch

        filling = {"input_ids": self.pad, "labels": IGNORED, "position_ids": 0}
        packed = "position_ids" in rows[0]
        if self.flat and packed:
            rows = [{name: [value for row in rows for value in row[name]] for name in filling}]
        longest = max(len(row["input_ids"]) for row in rows)
        made = {
            name: torch.full((len(rows), longest), fill, dtype=torch.long)
            for name, fill in filling.items()
            if name in rows[0]
        }
        mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for index, row in enumerate(rows):
            length = len(row["input_ids"])
            for name, tensor in made.items():
                tensor[index, :length] = torch.tensor(row[name])
            mask[index, :length] = 1
        return {**made, "attention_mask": mask}


def by_length(rows: Sequence[Sequence[int]], batch: int) -> Iterator[list[int]]:
    """Yield the numbers of the rows of each batch, those of like lengths together, so that little is padded."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    for start in range(0, len(order), batch):
        yield order[start : start + batch]


@dataclass(slots=True)
class Proof:
    """Looks at the very tensors that go into the first forward pass; counts tokens of every pass after it."""

    responses_only: bool
    decode: Any
    found: dict[str, Any] = field(default_factory=dict)
    tokens: Any = 0

    def look(self, inputs: dict[str, Any]) -> None:
        """Check the first batch. Raises TrainError where its labels cannot be right.

        Of packed rows the mask is only counted: what they see follows from their positions alone.
        """
        mask = inputs.pop("attention_mask") if "position_ids" in inputs else inputs.get("attention_mask")
        self.tokens = self.tokens + (mask.sum() if mask is not None else inputs["input_ids"].numel())
        if self.found:
            return
        labels = inputs.get("labels")
        if labels is None:
            raise TrainError("the first batch reached the model without labels, so nothing would be learned")
        ids = inputs["input_ids"]
        real = mask.bool() if mask is not None else labels == labels
        learned = (labels != IGNORED) & real
        per_row = learned.sum(dim=1).tolist()
        masked = (real & ~learned).sum(dim=1).tolist()
        if not any(per_row):
            raise TrainError("every label of the first batch is masked, so nothing would be learned")
        if not all(per_row):
            raise TrainError(f"row {per_row.index(0) + 1} of the first batch has no label, so it would teach nothing")
        if self.responses_only and not all(masked):
            row = masked.index(0) + 1
            raise TrainError(f"row {row} of the first batch has no masked prompt although responses_only is on")
        if bool((labels[learned] != ids[learned]).any()):
            raise TrainError("labels and tokens of the first batch disagree")
        self.found = {
            "rows": int(labels.shape[0]),
            "tokens": int(real.sum()),
            "learned_tokens": int(learned.sum()),
            "learned_text_of_row_1": self.decode(ids[0][learned[0]].tolist()),
        }

    def take_tokens(self) -> int:
        """Return the tokens that all processes together have seen since the last call."""
        self.tokens, count = 0, all_processes(self.tokens)
        return count


def all_processes(count: Any) -> int:
    """Return the sum of a count (a tensor, or 0) over all processes."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(count)
    return int(count)
