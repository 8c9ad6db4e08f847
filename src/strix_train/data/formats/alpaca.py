"""{"instruction": "…", "input": "…", "output": "…"}, with Alpaca's optional system and history."""

from __future__ import annotations

from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.beside import introduced
from strix_train.data.formats.prompt_completion import has
from strix_train.data.formats.talk import Wishes, is_blank, words
from strix_train.data.jsontext import kind_of
from strix_train.data.rows import Conversation, Turn

KEYS = ("instruction", "output")


def claims(value: dict[str, Any]) -> bool:
    """Whether the object has the format's keys, and is no preference pair."""
    return "instruction" in value and "chosen" not in value and "rejected" not in value


def row(record: Record, faults: Faults, wishes: Wishes) -> Conversation | None:
    """Return the conversation of an object: a question and its answer, with what went before."""
    if not has(record, KEYS, faults):
        return None
    before = asked(record, faults, wishes)
    return None if before is None else answered_by("output", before, record, faults)


def answered_by(key: str, before: list[Turn], record: Record, faults: Faults) -> Conversation | None:
    """Return what was asked with the answer under `key`, or None with the fault noted."""
    text = words(record.value[key], f"'{key}'", record, (key,), faults)
    if text is None:
        return None
    return Conversation((*before, Turn("assistant", text, True)), record.place())


def asked(record: Record, faults: Faults, wishes: Wishes) -> list[Turn] | None:
    """Return the turns up to the question, or None with the fault noted."""
    value = record.value
    question = words(value["instruction"], "'instruction'", record, ("instruction",), faults)
    if question is None:
        return None
    more = value.get("input")
    if not is_blank(more):
        added = words(more, "'input'", record, ("input",), faults)
        if added is None:
            return None
        question = f"{question}\n\n{added}"
    turns: list[Turn] = []
    for index, pair in enumerate(value.get("history") or ()):
        keys = ("history", index)
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            faults.of(record, keys, f"entry {index + 1} of 'history' is {kind_of(pair)}", "it is [question, answer]")
            return None
        texts = [words(text, f"entry {index + 1} of 'history'", record, keys, faults) for text in pair]
        if texts[0] is None or texts[1] is None:
            return None
        turns += [Turn("user", texts[0], False), Turn("assistant", texts[1], True)]
    return introduced([*turns, Turn("user", question, False)], record, faults, wishes)
