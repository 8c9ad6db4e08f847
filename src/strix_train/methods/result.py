"""What a run learned, gathered from all processes and written into the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strix_train.distributed import digests, shards, zero
from strix_train.methods import Job


def kept(job: Job, model: Any, tokenizer: Any, trainer: Any) -> bool | None:
    """Write the result into the run folder, and return whether all processes hold the same, as `_gathered` does."""
    state, same = _gathered(job, model, trainer)
    if job.rank == 0:
        name = job.folder.result_name(model)
        job.folder.write_folder(name, lambda aside: _save(model, tokenizer, aside, state))
    job.ranks.main_first("saved")
    return same


def _gathered(job: Job, model: Any, trainer: Any) -> tuple[dict[str, Any] | None, bool | None]:
    """Return the result of a model in pieces, and whether all processes hold the same; all of them must ask.

    The result is None where process 0 holds it whole; the other is None where nobody else holds any of it.
    """
    if not job.grouped:
        return None, None
    if job.shared.kind == "deepspeed" and hasattr(trainer.model_wrapped, "zero_optimization"):
        state = zero.gathered(trainer, stage=job.shared.stage, keep=job.rank == 0)
        return state, None if job.shared.stage == 3 else _alike(job, digests.weights(model, learning=True))
    if job.shared.kind != "fsdp":
        return None, _alike(job, digests.weights(model, learning=True))
    # each piece is held once
    return shards.gathered(model, job.folder.path if job.rank == 0 else None), None


def _alike(job: Job, digest: str) -> bool:
    """Say whether all processes ended with the same weights; those of process 0 are saved."""
    found = [each["weights"] for each in job.ranks.exchange("result", {"weights": digest})]
    others = [rank for rank, each in enumerate(found) if each != found[0]]
    if others:
        who = ", ".join(map(str, others))
        why = "devices of several kinds round differently; on equal ones, their gradients were not summed"
        job.console.fact("warning", f"process {who} ended with other weights than process 0, which are saved: {why}")
    else:
        job.console.fact("ranks", f"all {job.world} processes ended with the same weights")
    return not others


def _save(model: Any, tokenizer: Any, folder: Path, state: dict[str, Any] | None) -> None:
    more: dict[str, Any] = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    if state is not None:
        more["state_dict"] = state
    model.save_pretrained(str(folder), **more)
    tokenizer.save_pretrained(str(folder))
