"""Reward models: they give a text one number and say no words, so they are not asked but measured by those numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strix_train import ruling
from strix_train.data.rows import Preference
from strix_train.errors import InputError, Problem
from strix_train.recipe import places

if TYPE_CHECKING:
    from strix_train.generate import Source
    from strix_train.plan import Plan
    from strix_train.tokenizer import Adapted

# Pairs that are sorted by length at a time, so that batches are nearly full.
_SORTED = 256


def is_scorer(source: Source) -> bool:
    """Whether it gives numbers, by the recipe of its run, by what its adapter is for, or by its model's own kind."""
    if source.run and _method(source.run / "recipe.resolved.yaml") == "reward":
        return True
    return bool(source.adapter and _task(source.adapter) == "SEQ_CLS") or ruling.model_facts(source.base).scores


def _method(recipe: Path) -> str | None:
    value = places.read(recipe).value
    method = value.get("method") if isinstance(value, dict) else None
    return str(method.get("kind")) if isinstance(method, dict) else method


def _task(adapter: Path) -> Any:
    try:
        value = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the loader says what is wrong with it
    return value.get("task_type") if isinstance(value, dict) else None


def refuse(source: Source, wish: str) -> None:
    """Raise InputError where a reward model would have to say words. `wish`: what then cannot be done, after "so"."""
    if is_scorer(source):
        what = f"{source.adapter or source.base.source} is a reward model, which gives numbers and no words, so {wish}"
        cure = "load it with AutoModelForSequenceClassification of transformers"
        raise InputError(
            Problem(what, cure=f"{cure}, or measure it on pairs with `train eval`" if source.run else cure)
        )


def agreeing(source: Source, plan: Plan, *, most: int | None, batch: int) -> tuple[int, float]:
    """Return the number of evaluation pairs, and the share whose chosen answer gets the higher number.

    Raises InputError where there are none. Without its adapter such a model has no head, so nothing is compared with.
    """
    from strix_train.generate import load
    from strix_train.tokenizer import Adapted

    if plan.evaluation is None:
        raise InputError(Problem("a reward model is measured on pairs, and there are none", cure="give --data"))
    model, tokenizer = load(source, scores=True)
    if plan.template.source:
        tokenizer.chat_template = plan.template.source
    text = Adapted(tokenizer)
    # by it the model finds a row's last token, as it did in training
    model.config.get_text_config().pad_token_id = text.pad
    number, right = 0, 0
    pairs = _pairs(plan, text, most)
    while some := list(islice(pairs, _SORTED)):
        found = _numbers(model, [row for pair in some for row in pair], text.pad, batch)
        number += len(some)
        right += sum(good > bad for good, bad in zip(found[::2], found[1::2], strict=True))
    if not number:
        what = "no evaluation row is a pair whose two answers schedule.max_length leaves whole"
        raise InputError(Problem(what, cure="give --data with rows of chosen and rejected answers"))
    return number, right / number


def _pairs(plan: Plan, text: Adapted, most: int | None) -> Iterator[tuple[list[int], list[int]]]:
    from strix_train.encode import encoder

    recipe = plan.loaded.recipe
    size = recipe.schedule.max_length
    encode = encoder(text, template=plan.template.mode, responses_only=recipe.responses_only, max_length=size)
    for row in islice(plan.evaluation or (), most):
        if isinstance(row, Preference):
            better, worse = encode(row.chosen), encode(row.rejected)
            if not better.cut and not worse.cut:  # as in training
                yield better.ids, worse.ids


def _numbers(model: Any, rows: Sequence[list[int]], pad: int, batch: int) -> list[float]:
    """Return the number that the model gives to each row, in order."""
    import torch

    from strix_train.batches import Collator, by_length

    collate = Collator(pad)
    found = [0.0] * len(rows)
    for some in by_length(rows, batch):
        made = collate([{"input_ids": rows[index]} for index in some])
        with torch.no_grad():
            given = model(**{name: value.to(model.device) for name, value in made.items()}).logits[:, 0]
        for index, value in zip(some, given.float().tolist(), strict=True):
            found[index] = value
    return found
