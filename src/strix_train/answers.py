"""Asking a model questions: greedy unless told otherwise, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from strix_train.data.questions import is_right
from strix_train.recipe.schema import Question
from strix_train.tokenizer import Adapted

AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """A question and what the model said. `right` is None where nothing was expected."""

    question: Question
    text: str
    right: bool | None

    def as_json(self, **more: Any) -> dict[str, Any]:
        """Return the answer as a line of answers.jsonl."""
        line: dict[str, Any] = {**more, "prompt": self.question.prompt}
        if self.question.system:
            line["system"] = self.question.system
        if self.question.expect:
            line |= {"expect": self.question.expect, "right": self.right}
        return line | {"answer": self.text}


def stop_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end an answer: the model's own and the tokenizer's."""
    stops = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    stops = list(stops) if isinstance(stops, (list, tuple)) else [stops]
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    return sorted({int(stop) for stop in [*stops, inner.eos_token_id] if stop is not None})


def ask(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> Iterator[Answer]:
    """Yield an answer for each question, in order. The caller has put the model into evaluation mode."""
    import torch

    stops = stop_tokens(model, tokenizer)
    text = Adapted(tokenizer, stops)
    pad = text.tokenizer.pad_token_id
    pad = stops[0] if pad is None and stops else (pad or 0)
    sampling: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature}
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_available() else []):
        torch.manual_seed(seed)
        for start in range(0, len(questions), AT_ONCE):
            some = questions[start : start + AT_ONCE]
            prompts = [text.tokens(text.question(question.prompt, question.system))[0] for question in some]
            longest = max(len(prompt) for prompt in prompts)
            ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            with torch.no_grad():
                out = model.generate(
                    input_ids=ids.to(model.device),
                    attention_mask=mask.to(model.device),
                    max_new_tokens=max_new_tokens,
                    pad_token_id=pad,
                    eos_token_id=stops or None,
                    use_cache=True,
                    **sampling,
                )
            for question, row in zip(some, out, strict=True):
                said = text.tokenizer.decode(row[longest:], skip_special_tokens=True).strip()
                yield Answer(question, said, is_right(said, question.expect) if question.expect else None)
