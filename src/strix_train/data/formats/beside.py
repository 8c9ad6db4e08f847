"""What a row holds beside its turns: a system message, and things that a language model neither sees nor hears."""

from __future__ import annotations

from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.talk import Wishes, merged, words
from strix_train.data.rows import Turn

# The second is OpenOrca's.
SYSTEM = ("system", "system_prompt")
_SENSES = frozenset(("image", "images", "video", "videos", "audio", "audios"))


def introduced(turns: list[Turn], record: Record, faults: Faults, wishes: Wishes) -> list[Turn] | None:
    """Return the turns behind the row's own system message, where it has one, or None with the fault noted."""
    value = record.value
    key = next((key for key in SYSTEM if key in value), None)
    if key is None or is_blank(value[key]):
        return turns
    text = words(value[key], f"'{key}'", record, (key,), faults)
    if text is None:
        return None
    if turns and turns[0].role in ("system", "developer"):
        if turns[0].content.strip() == text.strip():
            return turns
        faults.of(record, (key,), f"'{key}' and the first message are two system messages", "keep one of them")
        return None
    turns = [Turn("system", text, False), *turns]
    return merged(turns) if wishes.merge_system else turns


def has_system(record: Record) -> bool:
    """Whether the row has a system message of its own."""
    return any(not is_blank(record.value.get(key)) for key in SYSTEM)


def is_blank(value: Any) -> bool:
    """Whether a part of a row that may be left out is left out."""
    return value is None or (isinstance(value, str) and not value.strip())


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
