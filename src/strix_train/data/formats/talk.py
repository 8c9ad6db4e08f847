"""Messages as turns: what every format of conversations has in common, and every fault of one in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.calls import read_calls
from strix_train.data.jsontext import kind_of
from strix_train.data.rows import Turn
from strix_train.errors import nearest

ROLES = ("system", "developer", "user", "assistant", "tool")
Keys = tuple[str | int, ...]
# What a chat template may want of a message besides its role and its words.
_EXTRA = ("tool_calls", "tool_call_id", "name", "reasoning_content", "thinking", "tools")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a recipe says about rows. `columns`: keys that the rewards of method grpo look at; `numbers`: those of them
    in which a number is looked for."""

    roles: Mapping[str, str] = field(default_factory=dict)
    merge_system: bool = False
    columns: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a format names the parts of a message, and its other words for roles."""

    role: str = "role"
    content: str = "content"
    roles: Mapping[str, str] = field(default_factory=dict)


OPENAI = Spelling(roles={"model": "assistant"})
SHAREGPT = Spelling(
    "from",
    "value",
    {
        "human": "user",
        "gpt": "assistant",
        "bot": "assistant",
        "chatgpt": "assistant",
        "bing": "assistant",
        "bard": "assistant",
        "model": "assistant",
        "observation": "tool",
    },
)


def read_turns(
    record: Record, keys: Keys, faults: Faults, wishes: Wishes, spelling: Spelling = OPENAI, *, learned: bool = True
) -> list[Turn] | None:
    """Return the turns of the messages under `keys`, or None with the fault noted.

    `learned`: the words of an assistant count in the loss, where the message itself does not say otherwise.
    """
    value: Any = record.value
    for key in keys:
        value = value[key]
    if type(value) is not list or not value:
        _no_list(record, keys, value, faults)
        return None
    turns: list[Turn] = []
    role_key, content_key = spelling.role, spelling.content
    aliases = {**spelling.roles, **wishes.roles}
    for index, message in enumerate(value):
        try:
            role, content = message[role_key], message[content_key]
            role = aliases.get(role, role)
            plain = role in ROLES and len(message) == 2 and content and not content.isspace() and is_whole(content)
        except (KeyError, TypeError, AttributeError):
            plain = False
        if plain:
            turns.append(Turn(role, content, learned and role == "assistant"))
            continue
        if not index and len(value) > 1 and _says_nothing(message, spelling, aliases):
            continue
        turn = _turn(message, record, (*keys, index), faults, wishes, spelling, learned)
        if turn is None:
            return None
        turns.append(turn)
    return merged(turns) if wishes.merge_system else turns


def _says_nothing(message: Any, spelling: Spelling, aliases: Mapping[str, str]) -> bool:
    """Whether a message is an empty system message, which many sets have in front of every conversation."""
    if not isinstance(message, dict) or not isinstance(role := message.get(spelling.role), str):
        return False
    return aliases.get(role, role) == "system" and is_blank(message.get(spelling.content, message))


def is_blank(value: Any) -> bool:
    """Whether a part of a row that may be left out is left out."""
    return value is None or (isinstance(value, str) and not value.strip())


def merged(turns: list[Turn]) -> list[Turn]:
    """Return the turns with a leading system message put in front of the first question."""
    if len(turns) < 2 or turns[0].role not in ("system", "developer") or turns[1].role != "user":
        return turns
    first = turns[1]._replace(content=f"{turns[0].content}\n\n{turns[1].content}")
    return [first, *turns[2:]]


def _no_list(record: Record, keys: Keys, value: Any, faults: Faults) -> None:
    name = str(keys[-1])
    if isinstance(value, list):
        faults.of(record, keys, f"'{name}' is empty", "remove the row or give it turns")
    else:
        cure = 'it is a list of {"role", "content"} objects'
        faults.of(record, keys, f"'{name}' is {kind_of(value)}, not a list", cure)


def _turn(
    message: Any, record: Record, keys: Keys, faults: Faults, wishes: Wishes, spelling: Spelling, learned: bool
) -> Turn | None:
    """Return one turn, or None with the fault noted: the slow way, for all that is not two plain texts."""
    number = f"message {int(keys[-1]) + 1}"
    if not isinstance(message, dict):
        faults.of(record, keys, f"{number} is {kind_of(message)}", _looks_like(spelling))
        return None
    for key in (spelling.role, spelling.content):
        if key not in message and not (key == spelling.content and message.get("tool_calls")):
            cure = nearest(key, list(message)) if message else "give it a role and words"
            if not cure.startswith("did"):
                cure = f"it has {', '.join(repr(name) for name in sorted(message, key=str))}" if message else cure
            faults.of(record, keys, f"{number} has no '{key}'", cure)
            return None
    role = _role(message[spelling.role], number, record, (*keys, spelling.role), faults, wishes, spelling)
    if role is None:
        return None
    extra = {key: message[key] for key in _EXTRA if message.get(key) is not None}
    if extra.get("tool_calls"):
        calls = read_calls(extra["tool_calls"], record, (*keys, "tool_calls"), faults)
        if calls is None:
            return None
        extra["tool_calls"] = calls
    place = (*keys, spelling.content)
    content = words(message.get(spelling.content), f"the content of {number} ({role})", record, place, faults, extra)
    if content is None:
        return None
    counts = message.get("weight", message.get("train", 1))
    return Turn(role, content, learned and role == "assistant" and counts not in (0, False), extra or None)


def _role(
    role: Any, number: str, record: Record, keys: Keys, faults: Faults, wishes: Wishes, spelling: Spelling
) -> str | None:
    if isinstance(role, str):
        known = wishes.roles.get(role) or spelling.roles.get(role) or role
        if known in ROLES:
            return known
        cure = nearest(role, ROLES)
        other = SHAREGPT.roles.get(role.lower()) or (role.lower() if role.lower() in ROLES else "")
        if other:
            cure = f"write '{other}', or data.roles: {{{role}: {other}}}"
        elif not cure.startswith("did"):
            cure = f"it may be {', '.join(ROLES)}; data.roles gives other names"
        faults.of(record, keys, f"the role of {number} is {role[:40]!r}", cure)
        return None
    faults.of(record, keys, f"the role of {number} is {kind_of(role)}", f"it may be {', '.join(ROLES)}")
    return None


def words(
    value: Any, what: str, record: Record, keys: Keys, faults: Faults, extra: Mapping[str, Any] | None = None
) -> str | None:
    """Return a text with words in it, or None with the fault noted. With tool calls there need be none."""
    if extra and extra.get("tool_calls") and (value is None or value == ""):
        return ""
    if isinstance(value, list):
        joined = _parts(value)
        if joined is None:
            image = any(isinstance(part, dict) and part.get("type") not in (None, "text") for part in value)
            cure = "images and sound are not trained here: keep the text" if image else "it must be a text"
            faults.of(record, keys, f"{what} is a list", cure)
            return None
        value = joined
    if not isinstance(value, str):
        faults.of(record, keys, f"{what} is {kind_of(value)}", "it must be a text")
        return None
    if not value or value.isspace():
        faults.of(record, keys, f"{what} is empty", "remove the row, or write data.faulty: skip")
        return None
    if not is_whole(value):
        faults.of(record, keys, f"{what} holds half a character", "write it whole: two \\u escapes make one")
        return None
    return value


def is_whole(text: str) -> bool:
    """Whether a text can be written as UTF-8: half a character comes from a lone \\ud83d of JSON."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _parts(value: list[Any]) -> str | None:
    """Return the text of content that is written as a list of parts, or None where a part is no text."""
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else None for part in value
    ]
    if not texts or not all(isinstance(text, str) for text in texts):
        return None
    return "".join(str(text) for text in texts)


def _looks_like(spelling: Spelling) -> str:
    return f'it looks like {{"{spelling.role}": "user", "{spelling.content}": "…"}}'


def follows_order(
    turns: list[Turn], record: Record, keys: Keys, faults: Faults, spelling: Spelling = OPENAI, *, answered: bool = True
) -> bool:
    """Whether the roles go: an optional system first, then user and assistant by turns (ending with an answer).

    What tools say comes after an assistant's call of them, and the assistant answers it.
    """
    held: Any = record.value
    for key in keys:
        held = held[key]
    # a system message that was merged, or says nothing, is no turn
    gone = max(0, len(held) - len(turns))
    due = "user"
    first = 1 if turns[0].role in ("system", "developer") else 0
    if first == len(turns):
        faults.of(record, keys, "there is only a system message", "add a question and an answer")
        return False
    for index in range(first, len(turns)):
        role = turns[index].role
        if role == due:
            due = "user" if role == "assistant" else "assistant"
        elif role == "tool" and index > first and turns[index - 1].role in ("assistant", "tool"):
            due = "assistant"
        else:
            before = f"after '{turns[index - 1].role}'" if index else "at the beginning"
            number = index + gone
            cure = f"'{due}' is due there"
            if role in ("system", "developer"):
                cure = "a system message comes first or not at all"
            elif role == "tool":
                cure = "what a tool says follows an assistant's call"
            elif index and role == turns[index - 1].role:
                cure += ", or make one message of the two"
            faults.of(record, (*keys, number, spelling.role), f"message {number + 1} is '{role}' {before}", cure)
            return False
    if answered and turns[-1].role != "assistant":
        what = "the conversation ends without an answer"
        faults.of(record, (*keys, len(turns) + gone - 1), what, "end with 'assistant'")
        return False
    return True


def any_learned(turns: list[Turn], record: Record, keys: Keys, faults: Faults) -> bool:
    """Whether some answer counts in the loss."""
    if any(turn.learned for turn in turns):
        return True
    faults.of(record, keys, "no answer of the conversation is to be learned", "give one a weight of 1")
    return False
