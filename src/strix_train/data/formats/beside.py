"""What a row holds beside its turns: a system message, and things that a language model neither sees nor hears."""

from __future__ import annotations

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.calls import read_tools
from strix_train.data.formats.talk import Wishes, is_blank, merged, words
from strix_train.data.rows import Conversation, Turn

# The second is OpenOrca's.
_SYSTEM = ("system", "system_prompt")
_SENSES = frozenset(("image", "images", "video", "videos", "audio", "audios"))


def introduced(turns: list[Turn], record: Record, faults: Faults, wishes: Wishes) -> list[Turn] | None:
    """Return the turns behind the row's own system message, where it has one, or None with the fault noted."""
    key = system_key(record)
    if key is None:
        return turns
    text = words(record.value[key], f"'{key}'", record, (key,), faults)
    if text is None:
        return None
    if turns and turns[0].role in ("system", "developer"):
        if turns[0].content.strip() == text.strip():
            return turns
        faults.of(record, (key,), f"'{key}' and the first message are two system messages", "keep one of them")
        return None
    turns = [Turn("system", text, False), *turns]
    return merged(turns) if wishes.merge_system else turns


def system_key(record: Record) -> str | None:
    """Return the key of the row's own system message, or None where it has none."""
    return next((key for key in _SYSTEM if not is_blank(record.value.get(key))), None)


def conversation_of(turns: list[Turn], record: Record, faults: Faults, wishes: Wishes) -> Conversation | None:
    """Return the turns with all that stands beside them, or None with the fault noted."""
    found, tools = introduced(turns, record, faults, wishes), read_tools(record, faults)
    return None if found is None or tools is False else Conversation(tuple(found), record.place(), tools)


def is_text_only(record: Record, faults: Faults) -> bool:
    """Whether the row holds no picture and no sound, which would be trained as if they were not there."""
    value = record.value
    if _SENSES.isdisjoint(value):
        return True
    for key in sorted(_SENSES & value.keys()):
        # the last is how a table's cell has it
        if value[key] not in (None, "", [], "[]"):
            faults.of(
                record, (key,), f"the row has '{key}'", "images and sound are not trained here: leave the row out"
            )
            return False
    return True
