"""What every method has in common: from a model that is ready to learn to a result in the run folder.

A method loads and encodes, says in a `Setup` how its trainer is built, and calls `carry_out`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from strix_train import checkpoints, trackers
from strix_train.asking import Asking
from strix_train.backends.hf import weights_of
from strix_train.console import gigabytes
from strix_train.distributed import digests, evenly, replicas, shards, share, zero
from strix_train.distributed.sharded import with_shards
from strix_train.distributed.together import Disagreement
from strix_train.errors import Problem, TrainError
from strix_train.guard import Guard
from strix_train.methods import Job, Outcome, result
from strix_train.sampling import Sampling
from strix_train.saving import Room, Saver, checkpoint_bytes, tensor_bytes, with_saver
from strix_train.watch import Watch, callback, lines, peak_memory, trim

Wrap = Callable[[Any], Any]
# A loss of these falls towards nothing or moves around it, so that a multiple of it tells nothing.
_NO_SPIKES = ("grpo",)


class Proof(Protocol):
    """Sees each batch before its forward pass, and counts its tokens."""

    found: dict[str, Any]

    def look(self, inputs: Any) -> None:
        """Check a batch. Raises TrainError where nothing could be learned from it."""

    def take_tokens(self) -> int:
        """Return the tokens that all processes together have seen since the last call."""


@dataclass(slots=True)
class Setup:
    """How one method trains. `steps`: optimizer steps. `facts` go into report.json.

    `build` makes the trainer; it must put its trainer class through the function that it is given. `evaluate`
    returns the loss over the evaluation rows, and is None where there are none. `asks`: whether the model answers
    questions in words (a reward model does not). `shuffled`: how many rows are drawn in the order of the seed; None
    where the trainer has an order of its own.
    """

    model: Any
    tokenizer: Any
    steps: int
    proof: Proof
    build: Callable[[Wrap], Any]
    evaluate: Callable[[Any], float] | None
    facts: dict[str, Any]
    asks: bool = True
    shuffled: int | None = None


def carry_out(job: Job, setup: Setup) -> Outcome:
    """Train, save the result, and ask the questions before and after. Raises TrainError and InputError."""
    recipe, console, folder = job.plan.loaded.recipe, job.console, job.folder
    model, tokenizer, facts = setup.model, setup.tokenizer, setup.facts
    _agree(job, model)
    checkpoint = _checkpoint(job) if job.resume else None
    began = checkpoints.step_of(checkpoint) if checkpoint else 0
    _room(job, model)
    if job.shared.kind == "fsdp":
        shards.moving(job.backend)
        dtype = weights_of(job.wish) if job.wish.stored else None
        shards.shard(model, job.device.torch.partition(":")[0], job.world, job.shared.how, dtype)
    elif job.shared.kind == "deepspeed":
        zero.prepare(model)
    elif job.shared.kind == "ddp":
        replicas.prepare(model)
    asking = Asking(job, tokenizer)
    if setup.asks:
        asking.before(model)
        if job.shared.kind == "fsdp":
            shards.apart(model)
        job.ranks.main_first("asked")
    if job.rank == 0:
        for name in ("metrics.jsonl", "evaluations.jsonl", "samples.jsonl"):
            trim(folder.path / name, began)
    sampling = Sampling(job, tokenizer, on=setup.asks)
    following = (
        trackers.start(recipe.logging, folder, job.plan.loaded.name, job.plan.resolved(), began)
        if job.rank == 0
        else ()
    )
    watch = Watch(job, setup.proof, _guard(job, began), sampling, following)
    saver = Saver(folder.checkpoints, job.ranks, rows=_rows_of_a_step(job), strategy=job.shared.kind, spare=watch.spare)

    def wrap(base: Any) -> Any:
        ordered = evenly.ordered(job, base, setup.shuffled)
        if job.shared.kind == "fsdp":
            ordered = with_shards(ordered, job.shared.how, main=job.rank == 0)
        elif job.shared.kind == "ddp":
            ordered = replicas.with_views(ordered)
        return with_saver(ordered, saver, setup.proof.look, watch.before_save)

    trainer = setup.build(wrap)
    watch.trainer, sampling.model = trainer, model
    _joined(job, trainer, watch)
    if checkpoint:
        console.fact("resume", f"from step {began} of {setup.steps}")
    with ExitStack() as open_:
        for tracker in following:
            open_.callback(tracker.close)
        done = _steps(job, setup, trainer, checkpoint, began)
        facts |= {
            "steps_done": done,
            "resumed_from": began or None,
            "first_batch": setup.proof.found,
            **_sums(folder.metrics),
        }
        if job.stopper.requested and done < setup.steps:
            return Outcome(model, tokenizer, True, facts | {"peak_memory": peak_memory(job.device)})
        # first of all: whatever happens from here on, what was learned is there
        facts["same_weights"] = result.kept(job, setup.model, setup.tokenizer, trainer)
        if setup.evaluate:
            known = _looked(trainer, done)
            facts["eval_loss"] = setup.evaluate(trainer) if known is None else known
            console.fact("eval", f"loss {facts['eval_loss']:.4f}")
    facts["questions"] = asking.after(model) if setup.asks else None
    facts["peak_memory"] = peak_memory(job.device)
    console.fact("memory", f"{gigabytes(facts['peak_memory'])} at most")
    return Outcome(model, tokenizer, False, facts)


def _steps(job: Job, setup: Setup, trainer: Any, checkpoint: Path | None, began: int) -> int:
    """Let the trainer do its steps, and return the last one's number. Raises TrainError where it does none."""
    if checkpoint and began >= setup.steps:
        # killed behind its last step: the trainer would do one more
        trainer._load_from_checkpoint(str(checkpoint))
        trainer.state.global_step = began
        return began
    with job.stopper.deferring():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    done = int(trainer.state.global_step)
    if not done and not job.stopper.requested:
        raise TrainError(
            f"the trainer did none of {setup.steps} steps: the rows fill no step", cure="give it more rows"
        )
    return done


def _looked(trainer: Any, step: int) -> float | None:
    """Return the loss over the evaluation rows where it was taken after this very step."""
    found = [row["eval_loss"] for row in trainer.state.log_history if row.get("step") == step and "eval_loss" in row]
    return float(found[-1]) if found else None


def _agree(job: Job, model: Any) -> None:
    """Check that every process has loaded the same model. Raises Disagreement, in all of them."""
    if job.world > 1:
        job.ranks.agree("model", {"model": digests.config(model), "weights": digests.weights(model)})


def _checkpoint(job: Job) -> Path | None:
    """Return the checkpoint to go on from, as process 0 finds it and as it lies on this machine."""
    parent, warn = job.folder.checkpoints, lambda text: job.console.fact("warning", text)
    found = share.everywhere(job.ranks, checkpoints.newest(parent, warn) if job.rank == 0 else None, parent)
    before = checkpoints.manifest(found) if found else {}
    pieces = [before.get("strategy") == "deepspeed", job.shared.kind == "deepspeed"]
    if found and any(pieces) and (not all(pieces) or before.get("world") != job.world):
        was = f"{before.get('strategy')} with {before.get('world')} processes"
        what = f"{found.name} is of strategy {was}, and would go on as {job.shared.kind} with {job.world}"
        raise Disagreement(Problem(what, cure="DeepSpeed's pieces fit its own strategy and as many processes only"))
    return found


def _rows_of_a_step(job: Job) -> int:
    schedule = job.plan.loaded.recipe.schedule
    return schedule.rows * schedule.accumulation * job.world


def _guard(job: Job, began: int) -> Guard:
    recipe = job.plan.loaded.recipe
    wish = recipe.guard
    guard = Guard(0.0 if recipe.method.kind in _NO_SPIKES else wish.spike, wish.patience, wish.window)
    rows = (row for row in lines(job.folder.metrics) if "loss" in row and row["step"] <= began)
    guard.remember((row["step"], float(row["loss"])) for row in rows)
    return guard


def _room(job: Job, model: Any) -> None:
    """Check, before the first step, that the disk takes what the run will write. Raises TrainError."""
    if job.rank:
        return
    keeps = job.plan.loaded.recipe.checkpoints
    there = len(checkpoints.whole(job.folder.checkpoints))
    # one more than is kept: the oldest goes when the newest is whole
    more = max(1, keeps.keep + 1 - there) if keeps.every else 1
    learns = [weight for weight in model.parameters() if weight.requires_grad]
    result = tensor_bytes(learns if hasattr(model, "peft_config") else model.parameters())
    kind = job.shared.kind
    # of the last one, what passes by is gone when the result is written
    needed = (more - 1) * checkpoint_bytes(model, None) + checkpoint_bytes(model, None, kind) + result
    free = Room(job.folder.path).free(job.folder.path)
    if free < needed:
        raise TrainError(
            f"the disk of {job.folder.path} has {gigabytes(free)} left, and this run writes about {gigabytes(needed)}: "
            f"{more} checkpoints and the result",
            cure="make room, or lower checkpoints.keep",
        )


def _joined(job: Job, trainer: Any, watch: Watch) -> None:
    """Let the watch follow the trainer, and check that all processes train one model together."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(callback(watch))
    if job.world > 1 and trainer.args.world_size != job.world:
        # each process would train a model of its own, and nothing would say so
        raise TrainError(
            f"{job.world} processes were started and {trainer.args.world_size} train together",
            cure="start them with torchrun, and look at the backends that this PyTorch has",
        )
    job.ranks.agree("rows", {"rows": digests.rows(trainer.train_dataset) if job.world > 1 else ""})


def one_device(job: Job, arguments: Any) -> Any:
    """Return the trainer's arguments so that one process drives one GPU: no DataParallel behind our back."""
    arguments.device  # noqa: B018 - the property sets the device up, and counts GPUs
    if job.shared.kind == "deepspeed" and arguments.gradient_checkpointing:
        # the other way compares what is computed again, where a weight is gathered, with what it was without
        arguments.gradient_checkpointing_kwargs = {"use_reentrant": True}
    if job.world == 1:
        arguments._n_gpu = min(1, arguments.n_gpu)
    elif not job.device.is_gpu:
        import torch

        # accelerate numbers the CPU, and torch then loads no checkpoint: there is one CPU for it
        arguments.__dict__["_setup_devices"] = torch.device("cpu")
    return arguments


def _sums(metrics: Path) -> dict[str, Any]:
    """Return what all steps of the run took, those before it was resumed included."""
    rows = [row for row in lines(metrics) if "loss" in row]
    seconds, tokens = sum(row["seconds"] for row in rows), sum(row["tokens"] for row in rows)
    return {
        "training_seconds": round(seconds, 3),
        "tokens": tokens,
        "tokens_per_s": round(tokens / seconds, 2) if seconds else None,
    }
