"""{"prompt", "completion", "label": true}, or messages with a label: answers marked good or bad."""

from __future__ import annotations

from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.messages import claims_sharegpt, conversation
from strix_train.data.formats.prompt_completion import answered, has
from strix_train.data.formats.talk import OPENAI, SHAREGPT, Wishes
from strix_train.data.jsontext import kind_of
from strix_train.data.rows import Rated, last_learned

# The second is LLaMA-Factory's.
LABELS = ("label", "kto_tag")
_WORDS = {"true": True, "false": False, "1": True, "0": False, "good": True, "bad": False, "yes": True, "no": False}


def claims(value: dict[str, Any]) -> bool:
    """Whether the object has a mark."""
    return any(label in value for label in LABELS)


def row(record: Record, faults: Faults, wishes: Wishes) -> Rated | None:
    """Return the marked row of an object."""
    value = record.value
    label = next((label for label in LABELS if label in value), "label")
    if not has(record, (label,), faults):
        return None
    good = value[label]
    if isinstance(good, str):
        good = _WORDS.get(good.strip().lower(), good)
    if isinstance(good, (int, float)) and good in (0, 1):
        good = bool(good)
    if not isinstance(good, bool):
        shown = repr(good[:40]) if isinstance(good, str) else kind_of(good)
        faults.of(record, (label,), f"'{label}' is {shown}", "it must be true (a good answer) or false (a bad one)")
        return None
    if "messages" in value or "conversations" in value:
        spelling = SHAREGPT if claims_sharegpt(value) else OPENAI
        found: Any = conversation(record, faults, wishes, spelling)
        found = None if found is None else last_learned(found)
    else:
        found = (
            answered(record, faults, wishes, "completion") if has(record, ("prompt", "completion"), faults) else None
        )
    return None if found is None else Rated(found, good, record.place())
