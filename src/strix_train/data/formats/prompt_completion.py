"""{"prompt": "…", "completion": "…"}, or both as lists of messages."""

from __future__ import annotations

from typing import Any

from strix_train.data.formats.messages import follows_order, read_turns
from strix_train.data.lines import Faults, Line
from strix_train.data.rows import Continuation, Conversation, Row, Turn
from strix_train.errors import nearest

NAME = "prompt-completion"
KEYS = ("prompt", "completion")


def claims(value: dict[str, Any]) -> bool:
    """Whether the object has one of the format's keys."""
    return "prompt" in value or "completion" in value


def row(line: Line, faults: Faults) -> Row | None:
    """Return the row of a line; only the completion is learned."""
    for key in KEYS:
        if key not in line.value:
            cure = nearest(key, list(line.value)) if line.value else ""
            cure = cure if cure.startswith("did") else f"it has {', '.join(map(repr, sorted(line.value)))}"
            faults.add(f"the row has no '{key}'", line.place(), cure)
            return None
    prompt, completion = line.value["prompt"], line.value["completion"]
    if isinstance(prompt, list) or isinstance(completion, list):
        return _conversation(line, faults)
    for key, text in (("prompt", prompt), ("completion", completion)):
        if not isinstance(text, str):
            what = "null" if text is None else f"a {type(text).__name__}"
            faults.add(f"'{key}' is {what}", line.place(key), "it must be a text or a list of messages")
            return None
        if not text.strip():
            faults.add(f"'{key}' is empty", line.place(key), "remove the row")
            return None
        if any("\ud800" <= character <= "\udfff" for character in text):
            faults.add(f"'{key}' holds half a character", line.place(key), "write it whole")
            return None
    return Continuation(prompt, completion, line.place())


def _conversation(line: Line, faults: Faults) -> Conversation | None:
    before, after = read_turns(line, ("prompt",), faults), read_turns(line, ("completion",), faults)
    if before is None or after is None:
        return None
    if not follows_order(before, line, ("prompt",), faults, answered=False):
        return None
    whole = before + after
    place = line.place("completion")
    body = whole[1:] if whole[0][0] == "system" else whole
    if any(role != ("user", "assistant")[index % 2] for index, (role, _) in enumerate(body)) or len(body) % 2:
        faults.add(
            "prompt and completion together are no dialogue", place, "user and assistant by turns, answered last"
        )
        return None
    turns = [Turn(role, content, False) for role, content in before]
    turns += [Turn(role, content, role == "assistant") for role, content in after]
    return Conversation(tuple(turns), line.place())
