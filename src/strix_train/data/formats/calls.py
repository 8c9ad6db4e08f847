"""Tools in rows: their descriptions, and an assistant's calls of them, as chat templates want both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from strix_train.data.faults import Faults, Record
from strix_train.data.jsontext import DECODER, kind_of

Keys = tuple[str | int, ...]
_CALL = 'a call is {"function": {"name": "…", "arguments": {…}}}'


class Arguments(dict[str, Any]):
    """The arguments of a call that a row holds as JSON text, which is how OpenAI's API gives them.

    Most templates ask for a mapping and write it with `tojson`, which would put a text into quotes; some put the
    text in as it is. This is the mapping to the former and the text to the latter.
    """

    def __init__(self, text: str, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: object) -> str:
        return f"{self.text}{other}"

    def __radd__(self, other: object) -> str:
        return f"{other}{self.text}"


def read_tools(record: Record, faults: Faults) -> tuple[Any, ...] | Literal[False] | None:
    """Return the descriptions of tools of a row, None without any, or False with the fault noted."""
    tools = record.value.get("tools")
    if isinstance(tools, str):
        try:
            tools = DECODER.decode(tools) if tools.strip() else None
        except (ValueError, RecursionError):
            faults.of(record, ("tools",), "'tools' is a text that is not JSON", "write a list of descriptions")
            return False
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        what = f"'tools' is {kind_of(tools)}" + (" of other things than objects" if isinstance(tools, list) else "")
        faults.of(record, ("tools",), what, "write a list of descriptions")
        return False
    return tuple(tools)


def read_calls(calls: Any, record: Record, keys: Keys, faults: Faults) -> list[Any] | None:
    """Return the calls of a message, or None with the fault noted. Arguments that are JSON text are read."""
    if not isinstance(calls, list):
        faults.of(record, keys, f"'tool_calls' is {kind_of(calls)}", f"it is a list, and {_CALL}")
        return None
    found = []
    for index, call in enumerate(calls):
        held = call.get("function", call) if isinstance(call, dict) else call
        if not isinstance(held, dict) or not isinstance(held.get("name"), str) or not held["name"]:
            what = f"call {index + 1} names no function"
            faults.of(record, (*keys, index), what, _CALL)
            return None
        given = held.get("arguments")
        if isinstance(given, str) and (read := _mapping(given)) is not None:
            held = {**held, "arguments": Arguments(given, read)}
        found.append({**call, "function": held} if "function" in call else held)
    return found


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        value = DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
