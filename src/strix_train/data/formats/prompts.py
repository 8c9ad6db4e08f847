"""{"prompt": "…"} as a text or messages, with whatever else the rewards look at."""

from __future__ import annotations

from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.beside import introduced, system_key
from strix_train.data.formats.messages import _said_by
from strix_train.data.formats.prompt_completion import has
from strix_train.data.formats.talk import OPENAI, SHAREGPT, Wishes, follows_order, read_turns, words
from strix_train.data.numbers import last_number
from strix_train.data.rows import Prompt, Turn

KEYS = ("prompt",)


def claims(value: dict[str, Any]) -> bool:
    """Whether the object asks something."""
    return any(key in value for key in ("prompt", "messages", "conversations"))


def row(record: Record, faults: Faults, wishes: Wishes) -> Prompt | None:
    """Return the question of an object. An answer at the end of messages is what the model is to write: it goes."""
    value = record.value
    key = next((key for key in ("prompt", "messages", "conversations") if key in value), "prompt")
    if not has(record, (key, *wishes.columns), faults):
        return None
    for column in wishes.columns:
        if isinstance(value[column], bool) or not isinstance(value[column], (str, int, float)):
            faults.of(
                record, (column,), f"'{column}' is no text and no number", "the rewards compare it with an answer"
            )
            return None
        if isinstance(value[column], str) and not value[column].strip():
            faults.of(record, (column,), f"'{column}' is empty", "the rewards compare it with an answer")
            return None
        if column in wishes.numbers and last_number(str(value[column])) is None:
            faults.of(record, (column,), f"'{column}' holds no number", "the reward 'number' could never be given")
            return None
    if isinstance(value[key], str):
        text = words(value[key], f"'{key}'", record, (key,), faults)
        asked = None if text is None else introduced([Turn("user", text, False)], record, faults, wishes)
        if text is None or asked is None:
            return None
        return Prompt(tuple(asked), "" if system_key(record) else text, value, record.place())
    spelling = SHAREGPT if key != "prompt" and _said_by(value, "from") else OPENAI
    turns = read_turns(record, (key,), faults, wishes, spelling, learned=False)
    if turns is None or not follows_order(turns, record, (key,), faults, spelling, answered=False):
        return None
    while turns and turns[-1].role == "assistant":
        turns.pop()
    if not turns or turns[-1].role not in ("user", "tool"):
        faults.of(record, (key,), "nothing is asked", "end with a message of the user")
        return None
    turns = introduced(turns, record, faults, wishes)
    return None if turns is None else Prompt(tuple(turns), "", value, record.place())
