"""{"prompt", "chosen", "rejected"} as texts or messages, and the other spellings of a pair of answers."""

from __future__ import annotations

from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.alpaca import answered_by, asked
from strix_train.data.formats.beside import conversation_of
from strix_train.data.formats.messages import _said_by
from strix_train.data.formats.prompt_completion import answered, has, joined
from strix_train.data.formats.talk import OPENAI, SHAREGPT, Wishes, follows_order, read_turns, words
from strix_train.data.jsontext import kind_of
from strix_train.data.rows import Answered, Continuation, Conversation, Preference, Turn, last_learned

KEYS = ("chosen", "rejected")


def claims(value: dict[str, Any]) -> bool:
    """Whether the object has one of the two answers."""
    return "chosen" in value or "rejected" in value


def row(record: Record, faults: Faults, wishes: Wishes) -> Preference | None:
    """Return the pair of an object: two conversations, or two texts, that differ only in their last answer."""
    if not has(record, KEYS, faults):
        return None
    chosen = _one(record, "chosen", faults, wishes)
    rejected = _one(record, "rejected", faults, wishes) if chosen is not None else None
    if chosen is None or rejected is None:
        return None
    if type(chosen) is not type(rejected):
        faults.of(record, ("rejected",), "'chosen' and 'rejected' are written in two ways", "write both alike")
        return None
    if _said(chosen) == _said(rejected):
        faults.of(record, ("rejected",), "'chosen' and 'rejected' are the same", "remove the row")
        return None
    if not _answer_the_same(chosen, rejected):
        what = "'chosen' and 'rejected' answer different questions"
        faults.of(record, ("rejected",), what, "both begin with the same messages, up to an answer")
        return None
    return Preference(chosen, rejected, record.place())


def _said(row: Answered) -> Any:
    return row.completion if isinstance(row, Continuation) else [(turn.role, turn.content) for turn in row.turns]


def _answer_the_same(chosen: Answered, rejected: Answered) -> bool:
    """Whether two conversations are the same up to an answer; what a user says may differ behind that."""
    if isinstance(chosen, Continuation) or isinstance(rejected, Continuation):
        return True
    for one, other in zip(chosen.turns, rejected.turns, strict=False):
        if one.role != other.role or one.content != other.content:
            return one.role == other.role == "assistant"
    return True


def _one(record: Record, key: str, faults: Faults, wishes: Wishes) -> Answered | None:
    """Return the prompt with one of the two answers."""
    value = record.value
    if _is_whole_talk(value[key]):
        return _whole(record, key, faults, wishes)
    if "prompt" not in value and ("conversations" in value or "messages" in value):
        return _beside_messages(record, key, faults, wishes)
    if "instruction" in value:
        before = asked(record, faults, wishes)
        return None if before is None else answered_by(key, before, record, faults)
    if not has(record, ("prompt",), faults):
        return None
    return answered(record, faults, wishes, key)


def _is_whole_talk(value: Any) -> bool:
    """Whether an answer is written with the question in front of it, as a conversation."""
    first = value[0] if isinstance(value, list) and len(value) > 1 else None
    return isinstance(first, dict) and first.get("role", first.get("from")) != "assistant"


def _whole(record: Record, key: str, faults: Faults, wishes: Wishes) -> Conversation | None:
    """Return an answer that is written as a whole conversation; only its last turn is learned."""
    first = record.value[key][0]
    spelling = SHAREGPT if "from" in first and "role" not in first else OPENAI
    turns = read_turns(record, (key,), faults, wishes, spelling)
    if turns is None or not follows_order(turns, record, (key,), faults, spelling):
        return None
    found = conversation_of(turns, record, faults, wishes)
    return None if found is None else last_learned(found)


def _beside_messages(record: Record, key: str, faults: Faults, wishes: Wishes) -> Conversation | None:
    """Return an answer that stands beside the messages which it answers."""
    name = "messages" if "messages" in record.value else "conversations"
    spelling = SHAREGPT if _said_by(record.value, "from") else OPENAI
    before = read_turns(record, (name,), faults, wishes, spelling, learned=False)
    if before is None or not follows_order(before, record, (name,), faults, spelling, answered=False):
        return None
    answer = record.value[key]
    if isinstance(answer, list) and len(answer) == 1:
        [answer] = answer
    if isinstance(answer, dict):
        answer = answer.get(spelling.content, answer)
    if isinstance(answer, (dict, list)):
        faults.of(record, (key,), f"'{key}' is {kind_of(answer)}", "write it as one message, or as a text")
        return None
    text = words(answer, f"'{key}'", record, (key,), faults)
    return None if text is None else joined(before, [Turn("assistant", text, True)], record, (key,), faults, wishes)
