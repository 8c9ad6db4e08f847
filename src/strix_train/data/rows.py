"""One training row, whatever its file format: a conversation, a text and its continuation, or what a method wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from strix_train.errors import Place


class Turn(NamedTuple):
    """One message. `learned`: its words count in the loss when only responses are trained.

    `extra`: what a template may want besides, such as tool calls.
    """

    role: str
    content: str
    learned: bool
    extra: Mapping[str, Any] | None = None


class Conversation(NamedTuple):
    """Turns, in order; the last one is an assistant's and learned. `tools`: descriptions for the template."""

    turns: tuple[Turn, ...]
    place: Place
    tools: tuple[Any, ...] | None = None


def last_learned(row: Conversation) -> Conversation:
    """Return a conversation of which only the last answer is learned."""
    before = (turn._replace(learned=False) for turn in row.turns[:-1])
    return row._replace(turns=(*before, row.turns[-1]._replace(learned=True)))


class Continuation(NamedTuple):
    """A prompt text and the completion to learn."""

    prompt: str
    completion: str
    place: Place


Answered = Conversation | Continuation


class Document(NamedTuple):
    """Plain text, all of it learned. `ends`: the document ends here, and does not go on in the next row."""

    text: str
    place: Place
    ends: bool = True


class Preference(NamedTuple):
    """Two rows that differ in what is learned of them: the better answer and the worse one."""

    chosen: Answered
    rejected: Answered
    place: Place


class Rated(NamedTuple):
    """A row whose answer is marked good or bad."""

    row: Answered
    good: bool
    place: Place


class Prompt(NamedTuple):
    """What is asked, without an answer; `row` is the file's whole object, for the rewards."""

    turns: tuple[Turn, ...]
    text: str
    row: Mapping[str, Any]
    place: Place


Row = Conversation | Continuation | Document | Preference | Rated | Prompt


def content(row: Row) -> str:
    """Return all that a row says, as one text: equal texts are the same row."""
    if isinstance(row, Conversation):
        return "\x1e".join([f"{turn.role}\x1f{turn.content}" for turn in row.turns])
    if isinstance(row, Continuation):
        return f"{row.prompt}\x1d{row.completion}"
    if isinstance(row, Document):
        return row.text
    if isinstance(row, Preference):
        return f"{content(row.chosen)}\x1c{content(row.rejected)}"
    if isinstance(row, Rated):
        return f"{content(row.row)}\x1c{row.good}"
    return row.text or "\x1e".join([f"{turn.role}\x1f{turn.content}" for turn in row.turns])


def question(row: Row) -> str:
    """Return what a row asks: its first user turn, or its prompt; '' for plain text."""
    if isinstance(row, (Preference, Rated)):
        row = row.chosen if isinstance(row, Preference) else row.row
    if isinstance(row, Continuation):
        return row.prompt
    if isinstance(row, (Conversation, Prompt)):
        return next((turn.content for turn in row.turns if turn.role == "user"), "")
    return ""
