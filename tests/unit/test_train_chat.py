"""`train chat` without a model: which turns it remembers, and which characters it shows when."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from strix_train import chat
from strix_train.chat import Chat, _Pieces
from strix_train.errors import InputError


class Words:
    """A tokenizer that has a token for each byte."""

    pad_token_id = 0

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return bytes(each for each in ids if each < 256).decode("utf-8", errors="replace")


def made(most: int) -> Chat:
    """Return a chat without a model, of a template that writes a byte for each character."""
    found = Chat.__new__(Chat)
    found.turns, found.system, found.stops, found.temperature = [], "Be brief.", [300], 0.0
    found.most, found.max_new_tokens = most, 10

    def talk(turns: Any) -> str:
        return "".join(f"{turn['role'][0]}{turn['content']}|" for turn in turns) + "a"

    found.text = SimpleNamespace(talk=talk, tokens=lambda text: ([*text.encode()], []), tokenizer=Words())  # type: ignore[assignment]
    return found


def test_the_oldest_turns_go_where_there_is_no_room() -> None:
    talk = made(60)
    for index in range(4):
        talk.turns += [{"role": "user", "content": f"question {index}"}, {"role": "assistant", "content": "yes"}]
    talk.turns.append({"role": "user", "content": "last"})
    assert bytes(talk.prompt()) == b"sBe brief.|uquestion 3|ayes|ulast|a"
    assert len(talk.turns) == 3
    talk.new()
    talk.turns.append({"role": "user", "content": "x" * 99})
    # what was just said is never left out
    assert len(talk.prompt()) > 60


def test_a_character_is_shown_when_it_is_whole() -> None:
    shown: list[str] = []
    pieces = _Pieces(Words(), shown.append)

    class Tokens(list[int]):
        def reshape(self, _: int) -> Tokens:
            return self

        def tolist(self) -> list[int]:
            return [*self]

    pieces.put(Tokens(b"the prompt"))
    for each in b" na\xc3\xafve":
        pieces.put(Tokens([each]))
    pieces.put(Tokens([300]))
    pieces.end()
    assert "".join(shown) == "naïve"
    assert not any("\ufffd" in piece for piece in shown)
    assert pieces.said == "naïve"


def test_commands_of_a_conversation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    class Talk:
        def new(self) -> None:
            asked.append("NEW")

        def say(self, words: str, write: Any) -> str:
            asked.append(words)
            if words == "stop me":
                write("half")
                raise KeyboardInterrupt
            write("whole")
            return "whole"

    typed = "hello\n\n/new\n/nonsense\nstop me\nagain\n/end\nnever\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    chat.converse(Talk())  # type: ignore[arg-type]
    assert asked == ["hello", "NEW", "stop me", "again"]
    assert capsys.readouterr().out == f"whole\n{chat.HELP}\nhalf …\nwhole\n"


@pytest.mark.parametrize(("encoding", "errors"), [("utf-8", "strict"), ("utf-8", "surrogateescape")])
def test_what_is_no_text_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str) -> None:
    typed = io.TextIOWrapper(io.BytesIO("na\xefve?\n".encode("latin-1")), encoding=encoding, errors=errors)
    monkeypatch.setattr("sys.stdin", typed)
    with pytest.raises(
        InputError, match="what was typed is no UTF-8; let the terminal, or the file that is read, have"
    ):
        chat.converse(made(60))
