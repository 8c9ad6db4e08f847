"""One training row, whatever its file format: turns of a conversation, or a text and its continuation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strix_train.errors import Place

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. `learned`: its words count in the loss when only responses are trained."""

    role: str
    content: str
    learned: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, in order; the last one is an assistant's and learned."""

    turns: tuple[Turn, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt text and the completion to learn."""

    prompt: str
    completion: str
    place: Place


Row = Conversation | Continuation
