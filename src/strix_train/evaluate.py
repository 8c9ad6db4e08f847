"""Measuring a trained model: how well it foretells held-out answers, and how many questions it answers right.

Where it is an adapter, the model without it is measured as well: what training changed is what matters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from strix_train import plan as plans
from strix_train import scorer
from strix_train.data.mix import Rows
from strix_train.data.rows import Continuation, Conversation, Document, Preference, Prompt, Rated
from strix_train.encode import encoder
from strix_train.errors import InputError, Place, Problem
from strix_train.generate import Source
from strix_train.plan import Plan
from strix_train.recipe.schema import Question
from strix_train.tokenizer import Adapted

# Rows that are sorted by length at a time, so that batches are nearly full.
_SORTED = 512


@dataclass(frozen=True, slots=True)
class Foretold:
    """Over the learned tokens of `rows`: the mean loss (natural log) and its exponential."""

    rows: int
    tokens: int
    loss: float
    perplexity: float


@dataclass(frozen=True, slots=True)
class Preferred:
    """Of `pairs`, the share in which the better answer was likelier, a token, than the worse one.

    Of a reward model: in which it got the higher number.
    """

    pairs: int
    share: float


@dataclass(frozen=True, slots=True)
class Answered:
    """Of `questions`, those whose answer holds what was expected, and those that are it exactly."""

    questions: int
    right: int
    exact: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found out of one model."""

    foretold: Foretold | None = None
    preferred: Preferred | None = None
    answered: Answered | None = None


def what_to_measure(run: Path, data: Path | None, questions: Path | None, *, tasks: bool = False) -> Plan:
    """Return a run's own plan, with other rows or questions where they are named. Raises InputError.

    `tasks`: there are tasks besides, so that the plan may have nothing to measure.
    """
    settings = []
    if data is not None:
        # the rows trained on are of no interest here, and may be gone
        settings += [f"data.{role}={json.dumps(str(data.absolute()))}" for role in ("train", "eval")]
        settings += ["evaluation.split=null", "data.format=auto"]
    if questions is not None:
        settings += [f"questions={json.dumps({'file': str(questions.absolute())})}"]
    try:
        plan = plans.make(str(run / "recipe.resolved.yaml"), settings, with_backend=False)
    except InputError as error:
        raise InputError(_as_asked(error.problems)) from None
    if plan.questions or tasks:
        return plan
    if plan.evaluation is None:
        raise InputError(
            Problem(f"the run in {run} has neither evaluation rows nor questions", cure="give --data or --questions")
        )
    if isinstance(next(iter(plan.evaluation), None), Prompt):
        what = "the evaluation rows are prompts without answers, of which nothing is measured"
        raise InputError(Problem(what, cure="give --questions"))
    return plan


def _as_asked(problems: Sequence[Problem]) -> list[Problem]:
    """Return faults at the options that were given, each once: the same rows stand in both roles."""
    options = {"--set data": Place("--data"), "--set questions": Place("--questions")}
    found = []
    for each in problems:
        source = each.place.source if each.place else ""
        place = next((option for begins, option in options.items() if source.startswith(begins)), each.place)
        found.append(replace(each, place=place))
    return list(dict.fromkeys(found))


def measure(
    model: Any, tokenizer: Any, plan: Plan, *, most: int | None, batch: int, keep: Callable[[dict[str, Any]], None]
) -> Measured:
    """Measure one model, which is in evaluation mode. `most`: of the rows. `keep` is given each answer."""
    text = _text(model, tokenizer, plan)
    foretold, preferred = None, None
    if plan.evaluation is not None:
        first = next(iter(plan.evaluation), None)
        if isinstance(first, Preference):
            preferred = _preferred(model, _pairs(plan, text, plan.evaluation, most), text, batch)
        elif not isinstance(first, Prompt):
            foretold = foretell(model, _rows(plan, text, plan.evaluation, most), text, batch)
    answered = _answered(model, tokenizer, plan, keep) if plan.questions else None
    return Measured(foretold, preferred, answered)


def both(
    source: Source, plan: Plan, *, most: int | None = None, batch: int = 8, without: bool = True
) -> tuple[Measured | None, Measured, list[dict[str, Any]]]:
    """Measure the model without its adapter (None where it has none) and with it; also return the answers."""
    from strix_train.generate import load

    if scorer.is_scorer(source):
        return None, Measured(preferred=Preferred(*scorer.agreeing(source, plan, most=most, batch=batch))), []
    model, tokenizer = load(source)
    answers: list[dict[str, Any]] = []

    def one(name: str, mode: AbstractContextManager[Any]) -> Measured:
        with mode:
            keep: Callable[[dict[str, Any]], None] = lambda line: answers.append({"model": name, **line})  # noqa: E731
            return measure(model, tokenizer, plan, most=most, batch=batch, keep=keep)

    before = one("without adapter", model.disable_adapter()) if source.adapter and without else None
    return before, one("trained", nullcontext()), answers


def _text(model: Any, tokenizer: Any, plan: Plan) -> Adapted:
    from strix_train.answers import stop_tokens

    if plan.template.source:
        tokenizer.chat_template = plan.template.source
    return Adapted(tokenizer, stop_tokens(model, tokenizer))


Tokens = tuple[list[int], list[int]]


def _encode(plan: Plan, text: Adapted) -> Callable[[Any], Tokens | None]:
    recipe = plan.loaded.recipe
    size = recipe.schedule.max_length
    encode = encoder(text, template=plan.template.mode, responses_only=recipe.responses_only, max_length=size)

    def tokens(row: Any) -> Tokens | None:
        if isinstance(row, Document):
            ids = text.tokens(text.bos + row.text)[0][:size]
            return (ids, [-100, *ids[1:]]) if len(ids) > 1 else None
        found = encode(row)
        return (found.ids, found.labels) if found.learned else None

    return tokens


def _rows(plan: Plan, text: Adapted, rows: Rows, most: int | None) -> Iterator[Tokens]:
    encode = _encode(plan, text)
    for row in islice(rows, most):
        if isinstance(row, (Conversation, Continuation, Document, Rated)):
            found = encode(row.row if isinstance(row, Rated) else row)
            if found:
                yield found


def _pairs(plan: Plan, text: Adapted, rows: Rows, most: int | None) -> Iterator[tuple[Tokens, Tokens]]:
    encode = _encode(plan, text)
    for row in islice(rows, most):
        if isinstance(row, Preference):
            better, worse = encode(row.chosen), encode(row.rejected)
            if better and worse:
                yield better, worse


def losses(model: Any, rows: Sequence[Tokens], text: Adapted, batch: int) -> list[tuple[float, int]]:
    """Return the summed loss and the number of learned tokens of each row, in order."""
    import torch

    from strix_train.batches import Collator, by_length

    collate = Collator(text.pad)
    found: list[tuple[float, int]] = [(0.0, 0)] * len(rows)
    for some in by_length([ids for ids, _ in rows], batch):
        made = collate([{"input_ids": rows[index][0], "labels": rows[index][1]} for index in some])
        made = {name: value.to(model.device) for name, value in made.items()}
        labels = made.pop("labels")[:, 1:]
        with torch.no_grad():
            scores = model(**made).logits[:, :-1]
            # row by row: in 32 bits, the logits of all rows would take twice what the model gives
            each = torch.stack(
                [
                    torch.nn.functional.cross_entropy(row.float(), wanted, ignore_index=-100, reduction="sum")
                    for row, wanted in zip(scores, labels, strict=True)
                ]
            )
        for index, loss, count in zip(some, each, (labels != -100).sum(dim=1), strict=True):
            found[index] = (float(loss), int(count))
    return found


def foretell(model: Any, rows: Iterator[Tokens], text: Adapted, batch: int) -> Foretold | None:
    """Return the loss over all rows, which are read some hundred at a time; None where none has an answer."""
    number, tokens, total = 0, 0, 0.0
    while some := list(islice(rows, _SORTED)):
        for loss, count in losses(model, some, text, batch):
            number, tokens, total = number + 1, tokens + count, total + loss
    if not tokens:
        return None
    mean = total / tokens
    return Foretold(number, tokens, mean, math.exp(mean) if mean < 700 else math.inf)


def _preferred(model: Any, pairs: Iterator[tuple[Tokens, Tokens]], text: Adapted, batch: int) -> Preferred | None:
    number, better = 0, 0
    while some := list(islice(pairs, _SORTED // 2)):
        found = losses(model, [row for pair in some for row in pair], text, batch)
        for (good, its), (bad, theirs) in zip(found[::2], found[1::2], strict=True):
            number += 1
            better += good / max(1, its) < bad / max(1, theirs)
    return Preferred(number, better / number) if number else None


def _answered(model: Any, tokenizer: Any, plan: Plan, keep: Callable[[dict[str, Any]], None]) -> Answered:
    from strix_train.answers import ask

    wish = plan.loaded.recipe.questions
    right, exact = 0, 0
    for answer in ask(model, tokenizer, plan.questions, max_new_tokens=wish.max_new_tokens if wish else 64):
        same = is_exact(answer.text, answer.question)
        right, exact = right + bool(answer.right), exact + same
        keep(answer.as_json(exact=same))
    return Answered(len(plan.questions), right, exact)


def is_exact(answer: str, question: Question) -> bool:
    """Whether an answer is what was expected and nothing more: case, spacing and a full stop at the end aside."""

    def plain(text: str) -> str:
        return " ".join(text.casefold().split()).rstrip(".!")

    return plain(answer) == plain(question.expect)


def summary(before: Measured | None, after: Measured) -> dict[str, str]:
    """Return what was measured in words, by what it is. Pure."""
    found: dict[str, str] = {}

    def change(name: str, of: Callable[[Measured], str | None], more: str = "") -> None:
        now = of(after)
        was = of(before) if before else None
        if now is not None:
            found[name] = (f"{was} without the adapter, {now} with it" if was is not None else now) + more

    told, pairs, asked = after.foretold, after.preferred, after.answered
    if told:
        more = f" ({told.rows} rows, {told.tokens} tokens)"
        change("loss", lambda each: f"{each.foretold.loss:.4f}" if each.foretold else None, more)
        change("perplexity", lambda each: f"{each.foretold.perplexity:.3f}" if each.foretold else None)
    if pairs:
        more = f" (of {pairs.pairs} pairs)"
        change("better preferred", lambda each: f"{each.preferred.share:.1%}" if each.preferred else None, more)
    if asked:
        change("right", lambda each: f"{each.answered.right} of {asked.questions}" if each.answered else None)
        change("exactly", lambda each: f"{each.answered.exact} of {asked.questions}" if each.answered else None)
    return found


def as_json(before: Measured | None, after: Measured, more: dict[str, Any]) -> dict[str, Any]:
    """Return the content of evaluation.json."""
    return {
        "summary": summary(before, after) | {name: str(value) for name, value in (more.get("summary") or {}).items()},
        "before": asdict(before) if before else None,
        "after": asdict(after),
        **{name: value for name, value in more.items() if name != "summary"},
    }
