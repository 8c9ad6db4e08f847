"""Cells of tables: JSON that is to be written stays a text, messages and tools become what they are."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from strix_train.data.load import Shape, load
from strix_train.data.rows import Continuation, Conversation, Document, Row
from strix_train.errors import InputError

TALK = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
# The text of a cell as str() of a list of dicts gives it, and as an array of numpy does.
PYTHON = str(TALK)
NUMPY = "[{'content': 'Q', 'role': 'user'}\n {'content': \"It's A\", 'role': 'assistant'}]"


def write(tmp_path: Path, **cells: str) -> Path:
    path = tmp_path / "d.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([cells.keys(), cells.values()])
    return path


def only(path: Path, **shape: Any) -> Row:
    (row,) = load(path, Shape(**shape)).rows
    return row


@pytest.mark.parametrize(
    "answer",
    [
        '{"name": "Bob"}',
        "[1, 2, 3]",
        "[]",
        '[["a", "b"]]',
        '[{"name": "Bob", "role": "engineer"}]',
        '{"from": "Berlin", "to": "Paris"}',
        "{'a': 1}",
        "[x] done",
        "{",
        "[" * 100_000,
    ],
)
def test_an_answer_that_looks_like_structure_is_a_text(tmp_path: Path, answer: str) -> None:
    row = only(write(tmp_path, prompt="q", completion=answer))
    assert isinstance(row, Continuation)
    assert row.completion == answer
    row = only(write(tmp_path, instruction="q", output=answer))
    assert isinstance(row, Conversation)
    assert row.turns[-1].content == answer
    row = only(write(tmp_path, text=answer), method="cpt")
    assert isinstance(row, Document)
    assert row.text == answer


def test_structure_in_a_cell(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    row = only(write(tmp_path, messages=json.dumps(TALK), tools=json.dumps(tools)))
    assert isinstance(row, Conversation)
    assert [turn.content for turn in row.turns] == ["Q", "A"]
    assert row.tools == tuple(tools)
    row = only(write(tmp_path, instruction="3", output="4", history='[["1", "2"]]'))
    assert isinstance(row, Conversation)
    assert [turn.content for turn in row.turns] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [(TALK[:1], TALK[1:]), (TALK[0], "A"), (TALK[:1], "A")],
)
def test_messages_under_any_name(tmp_path: Path, prompt: Any, completion: Any) -> None:
    cells = [value if isinstance(value, str) else json.dumps(value) for value in (prompt, completion)]
    row = only(write(tmp_path, prompt=cells[0], completion=cells[1]))
    assert isinstance(row, Conversation)
    assert [turn.content for turn in row.turns] == ["Q", "A"]


def test_messages_under_a_name_that_the_recipe_gives(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
    row = only(write(tmp_path, talk=json.dumps(talk)), columns={"conversations": "talk"})
    assert isinstance(row, Conversation)
    assert [turn.content for turn in row.turns] == ["Q", "A"]


def test_a_message_with_a_slip_is_not_taken_for_a_text(tmp_path: Path) -> None:
    path = write(tmp_path, prompt='[{"role": "user", "contents": "Q"}]', completion="A")
    with pytest.raises(InputError, match="message 1 has no 'content'; did you mean 'contents'"):
        load(path)


@pytest.mark.parametrize("cell", [PYTHON, NUMPY, PYTHON[1:-1].split("}, ")[0] + "}", NUMPY + "\n"])
@pytest.mark.parametrize("name", ["messages", "prompt", "talk"])
def test_messages_as_python_writes_them_are_refused(tmp_path: Path, cell: str, name: str) -> None:
    path = write(tmp_path, id="1", **{name: cell}, completion="A")
    with pytest.raises(InputError) as caught:
        load(path, Shape(columns={"prompt": "talk"} if name == "talk" else {}))
    (problem,) = caught.value.problems
    assert str(problem).startswith(
        f"{path}:2:3: '{name}' holds a list as Python writes it, which is not JSON; "
        "save the rows as JSON Lines or Parquet"
    )


def test_tools_as_python_writes_them_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, messages=json.dumps(TALK), tools="[{'type': 'function'}]")
    with pytest.raises(InputError, match="'tools' holds a list as Python writes it"):
        load(path)
    assert load(write(tmp_path, messages=json.dumps(TALK), tools="")).rows


def test_rows_with_such_messages_are_left_out_on_request(tmp_path: Path) -> None:
    path = write(tmp_path, prompt=PYTHON, completion="A")
    with path.open("a") as stream:
        stream.write("q,a\n")
    data = load(path, Shape(skip=True))
    assert (len(data), data.skipped) == (1, 1)
