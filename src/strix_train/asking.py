"""The held-out questions of a run: asked before and after, kept in answers.jsonl, counted in the report."""

from __future__ import annotations

import json
from typing import Any

from strix_train.answers import ask
from strix_train.methods import Job


class Asking:
    """Asks the recipe's questions at both ends of a run. Only rank 0 asks."""

    def __init__(self, job: Job, tokenizer: Any) -> None:
        self.job = job
        self.tokenizer = tokenizer
        self.lines: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}

    def before(self, model: Any) -> None:
        """Ask the fresh model; a resumed run keeps the answers of its beginning."""
        kept = self._kept() if self.job.resume else []
        if len(kept) == len(self.job.plan.questions):
            self.lines["before"] = kept
            return
        self._ask("before", model)

    def after(self, model: Any) -> dict[str, int] | None:
        """Ask the trained model, and return how many answers were right of how many."""
        self._ask("after", model)
        if not self.job.plan.questions:
            return None
        right = {phase: sum(line["right"] for line in lines) for phase, lines in self.lines.items()}
        return {**right, "of": len(self.job.plan.questions)}

    def _kept(self) -> list[dict[str, Any]]:
        try:
            text = (self.job.folder.path / "answers.jsonl").read_text(encoding="utf-8")
            lines = [json.loads(line) for line in text.splitlines()]
        except (OSError, ValueError):
            return []
        prompts = [question.prompt for question in self.job.plan.questions]
        before = [line for line in lines if line.get("phase") == "before"]
        return before if [line["prompt"] for line in before] == prompts else []

    def _ask(self, phase: str, model: Any) -> None:
        questions = self.job.plan.questions
        wish = self.job.plan.loaded.recipe.questions
        if not questions or wish is None or (self.job.rank and self.job.shared.whole):
            return  # a model in pieces answers where all processes ask
        self.job.console.progress(f"asking {len(questions)} held-out questions …")
        with self.job.backend.answering(model):
            answers = ask(model, self.tokenizer, questions, max_new_tokens=wish.max_new_tokens)
            self.lines[phase] = [answer.as_json(phase=phase) for answer in answers]
        if self.job.rank:
            return
        every = [*self.lines["before"], *self.lines["after"]]
        self.job.folder.write("answers.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in every))
        right = sum(line["right"] for line in self.lines[phase])
        self.job.console.fact(phase, f"{right} of {len(questions)} held-out answers right")
