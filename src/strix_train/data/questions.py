"""Held-out questions: of the recipe itself, or of a JSONL file; and what counts as a right answer."""

from __future__ import annotations

import re
from pathlib import Path

from strix_train.data.faults import Faults
from strix_train.data.lines import read
from strix_train.errors import nearest
from strix_train.recipe.schema import Question

_KEYS = ("prompt", "expect", "system")


def load(path: Path, *, expected: bool = True) -> tuple[Question, ...]:
    """Read {"prompt", "expect", "system"?} lines. Without `expected`, `expect` may be left out (and is '')."""
    faults = Faults()
    questions: list[Question] = []
    for line in read(path, faults):
        unknown = [key for key in line.value if key not in _KEYS]
        if unknown:
            faults.add(f"unknown key '{unknown[0]}'", line.place(unknown[0]), nearest(unknown[0], _KEYS))
            continue
        wanted = ("prompt", "expect") if expected else ("prompt",)
        missing = [key for key in wanted if key not in line.value]
        if missing:
            faults.add(f"the question has no '{missing[0]}'", line.place(), "a question has 'prompt' and 'expect'")
            continue
        bad = [key for key, text in line.value.items() if not isinstance(text, str) or not text.strip()]
        if bad:
            faults.add(f"'{bad[0]}' is not a text with words in it", line.place(bad[0]))
            continue
        questions.append(Question.model_construct(**{"expect": "", "system": None, **line.value}))
    faults.settle()
    return tuple(questions)


def is_right(answer: str, expect: str) -> bool:
    """Whether the answer holds the expected words: case and spacing aside, and not inside a longer word."""
    words = r"\s+".join(re.escape(word) for word in expect.casefold().split())
    return bool(words) and re.search(rf"(?<!\w){words}(?!\w)", answer.casefold()) is not None
