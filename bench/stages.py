"""A Llama with an adapter, cut into the stages of a pipeline: torch.distributed.pipelining runs them, one a rank.

Rows of a step are padded on the right to its longest: a causal model's real tokens never see what follows them, so no
mask is sent along, and the loss leaves padding out. The loss of a microbatch is the sum over its learned tokens by the
learned tokens of the whole step, so that microbatches with fewer of them count for less, as in one process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

Kind = Literal["1f1b", "gpipe"]
SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
IGNORED = -100


class Part(torch.nn.Module):  # type: ignore[misc]
    """Some layers of a Llama; the first part has the embedding, the last one the norm and the output layer.

    Token ids of [rows, tokens] go into the first part, [rows, tokens, hidden] between two, logits out of the last.
    """

    def __init__(self, llama: Any, begin: int, end: int) -> None:
        super().__init__()
        inner = llama.model
        self.layers = inner.layers[begin:end]
        self.turns = inner.rotary_emb
        self.words = inner.embed_tokens if begin == 0 else None
        last = end == len(inner.layers)
        self.norm = inner.norm if last else None
        self.head = llama.lm_head if last else None

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        """Return what the next part takes."""
        if self.words is not None:
            found = self.words(found)
        places = torch.arange(found.shape[1], device=found.device)[None]
        turns = self.turns(found, places)
        for layer in self.layers:
            found = layer(found, position_ids=places, position_embeddings=turns)
        if self.norm is not None and self.head is not None:
            found = self.head(self.norm(found))
        return found


class Loss:
    """Cross entropy of a microbatch, as its share of the step's. `learned`: learned tokens of the whole step."""

    learned = 0

    def __call__(self, logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """`logits`: [rows, tokens, vocabulary]. `wanted`: [rows, tokens], the next token at each place, or IGNORED."""
        total = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="sum")
        return total / self.learned


class Waiting(torch.nn.Module):  # type: ignore[misc]
    """A part that computes nothing and takes as long as it is told, so that no rank needs a core of its own."""

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.seconds = forward, backward
        # what learns: without it torch would find nothing to go back through
        self.one = torch.nn.Parameter(torch.ones(1))

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        """Return the same numbers later."""
        return _Wait.apply(found, self.one, *self.seconds)


class _Wait(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, found: torch.Tensor, one: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return found.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradient, gradient.new_zeros(1), None, None


def schedule(part: torch.nn.Module, into: torch.Tensor, out: torch.Tensor, kind: Kind, count: int, loss: Any) -> Any:
    """Return torch's schedule of `count` microbatches; `into` and `out`: the shapes of one, as meta tensors.

    With shapes told, torch does not have to run the model to learn them.
    """
    place = (dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    stage = PipelineStage(part, *place, input_args=into, output_args=out)
    # a loss is a share of the step's already: torch would divide gradients by the microbatches once more
    return SCHEDULES[kind](stage, count, loss_fn=loss, scale_grads=False)


class Pipeline:
    """This rank's part, and the steps of all ranks together."""

    def __init__(self, whole: Any, cut: Sequence[int], kind: Kind, microbatches: int) -> None:
        """Take a part of `whole` (a Llama with a peft adapter). `cut`: layers of each rank, as many as ranks."""
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        llama = whole.get_base_model()
        if len(cut) != self.ranks or sum(cut) != len(llama.model.layers):
            raise ValueError(f"{list(cut)} cuts no {len(llama.model.layers)} layers for {self.ranks} ranks")
        begin = sum(cut[: self.rank])
        self.part = Part(llama, begin, begin + cut[self.rank])
        self.hidden = llama.config.hidden_size
        self.vocabulary = llama.config.vocab_size
        mine = {id(each) for each in self.part.parameters()}
        self.learning = {n: each for n, each in whole.named_parameters() if each.requires_grad and id(each) in mine}
        self.kind, self.microbatches = kind, microbatches
        self.loss = Loss()
        self._schedules: dict[tuple[int, int], Any] = {}

    def step(self, rows: torch.Tensor, labels: torch.Tensor) -> float:
        """Add a step's gradients and return its loss, which the last rank knows alone; others return 0.

        `rows`, `labels`: [rows, tokens], as transformers takes them; the rows are a multiple of the microbatches.
        """
        wanted = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        self.loss.learned = int((wanted != IGNORED).sum())
        losses: list[torch.Tensor] = []
        into = (rows,) if self.rank == 0 else ()
        last = {"target": wanted, "losses": losses} if self.rank == self.ranks - 1 else {}
        self._schedule(*rows.shape).step(*into, **last, return_outputs=False)
        return float(sum(float(each.detach()) for each in losses))

    def _schedule(self, rows: int, length: int) -> Any:
        """Return the schedule for a step's shape: what is received is laid out before it comes."""
        if (rows, length) not in self._schedules:
            if rows % self.microbatches:
                raise ValueError(f"{rows} rows are no multiple of {self.microbatches} microbatches")
            some = rows // self.microbatches
            between = torch.empty(some, length, self.hidden, device="meta", requires_grad=True)
            ids = torch.empty(some, length, dtype=torch.long, device="meta")
            logits = torch.empty(some, length, self.vocabulary, device="meta", requires_grad=True)
            into = ids if self.rank == 0 else between
            out = logits if self.rank == self.ranks - 1 else between
            self._schedules[rows, length] = schedule(self.part, into, out, self.kind, self.microbatches, self.loss)
        return self._schedules[rows, length]

    def norm(self) -> float:
        """Return the norm of all ranks' gradients."""
        squares = [each.grad.square().sum() for each in self.learning.values() if each.grad is not None]
        total = torch.stack(squares).sum()
        dist.all_reduce(total)
        return float(total.sqrt())


def even(layers: int, ranks: int) -> list[int]:
    """Return layers of each rank, as equal as can be."""
    return [layers * (rank + 1) // ranks - layers * rank // ranks for rank in range(ranks)]
