"""{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}"""

from __future__ import annotations

from typing import Any

from strix_train.data.lines import Faults, Line
from strix_train.data.rows import Conversation, Turn
from strix_train.errors import nearest

NAME = "messages"
KEYS = ("messages",)
ROLES = ("system", "user", "assistant")


def claims(value: dict[str, Any]) -> bool:
    """Whether the object has the format's key."""
    return "messages" in value


def row(line: Line, faults: Faults) -> Conversation | None:
    """Return the conversation of a line; every assistant turn is learned."""
    turns = read_turns(line, ("messages",), faults)
    if turns is None or not follows_order(turns, line, ("messages",), faults):
        return None
    learned = tuple(Turn(role, content, role == "assistant") for role, content in turns)
    return Conversation(learned, line.place())


def read_turns(line: Line, keys: tuple[str | int, ...], faults: Faults) -> list[tuple[str, str]] | None:
    """Return (role, content) of each message under `keys`, or None with the fault noted."""
    value: Any = line.value
    for key in keys:
        value = value[key]
    name = str(keys[-1])
    if not isinstance(value, list):
        what = "null" if value is None else f"a {type(value).__name__}"
        faults.add(f"'{name}' is {what}, not a list", line.place(*keys), 'it is a list of {"role", "content"} objects')
        return None
    if not value:
        faults.add(f"'{name}' is empty", line.place(*keys), "remove the row or give it turns")
        return None
    turns = []
    for index, message in enumerate(value):
        turn = _turn(message, line, (*keys, index), faults)
        if turn is None:
            return None
        turns.append(turn)
    return turns


def _turn(message: Any, line: Line, keys: tuple[str | int, ...], faults: Faults) -> tuple[str, str] | None:
    number = f"message {int(keys[-1]) + 1}"
    if not isinstance(message, dict):
        faults.add(f"{number} is not an object", line.place(*keys), 'it looks like {"role": "user", "content": "…"}')
        return None
    for key in ("role", "content"):
        if key not in message:
            cure = nearest(key, list(message)) if message else ""
            other = {"role": "from", "content": "value"}[key]
            if other in message:
                cure = "this looks like ShareGPT rows; rename 'from' to 'role' and 'value' to 'content'"
            elif not cure.startswith("did"):
                cure = f"it has {', '.join(repr(name) for name in sorted(message)) or 'no keys'}"
            faults.add(f"{number} has no '{key}'", line.place(*keys), cure)
            return None
    role, content = message["role"], message["content"]
    if role not in ROLES:
        shown = repr(role) if isinstance(role, str) else "not a text"
        cure = nearest(role, ROLES) if isinstance(role, str) else f"it may be {', '.join(ROLES)}"
        if role in ("human", "gpt", "bot", "model"):
            cure = f"write '{'user' if role == 'human' else 'assistant'}'"
        faults.add(f"the role of {number} is {shown}", line.place(*keys, "role"), cure)
        return None
    if not isinstance(content, str):
        what = "null" if content is None else f"a {type(content).__name__}"
        faults.add(f"the content of {number} is {what}", line.place(*keys, "content"), "it must be a text")
        return None
    if not content.strip():
        faults.add(f"the content of {number} ({role}) is empty", line.place(*keys, "content"), "remove the row")
        return None
    if any("\ud800" <= character <= "\udfff" for character in content):
        faults.add(f"the content of {number} holds half a character", line.place(*keys, "content"), "write it whole")
        return None
    return role, content


def follows_order(
    turns: list[tuple[str, str]], line: Line, keys: tuple[str | int, ...], faults: Faults, *, answered: bool = True
) -> bool:
    """Whether the roles go: an optional system first, then user and assistant by turns (ending with an answer)."""
    body = turns[1:] if turns[0][0] == "system" else turns
    skipped = len(turns) - len(body)
    if not body:
        faults.add("there is only a system message", line.place(*keys), "add a question and an answer")
        return False
    for index, (role, _) in enumerate(body):
        wanted = "user" if index % 2 == 0 else "assistant"
        if role != wanted:
            number = index + skipped + 1
            before = f"after '{turns[number - 2][0]}'" if number > 1 else "at the beginning"
            cure = "a system message comes first or not at all" if role == "system" else f"'{wanted}' is due there"
            faults.add(f"message {number} is '{role}' {before}", line.place(*keys, number - 1, "role"), cure)
            return False
    if answered and body[-1][0] != "assistant":
        faults.add("the conversation ends without an answer", line.place(*keys, len(turns) - 1), "end with 'assistant'")
        return False
    return True
