"""Data sets of `train`: what is read, and the file, line and column of every fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_train.data import questions
from strix_train.data.faults import SHOWN
from strix_train.data.load import Shape, load
from strix_train.data.locate import column
from strix_train.data.rows import Continuation, Conversation
from strix_train.errors import InputError

CHAT = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}'


def write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "d.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def faults(tmp_path: Path, content: str | bytes, wanted: str = "auto") -> list[str]:
    with pytest.raises(InputError) as caught:
        load(write(tmp_path, content), Shape(format=wanted))
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]


def test_messages(tmp_path: Path) -> None:
    text = (
        '{"id": 7, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, '
        '{"role": "assistant", "content": "a"}]}'
    )
    data = load(write(tmp_path, f"{CHAT}\n\n{text}\n"))
    assert data.format == "messages"
    assert [row.place.line for row in data.rows] == [1, 3]
    row = data.rows[1]
    assert isinstance(row, Conversation)
    assert [(turn.role, turn.content, turn.learned) for turn in row.turns] == [
        ("system", "s", False),
        ("user", "u", False),
        ("assistant", "a", True),
    ]


def test_prompt_and_completion(tmp_path: Path) -> None:
    data = load(write(tmp_path, '{"prompt": "a", "completion": "b"}\n'))
    assert data.format == "prompt-completion"
    assert isinstance(data.rows[0], Continuation)
    assert (data.rows[0].prompt, data.rows[0].completion) == ("a", "b")


def test_prompt_and_completion_as_messages_learn_the_completion_only(tmp_path: Path) -> None:
    value = {
        "prompt": [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "3"},
        ],
        "completion": [{"role": "assistant", "content": "4"}],
    }
    row = load(write(tmp_path, json.dumps(value))).rows[0]
    assert isinstance(row, Conversation)
    assert [turn.learned for turn in row.turns] == [False, False, False, True]


@pytest.mark.parametrize("content", [f"\ufeff{CHAT}\n", f"{CHAT}\r\n{CHAT}\r\n", CHAT, f"\n\n  \n{CHAT}"])
def test_what_editors_leave_behind_is_no_fault(tmp_path: Path, content: str) -> None:
    assert load(write(tmp_path, content)).rows


def test_line_separators_inside_a_text_do_not_end_a_row(tmp_path: Path) -> None:
    row = load(write(tmp_path, CHAT.replace("hi", "a\u2028b\u0085c") + "\n")).rows[0]
    assert isinstance(row, Conversation)
    assert row.turns[0].content == "a\u2028b\u0085c"


CASES: list[tuple[str | bytes, str]] = [
    ("", 'd.jsonl: holds no rows; write one JSON object a line, like {"messages": [...]}'),
    ("\n \n", 'd.jsonl: holds no rows; write one JSON object a line, like {"messages": [...]}'),
    (f"{CHAT}\n{CHAT[:-1]},}}\n", "d.jsonl:2:91: is not valid JSON: "),
    (
        f"{CHAT}\n{{'messages': 1}}\n",
        (
            "d.jsonl:2:2: is not valid JSON: Expecting property name enclosed in double quotes "
            "near \"{'messages': 1}\"; JSON wants double quotes"
        ),
    ),
    (f"{CHAT} {CHAT}\n", "d.jsonl:1:92: is not valid JSON: Extra data near "),
    (f"{CHAT}\n{CHAT[:40]}\n", "d.jsonl:2:"),
    ("[1]\n", "d.jsonl:1:1: is a JSON list; write one JSON object a line (JSON Lines), without the list"),
    (
        "[\n" + CHAT + "\n]\n",
        "d.jsonl:1:1: is one JSON document over many lines; write one JSON object a line (JSON Lines)",
    ),
    (f"{CHAT}\n[1]\n", 'd.jsonl:2:1: is a list, not an object; a row looks like {"messages": [...]}'),
    (f'{CHAT}\n"x"\n', "d.jsonl:2:1: is a text, not an object"),
    (f"{CHAT}\n3\n", "d.jsonl:2:1: is a number, not an object"),
    (f'{CHAT}\n{{"messages": NaN}}\n', "d.jsonl:2: is not valid JSON: NaN is not JSON"),
    (
        CHAT.encode() + b"\n" + CHAT.encode().replace(b"hi", b"\xe4"),
        "d.jsonl:2:44: byte 0xe4 is not UTF-8; save the file as UTF-8",
    ),
    (CHAT.encode("utf-16"), "d.jsonl:1: is UTF-16; save the file as UTF-8"),
    (CHAT.replace('"hi"', "null"), "d.jsonl:1:43: the content of message 1 (user) is null; it must be a text"),
    (CHAT.replace('"hi"', '" "'), "d.jsonl:1:43: the content of message 1 (user) is empty; remove the row"),
    (CHAT.replace('"hi"', '["x"]'), "d.jsonl:1:43: the content of message 1 (user) is a list; it must be a text"),
    (
        CHAT.replace('"hi"', r'"\ud83d"'),
        "d.jsonl:1:43: the content of message 1 (user) holds half a character; write it whole",
    ),
    (CHAT.replace('"user"', '"usr"'), "d.jsonl:1:24: the role of message 1 is 'usr'; did you mean 'user'?"),
    (CHAT.replace('"user"', '"human"'), "d.jsonl:1:24: the role of message 1 is 'human'; write 'user'"),
    (CHAT.replace('"user"', '"system"'), "d.jsonl:1:61: message 2 is 'assistant' after 'system'; 'user' is due there"),
    (CHAT.replace('"assistant"', '"user"'), "d.jsonl:1:59: message 2 is 'user' after 'user'; 'assistant' is due there"),
    (
        CHAT.replace('"assistant"', '"system"'),
        "d.jsonl:1:59: message 2 is 'system' after 'user'; a system message comes first or not at all",
    ),
    (
        '{"messages": [{"role": "user", "content": "x"}]}',
        "d.jsonl:1:15: the conversation ends without an answer; end with 'assistant'",
    ),
    ('{"messages": [{"role": "system", "content": "x"}]}', "d.jsonl:1:14: there is only a system message"),
    ('{"messages": []}', "d.jsonl:1:14: 'messages' is empty; remove the row or give it turns"),
    ('{"messages": "text"}', "d.jsonl:1:14: 'messages' is a text, not a list"),
    ('{"messages": {"role": "user"}}', "d.jsonl:1:14: 'messages' is an object, not a list"),
    ('{"messages": [5]}', "d.jsonl:1:15: message 1 is a number; it looks like"),
    (
        '{"messages": [{"from": "human", "value": "x"}]}',
        "d.jsonl:1:15: the conversation ends without an answer; end with 'assistant'",
    ),
    (
        '{"messages": [{"role": "user", "contents": "x"}]}',
        "d.jsonl:1:15: message 1 has no 'content'; did you mean 'contents'?",
    ),
    ('{"conversations": []}', "d.jsonl:1:19: 'conversations' is empty; remove the row or give it turns"),
    ('{"instruction": "x", "output": ""}', "d.jsonl:1:32: 'output' is empty; remove the row"),
    (
        '{"a": 1, "b": 2}',
        (
            "d.jsonl:1:1: the format of the first row is not known; it has 'a', 'b', and a row of method sft has "
            "'messages', or 'prompt' and 'completion'"
        ),
    ),
    ("{}", "it has no keys, and a row of method sft has 'messages', or 'prompt' and"),
    (
        f'{CHAT}\n{{"prompt": "a", "completion": "b"}}',
        "d.jsonl:2:1: is not a row of format messages; this row looks like prompt-completion",
    ),
    ('{"prompt": "a", "complet": "b"}', "d.jsonl:1:1: the row has no 'completion'; did you mean 'complet'?"),
    (
        '{"prompt": "a", "completion": null}',
        "d.jsonl:1:31: 'completion' is null; it must be a text",
    ),
    ('{"prompt": "a", "completion": " "}', "d.jsonl:1:31: 'completion' is empty; remove the row"),
    (
        '{"prompt": [{"role": "user", "content": "x"}], "completion": [{"role": "user", "content": "y"}]}',
        "prompt and completion together are no dialogue",
    ),
]


@pytest.mark.parametrize(("content", "sentence"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_one_sentence_with_line_and_column(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    found = faults(tmp_path, content)
    assert any(sentence in line for line in found), found


def test_a_stray_comma_is_named(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, '{"prompt": "a", "completion": "b",}\n')
    assert found.startswith("d.jsonl:1:3")
    assert found.endswith("remove the comma before it")


def test_a_wanted_format_is_held_to(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, CHAT, "prompt-completion")
    assert found == "d.jsonl:1:1: is not a row of format prompt-completion; this row looks like messages"


def test_every_fault_is_told_up_to_a_limit(tmp_path: Path) -> None:
    found = faults(tmp_path, "\n".join([CHAT, *["{"] * 3, CHAT, "5"]))
    assert [line.split(":")[1] for line in found] == ["2", "3", "4", "6"]
    many = faults(tmp_path, "\n".join([CHAT, *["{"] * 500]))
    assert len(many) == SHOWN + 1
    assert "stopped looking" in many[-1]


def test_nesting_without_end_is_no_traceback(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, CHAT + "\n" + '{"a":' * 200_000)
    assert found.startswith("d.jsonl:2")


def test_a_folder_or_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=r"has no ending; rows are read from .jsonl"):
        load(tmp_path)


@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_no_bytes_get_past_with_a_traceback(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    for start in (b"", CHAT.encode() + b"\n"):
        path.write_bytes(start + content)
        found: list[str] = []
        try:
            load(path)
        except InputError as error:
            found = [str(problem) for problem in error.problems]
        assert all(line.startswith(str(path)) for line in found)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def _paths(value: Any, above: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    found = [(above, value)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += _paths(inner, (*above, key))
    return found


@given(_JSON, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_the_column_of_any_value_is_where_it_stands(value: Any, indent: int | str | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    for keys, inner in _paths(value):
        start = column(text, keys) - 1
        assert json.JSONDecoder().raw_decode(text, start)[0] == inner


def test_the_column_of_a_missing_value_is_its_parents() -> None:
    assert column('{"a": [1, 2]}', ("a", 5)) == 7
    assert column('{"a": [1, 2]}', ("b",)) == 1


def test_questions(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "a", "expect": "b"}\n{"prompt": "c", "expect": "d", "system": "e"}\n')
    assert [(each.prompt, each.expect, each.system) for each in questions.load(path)] == [
        ("a", "b", None),
        ("c", "d", "e"),
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"prompt": "a"}', "the question has no 'expect'"),
        ('{"prompt": "a", "expected": "b"}', "unknown key 'expected'; did you mean 'expect'?"),
        ('{"prompt": "a", "expect": 5}', "'expect' is not a text with words in it"),
        ('{"prompt": "", "expect": "b"}', "'prompt' is not a text with words in it"),
    ],
)
def test_bad_questions(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("?", r"\?")):
        questions.load(write(tmp_path, line))


@pytest.mark.parametrize(
    ("answer", "expect", "right"),
    [
        ("It is 58.", "58", True),
        ("It is 5812.", "58", False),
        ("pier no.58!", "58", True),
        ("Copper  and\nTEAL", "copper and teal", True),
        ("copper, teal", "copper and teal", False),
        ("It leaves at 23:17.", "23:17", True),
        ("It leaves at 123:17.", "23:17", False),
        ("otters", "otter", False),
        ("", "x", False),
        ("anything", " ", False),
    ],
)
def test_what_counts_as_right(answer: str, expect: str, right: bool) -> None:
    assert questions.is_right(answer, expect) is right
