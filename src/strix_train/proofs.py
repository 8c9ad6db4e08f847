"""The proof before the first step for methods whose batches are not plain rows: what the loss will see, in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strix_train.batches import all_processes
from strix_train.encode import IGNORED
from strix_train.errors import TrainError
from strix_train.rewards import words_of


@dataclass(slots=True)
class MaskProof:
    """Of batches with input_ids, attention_mask and completion_mask; `names` say what the rows of each part are.

    Preference batches hold the chosen rows first, then as many rejected ones.
    """

    decode: Any
    names: tuple[str, ...] = ("row_1",)
    found: dict[str, Any] = field(default_factory=dict)
    tokens: Any = 0

    def look(self, inputs: dict[str, Any]) -> None:
        """Check the first batch. Raises TrainError where a row has no answer, or no prompt."""
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        self.tokens = self.tokens + mask.sum()
        if self.found:
            return
        answers = inputs["completion_mask"].bool() & mask
        for index, (learned, real) in enumerate(zip(answers.sum(1).tolist(), mask.sum(1).tolist(), strict=True)):
            if not learned:
                raise TrainError(f"row {index + 1} of the first batch has no answer, so it would teach nothing")
            if learned == real:
                raise TrainError(f"row {index + 1} of the first batch has no prompt in front of its answer")
        share = len(ids) // len(self.names)
        self.found = {
            "rows": len(ids),
            "tokens": int(mask.sum()),
            "learned_tokens": int(answers.sum()),
            **{
                f"learned_text_of_{name}": self.decode(ids[share * at][answers[share * at]].tolist())
                for at, name in enumerate(self.names)
            },
        }

    def take_tokens(self) -> int:
        """Return the tokens that all processes together have seen since the last call."""
        self.tokens, count = 0, all_processes(self.tokens)
        return count


@dataclass(slots=True)
class OrpoProof:
    """Of batches that hold the chosen rows and the rejected ones under names of their own, with labels."""

    decode: Any
    found: dict[str, Any] = field(default_factory=dict)
    tokens: Any = 0

    def look(self, inputs: dict[str, Any]) -> None:
        """Check the first batch. Raises TrainError where a row has no answer, or no prompt."""
        whole = [inputs[f"{which}_attention_mask"].sum() for which in ("chosen", "rejected")]
        self.tokens = self.tokens + whole[0] + whole[1]
        if self.found:
            return
        facts: dict[str, Any] = {"tokens": int(whole[0] + whole[1]), "learned_tokens": 0}
        for which in ("chosen", "rejected"):
            ids, labels = inputs[f"{which}_input_ids"], inputs[f"{which}_labels"]
            answers = labels != IGNORED
            if not bool(answers.any(1).all()):
                raise TrainError(f"a {which} answer of the first batch is empty, so it would teach nothing")
            if bool((labels[answers] != ids[answers]).any()):
                raise TrainError("labels and tokens of the first batch disagree")
            facts["rows"] = len(ids)
            facts["learned_tokens"] += int(answers.sum())
            facts[f"learned_text_of_{which}"] = self.decode(ids[0][answers[0]].tolist())
        self.found = facts

    def take_tokens(self) -> int:
        """Return the tokens that all processes together have seen since the last call."""
        self.tokens, count = 0, all_processes(self.tokens)
        return count


@dataclass(slots=True)
class PairProof:
    """Of batches with input_ids and attention_mask that hold the chosen rows first, then as many rejected ones."""

    decode: Any
    found: dict[str, Any] = field(default_factory=dict)
    tokens: Any = 0

    def look(self, inputs: dict[str, Any]) -> None:
        """Check the first batch. Raises TrainError where a pair's rows are the same."""
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        self.tokens = self.tokens + mask.sum()
        if self.found:
            return
        half = len(ids) // 2
        texts = [self.decode(row[real].tolist()) for row, real in zip(ids, mask, strict=True)]
        for index in range(half):
            if texts[index] == texts[half + index]:
                raise TrainError(f"the rows of pair {index + 1} of the first batch are the same")
        self.found = {
            "rows": len(ids),
            "tokens": int(mask.sum()),
            "chosen_row_1": texts[0],
            "rejected_row_1": texts[half],
        }

    def take_tokens(self) -> int:
        """Return the tokens that all processes together have seen since the last call."""
        self.tokens, count = 0, all_processes(self.tokens)
        return count


@dataclass(slots=True)
class PromptProof:
    """Of batches of prompts, before they are answered: which ones, each as often as it is answered.

    Tokens are those that the trainer counts, since answers are written inside it.
    """

    found: dict[str, Any] = field(default_factory=dict)
    _trainer: Any = None
    _before: float | None = None

    def follow(self, trainer: Any) -> None:
        """Take the trainer to count by."""
        self._trainer = trainer

    def look(self, inputs: Any) -> None:
        """Note the first prompts. Raises TrainError where there are none."""
        if self._before is None:
            # a run that goes on has its count from its checkpoint
            self._before = float(self._trainer.state.num_input_tokens_seen)
        if self.found:
            return
        if not inputs:
            raise TrainError("the first batch holds no prompts")
        texts = [words_of(each["prompt"]) for each in inputs]
        self.found = {"prompts": len(texts), "different_prompts": len(set(texts)), "prompt_1": texts[0][:500]}

    def take_tokens(self) -> int:
        """Return the tokens that all processes together have seen since the last call."""
        now = float(self._trainer.state.num_input_tokens_seen)
        count, self._before = now - (self._before or 0.0), now
        return int(count)
