"""Rows as token ids and labels: which tokens count in the loss, found in the text that the model's template renders.

The template is rendered whole and tokenised once, so training sees exactly the tokens of a real conversation. Where
an answer stands in that text is found from renderings of its beginning (where the answer starts) and from one with a
mark behind each answer (where it ends). Nothing needs a template with generation markers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from strix_train.data.rows import Answered, Continuation, Conversation, Turn
from strix_train.errors import InputError, Problem

IGNORED = -100
Span = tuple[int, int]


class Text(Protocol):
    """What is needed of a model's tokenizer: `strix_train.tokenizer.Adapted` has it for Hugging Face's."""

    has_template: bool
    bos: str
    eos: str

    def render(self, messages: Sequence[dict[str, Any]], *, answer_next: bool, tools: Any = None) -> str:
        """Return the conversation in the model's template; raises ValueError where the template refuses it."""

    def tokens(self, text: str) -> tuple[list[int], list[Span]]:
        """Return ids and character spans of a text, adding nothing."""

    def is_end(self, token: int) -> bool:
        """Whether the model stops at this token, or it is a special token that ends a turn."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One row: token ids and labels (IGNORED where no loss), within max_length; `length` is that of the whole row."""

    ids: list[int]
    labels: list[int]
    length: int

    @property
    def cut(self) -> bool:
        """Whether max_length cut the row."""
        return self.length > len(self.ids)

    @property
    def first(self) -> int:
        """Where the first token that counts in the loss stands."""
        return next((index for index, label in enumerate(self.labels) if label != IGNORED), len(self.labels))

    @property
    def end(self) -> int:
        """Where the last token that counts in the loss ends."""
        return next((index for index in range(len(self.labels), 0, -1) if self.labels[index - 1] != IGNORED), 0)

    @property
    def learned(self) -> int:
        """Number of tokens that count in the loss."""
        return sum(label != IGNORED for label in self.labels)


def encoder(text: Text, *, template: str, responses_only: bool, max_length: int) -> Callable[[Answered], Encoded]:
    """Return the function that encodes rows. `template`: auto, chat or plain, as in a recipe."""
    chat = template == "chat" or (template == "auto" and text.has_template)

    def encode(row: Answered) -> Encoded:
        if isinstance(row, Continuation) and chat:
            turns = (Turn("user", row.prompt, False), Turn("assistant", row.completion, True))
            row = Conversation(turns, row.place)
        if isinstance(row, Continuation):
            whole, spans = text.bos + row.prompt + row.completion, [(len(text.bos + row.prompt), -1)]
        else:
            whole, spans = _conversation(row, text)
        ids, offsets = text.tokens(whole)
        if isinstance(row, Continuation) and not (ids and text.is_end(ids[-1])):
            whole += text.eos
            ids, offsets = text.tokens(whole)
        spans = [(start, len(whole) if end < 0 else end) for start, end in spans]
        if not isinstance(row, Continuation):
            spans = [(start, _with_end(end, whole, ids, offsets, text)) for start, end in spans]
        labels = _labels(ids, offsets, spans) if responses_only else list(ids)
        return Encoded(ids[:max_length], labels[:max_length], len(ids))

    return encode


def _labels(ids: list[int], offsets: list[Span], spans: list[Span]) -> list[int]:
    return [
        token if any(start < to and end > begin and end > start for begin, to in spans) else IGNORED
        for token, (start, end) in zip(ids, offsets, strict=True)
    ]


def _conversation(row: Conversation, text: Text) -> tuple[str, list[Span]]:
    """Return the rendered conversation and the spans of its learned answers, without their end-of-turn tokens."""
    messages = [{"role": turn.role, "content": turn.content, **(turn.extra or {})} for turn in row.turns]
    if not text.has_template:
        raise InputError(
            Problem(
                "the rows are conversations and the model has no chat template",
                row.place,
                "write data.template: simple, take an instruction-tuned model, or write prompt/completion rows",
            )
        )
    more = {"tools": list(row.tools)} if row.tools else {}
    try:
        whole = text.render(messages, answer_next=False, **more)
        spoken = [index for index, turn in enumerate(row.turns) if turn.learned and turn.content]
        ends = dict(zip(spoken, _ends(row, messages, whole, text, spoken), strict=True))
        spans = []
        for index, turn in enumerate(row.turns):
            if turn.learned:
                before = text.render(messages[:index], answer_next=True, **more)
                if index in ends and not (turn.extra and turn.extra.get("tool_calls")):
                    end = ends[index]
                    spans.append((_start(whole, before, end - len(turn.content.strip())), end))
                else:
                    spans.append(
                        _call(row, whole, before, text.render(messages[: index + 1], answer_next=False, **more))
                    )
    except ValueError as error:
        raise InputError(Problem(f"the model's chat template refuses this conversation: {error}", row.place)) from None
    if any(start >= end for start, end in spans) or any(a[1] > b[0] for a, b in pairwise(spans)):
        raise _lost(row)
    return whole, spans


def _call(row: Conversation, whole: str, before: str, after: str) -> Span:
    """Return the span of a call of tools, which a template writes in its own way: what that turn alone adds."""
    after = after.rstrip()
    if not (whole.startswith(before) and whole.startswith(after) and len(after) > len(before)):
        raise _lost(row)
    return len(before), len(after)


def _ends(
    row: Conversation, messages: list[dict[str, Any]], whole: str, text: Text, spoken: Sequence[int]
) -> list[int]:
    """Return where each learned answer ends, by a rendering with a mark of private-use characters behind it."""
    marks = {index: f"\ue0f0{index}\ue0f1" for index in spoken}
    marked_messages = []
    for index, message in enumerate(messages):
        content = message["content"]
        if index in marks:
            body = content.rstrip()
            content = body + marks[index] + content[len(body) :]
        marked_messages.append({**message, "content": content})
    marked = text.render(marked_messages, answer_next=False, **({"tools": list(row.tools)} if row.tools else {}))
    ends = []
    for mark in marks.values():
        end = marked.find(mark)
        if end < 0 or marked.count(mark) != 1:
            raise _lost(row)
        ends.append(end)
        marked = marked[:end] + marked[end + len(mark) :]
    if marked != whole:
        raise _lost(row)
    return ends


def _lost(row: Conversation) -> InputError:
    return InputError(
        Problem(
            "the model's chat template changes the conversation so that its answers cannot be found in it",
            row.place,
            "write responses_only: false, or prompt/completion rows with template: plain",
        )
    )


def _with_end(end: int, whole: str, ids: list[int], offsets: list[Span], text: Text) -> int:
    """Return `end` moved behind the token that ends the turn, so that the model learns to stop."""
    for token, (start, stop) in zip(ids, offsets, strict=True):
        if start < end:
            if stop == end and text.is_end(token):
                return end  # the turn's own end is in it already
            continue
        if text.is_end(token):
            return stop
        if whole[start:stop].strip():
            break
    return end


def _start(whole: str, before: str, content: int) -> int:
    """Return where an answer starts: behind `before`, which asks for it, or where the two texts part.

    They part where the template opens a thought for an answer that has none. The common beginning may then reach
    into the answer by chance, so it counts no further than `content`, where the answer's own words begin.
    """
    if whole.startswith(before):
        return len(before)
    parted = next((index for index, (a, b) in enumerate(zip(whole, before, strict=False)) if a != b), len(whole))
    return min(parted, content)
