"""{"prompt": "…", "completion": "…"}, or both as lists of messages."""

from __future__ import annotations

from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.beside import conversation_of, system_key
from strix_train.data.formats.talk import Keys, Wishes, follows_order, read_turns, words
from strix_train.data.rows import Continuation, Conversation, Turn
from strix_train.errors import nearest

KEYS = ("prompt", "completion")


def claims(value: dict[str, Any]) -> bool:
    """Whether the object has both keys and is not marked good or bad, or one of them and is of no other format."""
    if "prompt" in value and "completion" in value:
        return not is_mark(value.get("label"))
    if "instruction" in value and "output" in value:
        return False
    return ("prompt" in value or "completion" in value) and not {"chosen", "rejected", "label"} & value.keys()


def is_mark(value: Any) -> bool:
    """Whether a value says good or bad by itself: such rows hold answers that are not to be learned."""
    return isinstance(value, (bool, int)) and value in (0, 1)


def row(record: Record, faults: Faults, wishes: Wishes) -> Continuation | Conversation | None:
    """Return the row of an object; only the completion is learned."""
    return answered(record, faults, wishes, "completion") if has(record, KEYS, faults) else None


def has(record: Record, keys: tuple[str, ...], faults: Faults) -> bool:
    """Whether the row has all the keys of its format; notes the first that is missing."""
    for key in keys:
        if key not in record.value:
            cure = nearest(key, list(record.value)) if record.value else "give it one"
            if not cure.startswith("did"):
                cure = f"it has {', '.join(map(repr, sorted(record.value)[:8]))}" if record.value else cure
            faults.of(record, (), f"the row has no '{key}'", cure)
            return False
    return True


def answered(record: Record, faults: Faults, wishes: Wishes, key: str) -> Continuation | Conversation | None:
    """Return the prompt with the answer under `key`, or None with the fault noted."""
    prompt, completion = record.value["prompt"], record.value[key]
    if _is_talk(prompt) or _is_talk(completion) or system_key(record):
        return _conversation(record, faults, wishes, key)
    texts = [
        words(text, f"'{name}'", record, (name,), faults) for name, text in (("prompt", prompt), (key, completion))
    ]
    if texts[0] is None or texts[1] is None:
        return None
    return Continuation(texts[0], texts[1], record.place())


def _is_talk(value: Any) -> bool:
    return isinstance(value, (list, dict))


def _conversation(record: Record, faults: Faults, wishes: Wishes, key: str) -> Conversation | None:
    for name in ("prompt", key):
        value = record.value[name]
        if isinstance(value, str):
            # one half as plain words beside a half of messages
            record.value[name] = [{"role": "user" if name == "prompt" else "assistant", "content": value}]
        elif isinstance(value, dict):
            record.value[name] = [value]
    before = read_turns(record, ("prompt",), faults, wishes, learned=False)
    after = read_turns(record, (key,), faults, wishes) if before is not None else None
    if before is None or after is None or not follows_order(before, record, ("prompt",), faults, answered=False):
        return None
    return joined(before, after, record, (key,), faults, wishes)


def joined(
    before: list[Turn], after: list[Turn], record: Record, keys: Keys, faults: Faults, wishes: Wishes
) -> Conversation | None:
    """Return what was asked and what was answered as one conversation, or None with the fault noted."""
    silent = Faults(skip=True)
    whole = [*before, *after]
    if not follows_order(whole, record, keys, silent):
        what = "prompt and completion together are no dialogue"
        faults.of(record, keys, what, "user and assistant by turns, answered last")
        return None
    return conversation_of(whole, record, faults, wishes)
