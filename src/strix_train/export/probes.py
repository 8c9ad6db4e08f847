"""What a model answers to a few prompts, so that what was made of it can be compared with it.

Compared are numbers, not tastes: the probabilities that the model gave to the tokens of its own answer, as far as the
export says the same. A wrong tokenizer, template, rotation or merge moves them by far more than rounding does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.answers import stop_tokens
from strix_train.data.questions import is_right
from strix_train.errors import TrainError
from strix_train.recipe.schema import Question
from strix_train.tokenizer import Adapted

MOST = 8
# Tokens of an answer that are looked at.
LONGEST = 24
# How far the logarithms of those probabilities may be off on average: of another number format, and of fewer bits.
TOLERANCE = {"merged": 0.25, "f16": 0.25, "q8_0": 0.35, "q4_k_m": 2.0}
_PLAIN = ("Once upon a time", "The capital of France is", "1 2 3 4 5")


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt, as text and tokens; what the model answered, as tokens too; how sure it was of each (natural log)."""

    question: Question
    text: str
    tokens: tuple[int, ...]
    said: tuple[int, ...]
    sureness: tuple[float, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What an export answered to one probe. `sureness`: of the model's own tokens, up to the first other one.

    None where it is not known.
    """

    sureness: tuple[float | None, ...]
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


def take(model: Any, tokenizer: Any, questions: Sequence[Question], *, max_new_tokens: int = LONGEST) -> list[Probe]:
    """Ask a loaded model and return the probes, to compare exports with."""
    text = Adapted(tokenizer, stop_tokens(model, tokenizer))
    found = []
    for question in questions:
        rendered = text.question(question.prompt, question.system)
        tokens = text.tokens(rendered)[0]
        said = _greedy(model, tokenizer, tokens, max_new_tokens)
        answer = text.tokenizer.decode(said, skip_special_tokens=True).strip()
        found.append(Probe(question, rendered, tuple(tokens), said, _sureness(model, tokens, said), answer))
    return found


def replies(model: Any, tokenizer: Any, probes: Sequence[Probe], *, max_new_tokens: int = LONGEST) -> list[Reply]:
    """Return what another model answers to the probes."""
    text = Adapted(tokenizer)
    found = []
    for probe in probes:
        said = _greedy(model, tokenizer, probe.tokens, max_new_tokens)
        common = next((at for at, (a, b) in enumerate(zip(probe.said, said, strict=False)) if a != b), len(probe.said))
        sure = _sureness(model, probe.tokens, probe.said[: common + 1])
        found.append(Reply(sure, text.tokenizer.decode(said, skip_special_tokens=True).strip()))
    return found


def _greedy(model: Any, tokenizer: Any, tokens: Sequence[int], most: int) -> tuple[int, ...]:
    import torch

    stops = stop_tokens(model, tokenizer)
    prompt = torch.tensor([list(tokens)], device=model.device)
    plain: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    with torch.no_grad():
        out = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=most,
            eos_token_id=stops or None,
            pad_token_id=stops[0] if stops else 0,
            **plain,
        )
    return tuple(out[0, len(tokens) :].tolist())


def _sureness(model: Any, tokens: Sequence[int], said: Sequence[int]) -> tuple[float, ...]:
    """Return the log-probability of each token of an answer, given the prompt and those before it."""
    import torch

    whole = torch.tensor([[*tokens, *said]], device=model.device)
    with torch.no_grad():
        scores = model(input_ids=whole).logits[0, len(tokens) - 1 : -1].float().log_softmax(-1)
    return tuple(float(scores[at, token]) for at, token in enumerate(said))


def compare(probes: Sequence[Probe], found: Sequence[Reply]) -> Comparison:
    """Compare an export's replies with its model's. Pure."""
    pairs = list(zip(probes, found, strict=True))
    distances = [
        abs(ours - theirs)
        for probe, reply in pairs
        for ours, theirs in zip(probe.sureness, reply.sureness, strict=False)
        if theirs is not None
    ]
    asked = [(probe, reply) for probe, reply in pairs if probe.question.expect]
    known = distances and all(map(math.isfinite, distances))
    return Comparison(
        distance=sum(distances) / len(distances) if known else math.inf,
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
            f"{what} does not answer like the trained model, so it was not kept: log-probabilities of its words differ "
            f"by {comparison.distance:.2f} on average, and {most:g} is what {kind} explains",
            cure="report it with the model's name; --no-check keeps the export nevertheless",
        )


def _words(text: str) -> str:
    return " ".join(text.split())
