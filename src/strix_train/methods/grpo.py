"""Group relative policy optimization: several answers to a prompt, rewarded against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from strix_train import rewards
from strix_train.backends import logprobs
from strix_train.data.mix import Rows
from strix_train.data.rows import Prompt
from strix_train.errors import InputError, Problem
from strix_train.methods import Job, Outcome, ready, withtrl
from strix_train.proofs import PromptProof
from strix_train.recipe.method import Grpo
from strix_train.tokenizer import Adapted


def train(job: Job) -> Outcome:
    """Train, save the result, and ask the questions before and after. Raises TrainError and InputError."""
    from trl import GRPOConfig, GRPOTrainer

    logprobs.install(gpu=job.device.is_gpu)
    plan = job.plan
    wish = plan.loaded.recipe.method
    assert isinstance(wish, Grpo)
    made = ready.load(job)
    objects: list[Mapping[str, Any]] = []
    rows = _rows(job, made.text, plan.train, "prompts", objects)
    evaluation = _rows(job, made.text, plan.evaluation, "eval prompts", objects) if plan.evaluation else None
    ready.adapt(job, made)
    proof = PromptProof()
    worth = rewards.build(plan.loaded)
    trainer = withtrl.Trainer(
        base=_ordered(GRPOTrainer),
        config=GRPOConfig,
        wishes={
            "per_device_eval_batch_size": wish.generations,
            "num_generations": wish.generations,
            "num_generations_eval": wish.generations,
            "max_completion_length": wish.max_new_tokens,
            "temperature": wish.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "repetition_penalty": 1.0,
            "beta": wish.beta,
            "loss_type": wish.loss,
            "num_iterations": 1,
            "epsilon": 0.2,
            "scale_rewards": "group",
            "mask_truncated_completions": False,
            "disable_dropout": True,
            "shuffle_dataset": True,
            "use_vllm": False,
            "reward_weights": [weight for _, weight, _ in worth],
            "log_completions": False,
        },
        rows=rows,
        evaluation=evaluation,
        proof=proof,
        more={"reward_funcs": rewards.for_trl(worth, objects)},
        after=proof.follow,
        own_order=True,
    )
    return withtrl.learn(job, made, _steps(job, len(rows), wish.generations), trainer)


def _ordered(base: Any) -> Any:
    """Return the trainer class with an order of prompts that follows from the seed and the epoch alone.

    TRL draws each epoch's order from where the one before it left its generator, so a resumed run would see others.
    """

    class Ordered(base):  # type: ignore[misc]
        """TRL's trainer whose prompts come in the same order when it goes on."""

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            sampler = super()._get_train_sampler(dataset)
            seed = self.args.seed
            sampler.set_epoch = lambda epoch: sampler.generator.manual_seed(seed + epoch)
            return sampler

    return Ordered


def _steps(job: Job, rows: int, generations: int) -> int:
    """Return the number of optimizer steps. Raises InputError where the prompts do not fill one.

    Each prompt of a step is answered `generations` times; TRL leaves out the prompts at an epoch's end that fill none.
    """
    schedule = job.plan.loaded.recipe.schedule
    prompts = schedule.rows * schedule.accumulation * job.world // generations
    if rows < prompts:
        what = f"a step takes {prompts} prompts, and there {'is' if rows == 1 else 'are'} {rows}"
        place = job.plan.loaded.place("schedule", "accumulation")
        raise InputError(Problem(what, place, "lower schedule.accumulation or schedule.batch, or give more prompts"))
    if schedule.steps is not None:
        return schedule.steps
    return max(1, math.ceil((schedule.epochs or 0) * (rows // prompts)))


def _rows(job: Job, text: Adapted, rows: Rows, what: str, objects: list[Mapping[str, Any]]) -> Any:
    """Return prompts as messages (as texts without a template), and add their objects to `objects`."""
    from datasets import Dataset

    recipe = job.plan.loaded.recipe
    assert isinstance(recipe.method, Grpo)
    most = recipe.schedule.max_length - recipe.method.max_new_tokens
    chat = job.plan.template.mode == "chat" or (job.plan.template.mode == "auto" and text.has_template)
    prompts: list[Any] = []
    numbers: list[int] = []
    lost = longest = 0
    for row in rows:
        assert isinstance(row, Prompt)  # the formats of a method decide that
        messages = [{"role": turn.role, "content": turn.content} for turn in row.turns]
        if not chat and not row.text:
            cure = "write prompts as texts, or data.template: simple"
            raise InputError(Problem("the prompt is messages and the model has no chat template", row.place, cure))
        try:
            whole = text.render(messages, answer_next=True) if chat else row.text
        except ValueError as error:
            what = f"the model's chat template refuses this prompt: {error}"
            raise InputError(Problem(what, row.place, "mend the row, or name another data.template")) from None
        length = len(text.tokens(whole)[0])
        longest = max(longest, length)
        if length > most:
            lost += 1
            continue
        prompts.append(messages if chat else row.text)
        numbers.append(len(objects))
        objects.append(row.row)
    place = job.plan.loaded.place("schedule", "max_length")
    if not prompts:
        what = f"no prompt leaves room for {recipe.method.max_new_tokens} new tokens within max_length"
        raise InputError(Problem(what, place, f"the longest has {longest} tokens; raise schedule.max_length"))
    job.console.fact(what, f"{len(prompts)}: the longest has {longest} tokens")
    if lost:
        job.console.fact("warning", f"{lost} prompts were left out: they leave no room for an answer ({place})")
    return Dataset.from_dict({"prompt": prompts, "row": numbers})
