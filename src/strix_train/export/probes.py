"""What a model answers to a few prompts, so that what was made of it can be compared with it.

Compared are numbers, not tastes: the probability that the model gave to the first word of its own answer. A wrong
tokenizer, template, rotation or merge moves it by far more than rounding does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.answers import ask, stop_tokens
from strix_train.data.questions import is_right
from strix_train.errors import TrainError
from strix_train.recipe.schema import Question
from strix_train.tokenizer import Adapted

MOST = 8
# How far the logarithm of that probability may be off on average: of another number format, and of fewer bits.
TOLERANCE = {"merged": 0.25, "f16": 0.25, "q8_0": 0.35, "q4_k_m": 2.0}
_PLAIN = ("Once upon a time", "The capital of France is", "1 2 3 4 5")


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt as text and tokens, what the model answered, and how sure it was of its first token (natural log)."""

    question: Question
    text: str
    tokens: tuple[int, ...]
    first: int
    sureness: float
    answer: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What an export answered to one probe. `sureness`: of the same first token as the model's."""

    sureness: float
    answer: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """How near an export is to its model: the mean distance of logarithms, equal answers, right ones of those asked."""

    distance: float
    alike: int
    of: int
    right: int
    asked: int

    def __str__(self) -> str:
        text = f"{self.alike} of {self.of} answers are the model's own, log-probabilities differ by {self.distance:.3f}"
        return text + (f", {self.right} of {self.asked} questions right" if self.asked else "")


def questions_of(run: Path | None, folder: Path) -> list[Question]:
    """Return the questions that a run asked, or plain beginnings where it asked none."""
    found: list[Question] = []
    for place in (run, folder):
        path = place / "answers.jsonl" if place else None
        if path is None or not path.is_file():
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            value = json.loads(line)
            if value.get("phase") == "after":
                expect, system = value.get("expect", ""), value.get("system")
                found.append(Question.model_construct(prompt=value["prompt"], expect=expect, system=system))
        break
    return found[:MOST] or [Question.model_construct(prompt=text, expect="", system=None) for text in _PLAIN]


def take(model: Any, tokenizer: Any, questions: Sequence[Question], *, max_new_tokens: int = 24) -> list[Probe]:
    """Ask a loaded model and return the probes, to compare exports with."""
    text = Adapted(tokenizer, stop_tokens(model, tokenizer))
    answers = [answer.text for answer in ask(model, tokenizer, questions, max_new_tokens=max_new_tokens)]
    found = []
    for question, answer in zip(questions, answers, strict=True):
        rendered = text.question(question.prompt, question.system)
        tokens = text.tokens(rendered)[0]
        scores = first_scores(model, tokens)
        first = int(scores.argmax())
        found.append(Probe(question, rendered, tuple(tokens), first, float(scores[first]), answer))
    return found


def first_scores(model: Any, tokens: Sequence[int]) -> Any:
    """Return the log-probabilities of the token that follows, over the vocabulary."""
    import torch

    with torch.no_grad():
        out = model(input_ids=torch.tensor([list(tokens)], device=model.device)).logits[0, -1]
    return out.float().log_softmax(-1)


def replies(model: Any, tokenizer: Any, probes: Sequence[Probe], *, max_new_tokens: int = 24) -> list[Reply]:
    """Return what another model answers to the probes."""
    answers = ask(model, tokenizer, [probe.question for probe in probes], max_new_tokens=max_new_tokens)
    texts = [answer.text for answer in answers]
    return [
        Reply(float(first_scores(model, probe.tokens)[probe.first]), text)
        for probe, text in zip(probes, texts, strict=True)
    ]


def compare(probes: Sequence[Probe], found: Sequence[Reply]) -> Comparison:
    """Compare an export's replies with its model's. Pure."""
    pairs = list(zip(probes, found, strict=True))
    distances = [abs(probe.sureness - reply.sureness) for probe, reply in pairs]
    asked = [(probe, reply) for probe, reply in pairs if probe.question.expect]
    return Comparison(
        distance=sum(distances) / len(distances) if all(map(math.isfinite, distances)) else math.inf,
        alike=sum(_words(probe.answer) == _words(reply.answer) for probe, reply in pairs),
        of=len(pairs),
        right=sum(is_right(reply.answer, probe.question.expect) for probe, reply in asked),
        asked=len(asked),
    )


def check(what: str, kind: str, comparison: Comparison) -> None:
    """Raise TrainError where an export is not its model. `kind`: a key of TOLERANCE."""
    most = TOLERANCE[kind]
    if comparison.distance > most:
        raise TrainError(
            f"{what} does not answer like the trained model, so it was not kept: log-probabilities of its first words "
            f"differ by {comparison.distance:.2f} on average, and {most:g} is what {kind} explains",
            cure="report it with the model's name; --no-check keeps the export nevertheless",
        )


def _words(text: str) -> str:
    return " ".join(text.split())
