"""Samples: what the model answers while it learns, kept in samples.jsonl.

Asking changes no weight and no random number, so that a run with samples ends as one without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strix_train.answers import ask
from strix_train.console import Console
from strix_train.methods import Job
from strix_train.recipe.schema import Question


class Sampling:
    """Asks every so many steps. Only rank 0 asks; `due` is false for all others, and where a model is in pieces.

    `on`: whether the model answers in words at all.
    """

    def __init__(self, job: Job, tokenizer: Any, *, on: bool = True) -> None:
        self.job, self.tokenizer = job, tokenizer
        recipe = job.plan.loaded.recipe
        self.wish = recipe.samples if on and job.shared.whole else None
        if recipe.samples and on and not job.shared.whole:
            job.console.fact("warning", f"no samples are taken while {job.shared.kind} has the model in pieces")
        self.model: Any = None

    @property
    def questions(self) -> tuple[Question, ...]:
        """What is asked: the recipe's samples, else its questions."""
        if self.wish is None:
            return ()
        if self.wish.ask is None:
            return self.job.plan.questions
        return tuple(Question.model_construct(prompt=s.prompt, expect="", system=s.system) for s in self.wish.ask)

    def due(self, step: int) -> bool:
        """Whether this process takes samples after this step."""
        return self.job.rank == 0 and self.wanted(step)

    def wanted(self, step: int) -> bool:
        """Whether samples are taken after this step."""
        return bool(self.wish and self.questions and step % self.wish.every == 0)

    def take(self, step: int) -> Mapping[str, str]:
        """Ask, write the answers down, show the first, and return prompt → answer."""
        assert self.wish is not None
        with self.job.backend.answering(self.model):
            found = list(ask(self.model, self.tokenizer, self.questions, max_new_tokens=self.wish.max_new_tokens))
        with (self.job.folder.path / "samples.jsonl").open("a", encoding="utf-8") as stream:
            for answer in found:
                stream.write(json.dumps(answer.as_json(step=step), ensure_ascii=False) + "\n")
        show(self.job.console, step, found[0].question.prompt, found[0].text)
        return {answer.question.prompt: answer.text for answer in found}


def show(console: Console, step: int, prompt: str, answer: str) -> None:
    """Show one sample in one line."""
    console.fact("sample", f"step {step}: {_short(prompt)} → {_short(answer)}")


def _short(text: str, most: int = 60) -> str:
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[: most - 1]}…"
