"""Row formats of `train`: each spelling becomes the same rows, for the method that learns them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strix_train.data.formats import FORMATS, learned_by
from strix_train.data.formats.talk import Wishes
from strix_train.data.load import DataSet, Shape, load
from strix_train.data.rows import Continuation, Conversation, Document, Preference, Prompt, Rated, Row, content
from strix_train.errors import InputError

USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
HUMAN, GPT = {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}


def read(tmp_path: Path, value: Any, **shape: Any) -> DataSet:
    path = tmp_path / "d.jsonl"
    values = value if isinstance(value, list) else [value]
    path.write_text("".join(json.dumps(each) + "\n" for each in values))
    return load(path, Shape(**shape))


def row(tmp_path: Path, value: Any, **shape: Any) -> Row:
    return read(tmp_path, value, **shape).rows[0]


def talk(found: Row) -> list[tuple[str, str, bool]]:
    assert isinstance(found, Conversation)
    return [(turn.role, turn.content, turn.learned) for turn in found.turns]


def fault(tmp_path: Path, value: Any, **shape: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(tmp_path, value, **shape)
    (problem,) = caught.value.problems
    assert problem.cure, problem
    assert problem.around, problem
    return str(problem).replace(f"{tmp_path}/", "")


PLAIN = [("user", "q", False), ("assistant", "a", True)]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"messages": [USER, ANSWER]}, "messages"),
        ({"conversations": [USER, ANSWER]}, "messages"),
        ({"conversations": [HUMAN, GPT]}, "sharegpt"),
        ({"messages": [HUMAN, GPT]}, "sharegpt"),
        ({"instruction": "q", "output": "a"}, "alpaca"),
        ({"instruction": "q", "input": "", "output": "a"}, "alpaca"),
        ({"prompt": [USER], "completion": [ANSWER]}, "prompt-completion"),
        ({"prompt": "q", "completion": [ANSWER]}, "prompt-completion"),
        ({"prompt": [USER], "completion": "a"}, "prompt-completion"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, ANSWER]}, "messages"),
        ({"messages": [USER, {"role": "model", "content": "a"}]}, "messages"),
    ],
)
def test_all_spellings_of_a_conversation_are_the_same(tmp_path: Path, value: Any, name: str) -> None:
    data = read(tmp_path, value)
    assert data.format == name
    assert talk(data.rows[0]) == PLAIN


def test_alpacas_input_system_and_history(tmp_path: Path) -> None:
    value = {"instruction": "i", "input": "x", "output": "o", "system": "s", "history": [["q1", "a1"]]}
    assert talk(row(tmp_path, value)) == [
        ("system", "s", False),
        ("user", "q1", False),
        ("assistant", "a1", True),
        ("user", "i\n\nx", False),
        ("assistant", "o", True),
    ]


def test_roles_of_any_name(tmp_path: Path) -> None:
    value = {"messages": [{"role": "Kunde", "content": "q"}, {"role": "Bot", "content": "a"}]}
    assert talk(row(tmp_path, value, wishes=Wishes({"Kunde": "user", "Bot": "assistant"}))) == PLAIN
    sentence = fault(tmp_path, value)
    assert sentence.startswith("d.jsonl:1:24: the role of message 1 is 'Kunde'; it may be system, developer, user,")


def test_a_system_message_goes_into_the_first_question(tmp_path: Path) -> None:
    value = {"messages": [{"role": "system", "content": "s"}, USER, ANSWER]}
    merged = talk(row(tmp_path, value, wishes=Wishes(merge_system=True)))
    assert merged == [("user", "s\n\nq", False), ("assistant", "a", True)]


def test_answers_that_weigh_nothing_are_not_learned(tmp_path: Path) -> None:
    value = {"messages": [USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1}]}
    assert [learned for _, _, learned in talk(row(tmp_path, value))] == [False, False, False, True]
    value = {"messages": [USER, {**ANSWER, "weight": 0}]}
    assert "no answer of the conversation is to be learned" in fault(tmp_path, value)


def test_tools_and_their_calls(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    told = {"role": "tool", "content": "3", "name": "f"}
    found = row(tmp_path, {"messages": [USER, call, told, ANSWER], "tools": tools})
    assert isinstance(found, Conversation)
    assert [turn.role for turn in found.turns] == ["user", "assistant", "tool", "assistant"]
    assert [turn.learned for turn in found.turns] == [False, True, False, True]
    assert found.turns[1].extra == {"tool_calls": call["tool_calls"]}
    assert found.turns[2].extra == {"name": "f"}
    assert found.tools == tuple(tools)
    told_first = {"messages": [USER, told, ANSWER]}
    assert "message 2 is 'tool' after 'user'; what a tool says follows" in fault(tmp_path, told_first)
    assert "'tools' is a number" in fault(tmp_path, {"messages": [USER, ANSWER], "tools": 3})


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "b"}]},
        {"prompt": "q", "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "b"}]},
        {"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "b"}]},
        {"prompt": "q", "chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "b"}]},
        {"conversations": [HUMAN], "chosen": GPT, "rejected": {"from": "gpt", "value": "b"}},
        {"messages": [USER], "chosen": "a", "rejected": "b"},
        {"instruction": "q", "chosen": "a", "rejected": "b"},
    ],
)
def test_all_spellings_of_a_preference_are_the_same(tmp_path: Path, value: Any) -> None:
    for method in ("dpo", "orpo", "reward"):
        found = row(tmp_path, value, method=method)
        assert isinstance(found, Preference)
        assert (talk(found.chosen), talk(found.rejected)) == (PLAIN, [PLAIN[0], ("assistant", "b", True)])


def test_only_the_last_answer_of_a_preference_is_learned(tmp_path: Path) -> None:
    before = [USER, ANSWER, USER]
    value = {"chosen": [*before, ANSWER], "rejected": [*before, {**ANSWER, "content": "b"}]}
    found = row(tmp_path, value, method="dpo")
    assert isinstance(found, Preference)
    assert [learned for _, _, learned in talk(found.chosen)] == [False, False, False, True]


def test_a_preference_as_two_marked_rows(tmp_path: Path) -> None:
    data = read(tmp_path, {"prompt": "q", "chosen": "a", "rejected": "b"}, method="kto")
    good, bad = data.rows
    assert isinstance(good, Rated)
    assert isinstance(bad, Rated)
    assert (good.good, bad.good) == (True, False)
    assert (good.row, bad.row) == (Continuation("q", "a", good.place), Continuation("q", "b", bad.place))


@pytest.mark.parametrize("label", [True, "true", 1, "good", "True", 1.0])
def test_marks(tmp_path: Path, label: Any) -> None:
    found = row(tmp_path, {"prompt": "q", "completion": "a", "label": label}, method="kto")
    assert isinstance(found, Rated)
    assert found.good is True
    found = row(tmp_path, {"messages": [USER, ANSWER], "kto_tag": False}, method="kto")
    assert isinstance(found, Rated)
    assert found.good is False


def test_prompts_keep_what_rewards_look_at(tmp_path: Path) -> None:
    wishes = Wishes(columns=("answer",))
    for value in (
        {"prompt": "q", "answer": 4},
        {"messages": [USER, ANSWER], "answer": 4},
        {"prompt": [USER], "answer": 4},
    ):
        found = row(tmp_path, value, method="grpo", wishes=wishes)
        assert isinstance(found, Prompt)
        assert [(turn.role, turn.content, turn.learned) for turn in found.turns] == [("user", "q", False)]
        assert found.row["answer"] == 4
    assert "the row has no 'answer'" in fault(tmp_path, {"prompt": "q"}, method="grpo", wishes=wishes)
    assert "'answer' is empty" in fault(tmp_path, {"prompt": "q", "answer": " "}, method="grpo", wishes=wishes)
    assert "is no text and no number" in fault(tmp_path, {"prompt": "q", "answer": []}, method="grpo", wishes=wishes)


def test_text(tmp_path: Path) -> None:
    found = row(tmp_path, {"text": "x"}, method="cpt")
    assert isinstance(found, Document)
    assert (found.text, found.ends) == ("x", True)


def test_columns_of_any_name(tmp_path: Path) -> None:
    columns = {"prompt": "question", "completion": "answer"}
    found = row(tmp_path, {"question": "q", "answer": "a"}, columns=columns)
    assert isinstance(found, Continuation)
    assert (found.prompt, found.completion) == ("q", "a")
    assert fault(tmp_path, {"question": "q", "answer": 5}, columns=columns).startswith(
        "d.jsonl:1:29: 'completion' is a"
    )


@pytest.mark.parametrize(
    ("columns", "value", "turns"),
    [
        (
            {"input": "context", "system": "input"},
            {"instruction": "i", "context": "c", "input": "s", "output": "o"},
            ["s", "i\n\nc", "o"],
        ),
        (
            {"system": "input", "input": "context"},
            {"instruction": "i", "context": "c", "input": "s", "output": "o"},
            ["s", "i\n\nc", "o"],
        ),
        (
            {"instruction": "output", "output": "instruction"},
            {"instruction": "a", "output": "q"},
            ["q", "a"],
        ),
        ({"input": "context"}, {"instruction": "i", "input": "no", "context": "c", "output": "o"}, ["i\n\nc", "o"]),
        ({"input": "system"}, {"instruction": "i", "system": "c", "output": "o"}, ["i\n\nc", "o"]),
    ],
)
def test_a_column_may_take_another_ones_name(
    tmp_path: Path, columns: dict[str, str], value: dict[str, str], turns: list[str]
) -> None:
    found = row(tmp_path, value, columns=columns)
    assert isinstance(found, Conversation)
    assert [turn.content for turn in found.turns] == turns


def test_columns_that_are_swapped(tmp_path: Path) -> None:
    columns = {"prompt": "completion", "completion": "prompt"}
    found = row(tmp_path, {"prompt": "a", "completion": "q"}, columns=columns)
    assert isinstance(found, Continuation)
    assert (found.prompt, found.completion) == ("q", "a")
    assert fault(tmp_path, {"prompt": 5, "completion": "q"}, columns=columns).startswith(
        "d.jsonl:1:12: 'completion' is a number"
    )


@pytest.mark.parametrize(
    ("value", "method", "sentence"),
    [
        ({"text": "x"}, "sft", "plain text has no answer to learn: write method: cpt"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "sft", "or write method: dpo"),
        ({"prompt": "q", "completion": "a", "label": True}, "sft", "or write method: kto"),
        ({"messages": [USER, ANSWER]}, "dpo", "the rows are messages, which method dpo does not learn"),
        ({"messages": [USER, ANSWER]}, "cpt", "a row of method cpt has 'text'"),
        ({"question": "q", "answer": "a"}, "sft", "name the columns: data.columns: {prompt: question"),
        ({"train": []}, "sft", "the rows are inside 'train'"),
        (
            {"prompt": "q", "chosen": "a", "rejected": "a"},
            "dpo",
            "'chosen' and 'rejected' are the same; remove the row",
        ),
        ({"prompt": "q", "chosen": "a"}, "dpo", "the row has no 'rejected'"),
        ({"prompt": "q", "chosen": "a", "rejected": [ANSWER]}, "dpo", "are written in two ways"),
        ({"prompt": "q", "completion": "a", "label": "maybe"}, "kto", "'label' is 'maybe'; it must be true"),
        ({"messages": [USER, {**ANSWER, "content": [{"type": "image"}]}]}, "sft", "images and sound are not trained"),
        ({"messages": [{"role": "system", "content": "s"}]}, "grpo", "there is only a system message"),
    ],
)
def test_what_a_method_does_not_learn(tmp_path: Path, value: Any, method: str, sentence: str) -> None:
    assert sentence in fault(tmp_path, value, method=method)


def test_faults_may_be_left_out_and_are_counted(tmp_path: Path) -> None:
    good = {"messages": [USER, ANSWER]}
    values = [good, {"messages": []}, good, *[{"messages": [USER]}] * 50]
    data = read(tmp_path, values, skip=True)
    assert (len(data), data.skipped) == (2, 51)
    assert len(data.rows) == 2
    assert str(data.notes[0]).endswith("'messages' is empty; remove the row or give it turns")
    with pytest.raises(InputError, match="every row has a fault: "):
        read(tmp_path, [{"messages": []}] * 30, skip=True)


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    data = read(tmp_path, [{"text": "x"}, {"text": "y"}], method="cpt")
    data.path.write_text('{"text": "x"}\n')
    with pytest.raises(InputError, match="has changed since it was checked; begin again"):
        list(data)


def test_every_format_belongs_to_a_method_and_every_method_has_one() -> None:
    methods = {method for form in FORMATS.values() for method in form.methods}
    assert methods == {"sft", "cpt", "dpo", "orpo", "kto", "grpo", "reward"}
    assert [form.name for form in learned_by("kto")] == ["preference", "rated"]


def test_equal_contents_are_equal_rows(tmp_path: Path) -> None:
    same = read(tmp_path, [{"messages": [USER, ANSWER]}, {"conversations": [USER, ANSWER], "id": 7}])
    first, second = same.rows
    assert content(first) == content(second)
    assert same.digests[0] == same.digests[1]


@pytest.mark.parametrize(
    ("rows", "keys", "sentence"),
    [
        (
            '{"prompt": "a", "completion": "b", "label": true}\n' * 2,
            "",
            "2:1: all 2 rows are marked good; method kto needs",
        ),
        (
            '{"prompt": "a", "chosen": "b", "rejected": "c"}\n',
            "batch: 1",
            "schedule.batch is 1, and method kto compares",
        ),
    ],
)
def test_what_kto_cannot_learn_from(tmp_path: Path, rows: str, keys: str, sentence: str) -> None:
    from strix_train import plan

    (tmp_path / "d.jsonl").write_text(rows)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"model: o/n\ndata: d.jsonl\nmethod: kto\nschedule: {{steps: 1, {keys}}}\n")
    with pytest.raises(InputError, match=sentence):
        plan.make(str(recipe), with_backend=False)
