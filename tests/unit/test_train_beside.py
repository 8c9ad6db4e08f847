"""What stands beside the turns of a row: a system message, tools, pictures. None of it may get lost without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest

from strix_train.data.formats.talk import Wishes
from strix_train.data.rows import Conversation, Preference, Prompt, Rated, Turn, content
from tests.unit.test_train_formats import ANSWER, GPT, HUMAN, USER, fault, read, row, talk

WHO = {"role": "system", "content": "You are Bob."}
WITH_SYSTEM = [("system", "You are Bob.", False), ("user", "q", False), ("assistant", "a", True)]
TOOLS = [{"type": "function", "function": {"name": "w"}}]
BAD = {"role": "assistant", "content": "b"}


@pytest.mark.parametrize("key", ["system", "system_prompt"])
@pytest.mark.parametrize(
    "value",
    [
        {"messages": [USER, ANSWER]},
        {"conversations": [HUMAN, GPT]},
        {"prompt": "q", "completion": "a"},
        {"prompt": [USER], "completion": [ANSWER]},
        {"instruction": "q", "output": "a"},
    ],
)
def test_a_system_message_beside_the_turns_comes_first(tmp_path: Path, value: Any, key: str) -> None:
    assert talk(row(tmp_path, {key: "You are Bob.", **value})) == WITH_SYSTEM
    for nothing in ("", " ", None):
        assert "system" not in content(row(tmp_path, {key: nothing, **value}))
    merged = row(tmp_path, {key: "You are Bob.", **value}, wishes=Wishes(merge_system=True))
    assert talk(merged)[0] == ("user", "You are Bob.\n\nq", False)


@pytest.mark.parametrize("method", ["dpo", "orpo", "reward"])
@pytest.mark.parametrize(
    "value",
    [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [BAD]},
        {"chosen": [USER, ANSWER], "rejected": [USER, BAD]},
        {"messages": [USER], "chosen": "a", "rejected": "b"},
        {"conversations": [HUMAN], "chosen": GPT, "rejected": {"from": "gpt", "value": "b"}},
        {"instruction": "q", "chosen": "a", "rejected": "b"},
    ],
)
def test_both_answers_of_a_pair_have_it(tmp_path: Path, value: Any, method: str) -> None:
    found = row(tmp_path, {"system": "You are Bob.", **value}, method=method)
    assert isinstance(found, Preference)
    assert talk(found.chosen) == WITH_SYSTEM
    assert talk(found.rejected) == [*WITH_SYSTEM[:2], ("assistant", "b", True)]


def test_marked_rows_and_prompts_have_it(tmp_path: Path) -> None:
    marked = row(tmp_path, {"system": "You are Bob.", "prompt": "q", "completion": "a", "label": True}, method="kto")
    assert isinstance(marked, Rated)
    assert talk(marked.row) == WITH_SYSTEM
    for asked in ({"prompt": "q"}, {"prompt": [USER]}, {"messages": [USER, ANSWER]}):
        prompt = row(tmp_path, {"system": "You are Bob.", **asked}, method="grpo")
        assert isinstance(prompt, Prompt)
        assert prompt.turns == (Turn("system", "You are Bob.", False), Turn("user", "q", False))
        assert prompt.text == ""


def test_columns_may_name_it(tmp_path: Path) -> None:
    columns = {"system": "persona", "prompt": "question", "completion": "response"}
    value = {"persona": "You are Bob.", "question": "q", "response": "a"}
    assert talk(row(tmp_path, value, columns=columns)) == WITH_SYSTEM


def test_an_empty_column_does_not_hide_the_other(tmp_path: Path) -> None:
    value = {"system": "", "system_prompt": "You are Bob.", "prompt": "q", "completion": "a"}
    assert talk(row(tmp_path, value)) == WITH_SYSTEM


def test_two_system_messages(tmp_path: Path) -> None:
    value = {"messages": [WHO, USER, ANSWER], "system": "You are Bob."}
    assert talk(row(tmp_path, value)) == WITH_SYSTEM
    said = fault(tmp_path, value | {"system": "You are Eve."})
    assert said == "d.jsonl:1:146: 'system' and the first message are two system messages; keep one of them"
    assert "'system' is a number; it must be a text" in fault(tmp_path, {"prompt": "q", "completion": "a", "system": 1})


@pytest.mark.parametrize("empty", ["", " \n", None])
def test_an_empty_system_message_in_front_is_none(tmp_path: Path, empty: Any) -> None:
    nobody = {"role": "system", "content": empty}
    assert talk(row(tmp_path, {"messages": [nobody, USER, ANSWER]})) == WITH_SYSTEM[1:]
    assert talk(row(tmp_path, {"conversations": [{"from": "system", "value": empty}, HUMAN, GPT]})) == WITH_SYSTEM[1:]
    assert talk(row(tmp_path, {"instruction": "q", "input": empty, "output": "a"})) == WITH_SYSTEM[1:]
    # what else is wrong is told by the file's own count
    said = fault(tmp_path, {"messages": [nobody, USER, USER, ANSWER]})
    assert "message 3 is 'user' after 'user'" in said
    assert "message 2 (user) is empty" in fault(tmp_path, {"messages": [WHO, {"role": "user", "content": ""}, ANSWER]})


def test_merged_messages_are_told_by_the_file_s_own_count(tmp_path: Path) -> None:
    said = fault(tmp_path, {"messages": [WHO, USER, USER, ANSWER]}, wishes=Wishes(merge_system=True))
    assert "message 3 is 'user' after 'user'" in said


@pytest.mark.parametrize(
    ("value", "method"),
    [
        ({"messages": [USER, ANSWER]}, "sft"),
        ({"prompt": [USER], "completion": [ANSWER]}, "sft"),
        ({"prompt": [USER], "chosen": [ANSWER], "rejected": [BAD]}, "dpo"),
        ({"chosen": [USER, ANSWER], "rejected": [USER, BAD]}, "dpo"),
        ({"messages": [USER], "chosen": "a", "rejected": "b"}, "dpo"),
    ],
)
def test_tools_go_along(tmp_path: Path, value: Any, method: str) -> None:
    for tools in (TOOLS, json.dumps(TOOLS)):
        found = row(tmp_path, value | {"tools": tools}, method=method)
        found = found.chosen if isinstance(found, Preference) else found
        assert isinstance(found, Conversation)
        assert found.tools == tuple(TOOLS)
    for wrong, words in (("[" * 200_000, "a text that is not JSON"), ("x", "not JSON"), ({"a": 1}, "is an object")):
        assert words in fault(tmp_path, value | {"tools": wrong}, method=method)


def calls(*given: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": list(given)}]}


def test_arguments_as_text_are_a_mapping_to_templates_and_the_text_to_those_that_put_it_in(tmp_path: Path) -> None:
    text = '{"city":"Paris"}'
    found = row(tmp_path, calls({"type": "function", "function": {"name": "w", "arguments": text}}))
    assert isinstance(found, Conversation)
    (call,) = (found.turns[1].extra or {})["tool_calls"]
    assert call["function"]["arguments"] == {"city": "Paris"}
    for source, said in (
        ("{{ c.function.arguments | tojson }}", '{"city": "Paris"}'),
        ("{% for key, value in c.function.arguments|items %}{{ key }}={{ value }}{% endfor %}", "city=Paris"),
        ("{{ c.function.arguments }}", text),
        ("{{ 'x' + c.function.arguments + 'y' }}", f"x{text}y"),
        ("{{ 'x' ~ c.function.arguments ~ 'y' }}", f"x{text}y"),
        ("{{ c.function.arguments is string }}{{ c.function.arguments is mapping }}", "FalseTrue"),
    ):
        assert jinja2.Environment(autoescape=False).from_string(source).render(c=call) == said
    for kept in ("Paris", "[1]", "{", "[" * 100_000):
        found = row(tmp_path, calls({"function": {"name": "w", "arguments": kept}}))
        assert isinstance(found, Conversation)
        assert (found.turns[1].extra or {})["tool_calls"] == [{"function": {"name": "w", "arguments": kept}}]
    for plain in ({"name": "w", "arguments": {}}, {"function": {"name": "w"}}):
        found = row(tmp_path, calls(plain))
        assert isinstance(found, Conversation)
        assert (found.turns[1].extra or {})["tool_calls"] == [plain]


@pytest.mark.parametrize("wrong", [1, {}, {"function": "x"}, {"function": {"name": ""}}, {"name": 3}, None, "w"])
def test_a_call_names_a_function(tmp_path: Path, wrong: Any) -> None:
    said = fault(tmp_path, calls({"function": {"name": "w"}}, wrong))
    assert 'call 2 names no function; a call is {"function": {"name": "…", "arguments": {…}}}' in said


@pytest.mark.parametrize("wrong", ["abc", {"a": 1}, True])
def test_calls_are_a_list(tmp_path: Path, wrong: Any) -> None:
    value = {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": wrong}]}
    assert "'tool_calls' is " in fault(tmp_path, value)


@pytest.mark.parametrize(
    ("value", "method"),
    [
        ({"messages": [USER, ANSWER], "images": ["a.png"]}, "sft"),
        ({"conversations": [HUMAN, GPT], "image": "coco/1.jpg"}, "sft"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "audio": {"path": "a.wav"}}, "dpo"),
        ({"prompt": "q", "videos": ["a.mp4"]}, "grpo"),
    ],
)
def test_pictures_and_sound_are_refused(tmp_path: Path, value: Any, method: str) -> None:
    assert "; images and sound are not trained here: leave the row out" in fault(tmp_path, value, method=method)
    for nothing in ([], None, "", "[]"):
        senses = dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"), nothing)
        assert len(read(tmp_path, {**value, **senses}, method=method)) == 1


def test_the_answers_of_a_pair_answer_the_same(tmp_path: Path) -> None:
    other = {"role": "user", "content": "who?"}
    said = fault(tmp_path, {"chosen": [USER, ANSWER], "rejected": [other, BAD]}, method="dpo")
    assert "'chosen' and 'rejected' answer different questions; both begin with the same messages" in said
    assert "different questions" in fault(
        tmp_path, {"chosen": [WHO, USER, ANSWER], "rejected": [USER, BAD]}, method="dpo"
    )
    # two ways that a talk may go, which part at an answer
    value = {"chosen": [USER, ANSWER, USER, ANSWER], "rejected": [USER, BAD, other, BAD]}
    assert isinstance(row(tmp_path, value, method="dpo"), Preference)


def test_preference_sets_as_they_are_published(tmp_path: Path) -> None:
    both = {"prompt": "q", "chosen": [USER, ANSWER], "rejected": [USER, BAD], "messages": [USER, ANSWER]}
    for value in (both | {"score_chosen": 8.0}, {"messages": [USER], "chosen": [ANSWER], "rejected": [BAD]}):
        found = row(tmp_path, value, method="dpo")
        assert isinstance(found, Preference)
        assert talk(found.chosen) == WITH_SYSTEM[1:]


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ({"prompt": "q", "completion": "a", "label": "pos"}, {}),
        ({"prompt": "q", "completion": "a", "label": None}, {}),
        ({"prompt": "q", "completion": "a", "label": True}, {"format": "prompt-completion"}),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, {"columns": {"completion": "chosen"}}),
        ({"instruction": "q", "input": "", "output": "a", "prompt": "### q"}, {}),
    ],
)
def test_a_column_more_does_no_harm(tmp_path: Path, value: Any, shape: Any) -> None:
    found = row(tmp_path, value, **shape)
    said = (
        talk(found)
        if isinstance(found, Conversation)
        else [("user", "q", False), ("assistant", found.completion, True)]
    )  # type: ignore[union-attr]
    assert said == WITH_SYSTEM[1:]


@pytest.mark.parametrize("label", [True, False, 0, 1])
def test_answers_that_are_marked_are_not_simply_learned(tmp_path: Path, label: Any) -> None:
    assert "the rows are rated" in fault(tmp_path, {"prompt": "q", "completion": "a", "label": label})


def test_a_number_is_expected_where_a_reward_looks_for_one(tmp_path: Path) -> None:
    wishes = Wishes(columns=("answer",), numbers=("answer",))
    said = fault(tmp_path, {"prompt": "q", "answer": "yes"}, method="grpo", wishes=wishes)
    assert said.endswith("'answer' holds no number; the reward 'number' could never be given")
    for good in (3, 2.5, "so it is 1,234"):
        assert len(read(tmp_path, {"prompt": "q", "answer": good}, method="grpo", wishes=wishes)) == 1


@pytest.mark.parametrize("key", ["\role", "ro\nle", "role\x1b[2J", "rol\ue000"])
def test_a_key_with_a_line_break_is_told_in_one_line(tmp_path: Path, key: str) -> None:
    said = fault(tmp_path, {"messages": [{key: "user", "content": "q"}, ANSWER]})
    assert said.isprintable()
    assert f"did you mean '{repr(key)[1:-1]}'?" in said
