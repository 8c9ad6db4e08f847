"""An Ollama Modelfile for a GGUF file: its template found out from the model's own chat template.

Ollama's templates are of another language than a model's. This one is put together from what the model's template
writes before and after each message, and is only written where it then gives the same text for whole conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Messages = Sequence[dict[str, str]]
# Marks that no template changes or trims.
_SYSTEM, _USER, _ANSWER, _NEXT = "s0mark", "u0mark", "a0mark", "u1mark"


@dataclass(frozen=True, slots=True)
class Turns:
    """What stands before and after the content of each role's messages, and what begins an answer.

    `first`: before the first question where no system message stands: the model's own system message.
    """

    system: tuple[str, str] | None
    user: tuple[str, str]
    assistant: tuple[str, str]
    answer: str
    first: str = ""

    def render(self, messages: Messages) -> str:
        """Return a conversation as Ollama would write it."""
        parts = [] if messages and messages[0]["role"] == "system" else [self.first]
        for message in messages:
            pair = {"system": self.system, "user": self.user, "assistant": self.assistant}[message["role"]]
            before, after = pair or ("", "")
            parts += [before, message["content"], after]
        return "".join(parts) + self.answer

    def default_system(self) -> str:
        """Return the model's own system message, where it has one in the form of a system message."""
        if self.first and self.system:
            before, after = self.system
            if self.first.startswith(before) and self.first.endswith(after):
                return self.first[len(before) : len(self.first) - len(after)]
        return ""


def find_turns(render: Callable[[Messages], str], bos: str = "") -> Turns | None:
    """Return the turns of a chat template, None where it does not write conversations turn by turn.

    `render` gives a conversation up to where the answer begins; it raises ValueError for what it refuses. `bos` is
    left out: Ollama puts it in itself.
    """

    def text(messages: Messages) -> str:
        return render(messages).removeprefix(bos)

    user, answer = {"role": "user", "content": _USER}, {"role": "assistant", "content": _ANSWER}
    again = {"role": "user", "content": _NEXT}
    try:
        one = text([user])
        three = text([user, answer, again])
        begin = _between(one, "", _USER)
        middle = _between(three, _USER, _ANSWER)
        second = _between(three, _ANSWER, _NEXT)
        tail = _between(one, _USER, "")
    except ValueError:
        return None
    # `tail` ends the question and begins the answer; `middle` does both in the middle of a conversation
    if tail != middle:
        return None
    cut = _cut(middle, second, begin)
    closing, start = second[:cut], second[cut:]
    if not begin.endswith(start):
        return None
    ended = closing if middle.startswith(closing) else middle
    opening = middle[len(ended) :]
    turns = Turns(None, (start, ended), (opening, closing), opening, begin[: len(begin) - len(start)])
    turns = _with_system(turns, text)
    return turns if _agrees(turns, text) else None


def _cut(middle: str, second: str, begin: str) -> int:
    """Return where, between an answer and the next question, the answer's turn ends: mostly as a question's does."""
    common = next((at for at, (a, b) in enumerate(zip(middle, second, strict=False)) if a != b), 0)
    marks = [at for at in range(common + 1) if at and second[at : at + 1] in ("<", "[")]
    fitting = [at for at in marks if begin.endswith(second[at:])]
    if fitting:
        return fitting[-1]
    return next((at for at in range(len(second) + 1) if begin.endswith(second[at:])), len(second))


def _with_system(turns: Turns, text: Callable[[Messages], str]) -> Turns:
    try:
        whole = text([{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USER}])
        before, rest = _between(whole, "", _SYSTEM), _between(whole, _SYSTEM, _USER)
    except ValueError:
        return turns
    if not rest.endswith(turns.user[0]):
        return turns  # a template that puts the system message into the first question
    return Turns(
        (before, rest[: len(rest) - len(turns.user[0])]), turns.user, turns.assistant, turns.answer, turns.first
    )


def _agrees(turns: Turns, text: Callable[[Messages], str]) -> bool:
    user, answer = {"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Seven."}
    conversations: list[list[dict[str, str]]] = [[user], [user, answer, user], [user, answer, user, answer, user]]
    if turns.system:
        conversations += [[{"role": "system", "content": "Be brief."}, *each] for each in conversations[:2]]
    try:
        return all(turns.render(each) == text(each) for each in conversations)
    except ValueError:
        return False


def _between(text: str, left: str, right: str) -> str:
    start = text.index(left) + len(left)
    return text[start : text.index(right, start) if right else len(text)]


def modelfile(gguf: str, turns: Turns | None, stops: Sequence[str], settings: dict[str, float]) -> str:
    """Return the text of a Modelfile. `gguf`: the file's name beside it; `settings`: of the sampling."""
    lines = [f"FROM ./{gguf}"]
    if turns is None:
        lines += ["# the chat template is in the file; Ollama finds it there where it knows it"]
    else:
        lines += [f'TEMPLATE """{_template(turns)}"""']
        system = turns.default_system()
        if system:
            lines += [f'SYSTEM """{system}"""']
    lines += [f'PARAMETER stop "{stop}"' for stop in dict.fromkeys(stops)]
    lines += [f"PARAMETER {name} {value:g}" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def _template(turns: Turns) -> str:
    def message(role: str, pair: tuple[str, str] | None) -> str:
        before, after = pair or ("", "")
        return f'{{{{ if eq .Role "{role}" }}}}{_plain(before)}{{{{ .Content }}}}{_plain(after)}{{{{ end }}}}'

    roles = [("system", turns.system or ("", "\n\n")), ("user", turns.user), ("assistant", turns.assistant)]
    inner = "".join(message(role, pair) for role, pair in roles)
    first = "" if turns.default_system() else _plain(turns.first)
    return f"{first}{{{{ range .Messages }}}}{inner}{{{{ end }}}}{_plain(turns.answer)}"


def _plain(text: str) -> str:
    """Return text that Ollama's template language takes as it stands."""
    return text.replace("{{", '{{ "{{" }}')
