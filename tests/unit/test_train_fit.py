"""Rows against a model's own files: its template, its tokenizer, and max_length."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strix_train import fit, localtext, plan, template
from strix_train.checking import check
from strix_train.errors import InputError
from strix_train.names import ModelName

CHATML = (
    "{%- for m in messages -%}\n  <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
_TOKEN = re.compile(r"<\|?\w+\|?>|\w+|\s|.", re.DOTALL)


class Tokens:
    """Stands for tokenizers.Tokenizer: words, spaces and marks."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"<eos>": 0, "<|im_start|>": 1, "<|im_end|>": 2}

    @classmethod
    def from_file(cls, path: str) -> Tokens:
        if Path(path).read_text() == "broken":
            raise Exception("expected value at line 1 column 1")
        return cls()

    def encode(self, text: str, add_special_tokens: bool = True) -> Any:
        found = [(self.known.setdefault(m[0], len(self.known)), m[0], m.span()) for m in _TOKEN.finditer(text)]
        ids, tokens, offsets = [list(part) for part in zip(*found, strict=True)] or [[], [], []]
        return SimpleNamespace(ids=ids, tokens=tokens, offsets=offsets)

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {index: SimpleNamespace(special=True) for index in range(3)}

    def no_truncation(self) -> None:
        """Nothing is cut here."""

    def no_padding(self) -> None:
        """Nothing is filled up here."""

    def token_to_id(self, token: str) -> int | None:
        return self.known.get(token)


@pytest.fixture
def tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a small stand-in for the tokenizers library in its place."""
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Tokens))
    monkeypatch.setattr(localtext, "find_spec", lambda name: object())


def model(folder: Path, source: str | None = CHATML, *, tokenizer: str = "{}", config: Any = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", **(config or {})}))
    if source is not None:
        (folder / "chat_template.jinja").write_text(source)
    return folder


def talk(*said: str, system: str = "") -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(said)]
    return {"messages": messages}


def made(tmp_path: Path, rows: list[Any], *settings: str, recipe: str = "") -> plan.Plan:
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "r.yaml"
    path.write_text(f"model: m\ndata: d.jsonl\nschedule: {{steps: 1, max_length: 40}}\n{recipe}")
    return plan.make(str(path), settings, with_backend=False)


def refused(tmp_path: Path, rows: list[Any], *settings: str, recipe: str = "") -> list[str]:
    with pytest.raises(InputError) as caught:
        made(tmp_path, rows, *settings, recipe=recipe)
    assert all(problem.cure for problem in caught.value.problems)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]


def test_what_the_template_refuses_is_told_with_its_row(tmp_path: Path) -> None:
    model(tmp_path / "m", STRICT)
    rows = [talk("a", "b"), talk("a", "b", system="s"), talk("c", "d", system="s")]
    (found,) = refused(tmp_path, rows)
    what = "d.jsonl:2:1: the model's chat template refuses this conversation: System role not supported; "
    assert found == what + "write data.merge_system: true to put the system message in front of the first question"
    assert len(made(tmp_path, rows, "data.merge_system=true").train) == 3


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("questions: {ask: [{prompt: q, expect: a}, {prompt: who, expect: b, system: s}]}\n", "r.yaml:4:1"),
        ("samples: {every: 6, ask: [{prompt: q}, {prompt: who, system: s}]}\n", "r.yaml:4:40"),
    ],
)
def test_what_is_asked_is_put_to_the_template_before_anything_is_trained(tmp_path: Path, more: str, place: str) -> None:
    model(tmp_path / "m", STRICT)
    (found,) = refused(tmp_path, [talk("a", "b")], recipe=more)
    what = "the model's chat template refuses the question 'who': System role not supported; leave its 'system' out"
    assert found == f"{place}: {what}"
    made(tmp_path, [talk("a", "b")], recipe=more.replace(", system: s", ""))


def test_samples_need_something_to_ask(tmp_path: Path) -> None:
    (found,) = refused(tmp_path, [talk("a", "b")], recipe="samples: {every: 2}\n")
    assert found.endswith("samples has nothing to ask; write samples.ask, or questions")


def test_a_model_without_a_template(tmp_path: Path) -> None:
    model(tmp_path / "m", None)
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "c"}]
    assert len(made(tmp_path, rows).train) == 2
    found = refused(tmp_path, [talk("a", "b")])
    assert found[0].startswith("d.jsonl:1:1: the rows are conversations and the model has no chat template; write data")
    found = refused(tmp_path, rows, "data.template=chat")
    assert found[0].endswith("m has no chat template; write template: simple, or plain")
    assert len(made(tmp_path, [talk("a", "b")], "data.template=simple").train) == 1


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    model(tmp_path / "m", STRICT)
    (tmp_path / "mine.jinja").write_text(CHATML)
    rows = [talk("a", "b", system="s")]
    plan_ = made(tmp_path, rows, "data.template=mine.jinja")
    assert plan_.template == fit.Template("chat", CHATML)
    assert plan_.resolved()["data"]["template"] == str(tmp_path / "mine.jinja")
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}\n{{ m.role }")
    (found,) = refused(tmp_path, rows, "data.template=mine.jinja")
    assert "mine.jinja is not a Jinja template: line 2: " in found
    (found,) = refused(tmp_path, rows, "data.template=chtml")
    assert "there is no template 'chtml'; it may be auto, chat, plain, simple, or a .jinja file" in found


def test_a_models_broken_template(tmp_path: Path) -> None:
    model(tmp_path / "m", "{% for %}")
    (found,) = refused(tmp_path, [talk("a", "b")])
    assert found.startswith("r.yaml:1:1: the chat template of m is broken: line 1: ")


def test_rows_are_counted_in_tokens(tmp_path: Path, tokenizers: None) -> None:
    model(tmp_path / "m")
    long = " ".join("word" for _ in range(30))
    plan_ = made(tmp_path, [talk("a", "b"), talk("a", "c"), talk("a", long), talk(long, "a")])
    lengths = plan_.lengths[0]
    assert (lengths.sampled, lengths.cut, lengths.lost, lengths.exact) == (4, 2, 1, True)
    assert 10 < lengths.median == lengths.high == lengths.longest > 60
    assert plan.findings(plan_).lost == 1
    code, text = check(str(tmp_path / "r.yaml"), (), fetch=False, as_json=False)
    assert code == 0
    assert "2, of them 1 without answer" in text
    assert "warning    2 rows are longer than max_length, 1 lose their whole answer" in text


def test_most_answers_lost_is_refused(tmp_path: Path, tokenizers: None) -> None:
    model(tmp_path / "m")
    long = " ".join("word" for _ in range(30))
    (found,) = refused(tmp_path, [talk("a", "b"), talk(long, "a"), talk(long, "b")])
    assert found.startswith(
        "r.yaml:3:22: 2 of 3 rows lose their whole answer to max_length (40 tokens): all labels are"
    )
    assert "raise schedule.max_length" in found


def test_a_row_that_would_teach_nothing_is_told(tmp_path: Path, tokenizers: None) -> None:
    """The template leaves the last answer out, so that every label would be masked."""
    model(tmp_path / "m", CHATML.replace("{{ m.content }}", "{{ m.content if m.role == 'user' else '' }}"))
    (found,) = refused(tmp_path, [talk("a", "b")])
    assert found.startswith(
        "d.jsonl:1:1: the model's chat template changes the conversation so that its answers cannot"
    )
    assert "write responses_only: false" in found


def test_a_large_set_is_sampled(tmp_path: Path, tokenizers: None) -> None:
    model(tmp_path / "m")
    long = " ".join("word" for _ in range(30))
    rows = [talk(f"a{index}", long if index % 4 == 0 else "b") for index in range(2000)]
    lengths = made(tmp_path, rows).lengths[0]
    assert 128 <= lengths.sampled <= 256
    assert not lengths.exact
    assert 350 < lengths.cut < 650


def test_pairs_and_marks_have_lengths_too(tmp_path: Path, tokenizers: None) -> None:
    model(tmp_path / "m")
    sets = [
        ({"prompt": "q", "chosen": "a", "rejected": "b c"}, "dpo"),
        ({"prompt": "q", "completion": "a", "label": True}, "kto"),
    ]
    for row, method in sets:
        (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n")
        path = tmp_path / "r.yaml"
        path.write_text(f"model: m\ndata: d.jsonl\nmethod: {method}\nschedule: {{steps: 1}}\n")
        loaded = plan.load(path)
        train = plan.sources.read(loaded, "train", fetch=False)
        found = fit.check(loaded, ModelName("m", str(tmp_path / "m"), True), fit.Template("auto", None), train, ())
        assert found[0].sampled == (2 if method == "dpo" else 1)


def test_a_broken_tokenizer(tmp_path: Path, tokenizers: None) -> None:
    model(tmp_path / "m", tokenizer="broken")
    (found,) = refused(tmp_path, [talk("a", "b")])
    assert "tokenizer.json: cannot be read: expected value at line 1 column 1; fetch the model again" in found


def test_a_model_in_the_hubs_cache_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    held = tmp_path / "hf" / "hub" / "models--o--n"
    rows = [talk("a", "b", system="s")]
    name = ModelName("o/n", "o/n", False)
    assert localtext.folder_of(name) is None
    assert len(made(tmp_path, rows, "model=o/n").train) == 1
    model(held / "snapshots" / "abc", STRICT)
    (held / "refs").mkdir()
    (held / "refs" / "main").write_text("abc\n")
    assert localtext.folder_of(name) == held / "snapshots" / "abc"
    assert "System role not supported" in refused(tmp_path, rows, "model=o/n")[0]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"chat_template": "{{ 1 }}"}, "{{ 1 }}"),
        ({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}, "d"),
        ({}, None),
    ],
)
def test_where_a_template_is_found(tmp_path: Path, config: Any, expected: str | None) -> None:
    folder = model(tmp_path / "m", None, config=config)
    assert template.of_folder(folder) == expected
    (folder / "chat_template.jinja").write_text("own")
    assert template.of_folder(folder) == "own"


def test_special_tokens_are_words_or_objects(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", config={"bos_token": {"content": "<s>"}, "pad_token": None})
    assert template.special_tokens(folder) == {"eos_token": "<eos>", "bos_token": "<s>"}


def test_templates_are_read_as_transformers_reads_them() -> None:
    source = (
        "{%- for m in messages %}\n  {%- if loop.index0 == 2 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m | tojson }}{% endgeneration %}\n{%- endfor %}{{ strftime_now('%Y')[:2] }}{{ bos_token }}"
    )
    made_ = template.ChatTemplate(source, {"bos_token": "<b>"})
    messages = [{"role": "user", "content": "é<&"}] * 3
    one = '{"role": "user", "content": "é<&"}'
    assert made_.render(messages, answer_next=False) == f"{one}{one}20<b>"
    for broken in ("{{ raise_exception('no') }}", "{{ messages.x.y }}", "{{ messages[9].role.x }}", "{{ 1 + 'a' }}"):
        with pytest.raises(ValueError):
            template.ChatTemplate(broken, {}).render(messages, answer_next=False)


def test_the_simple_template_ends_every_answer() -> None:
    made_ = template.ChatTemplate(template.SIMPLE, {"bos_token": "<s>", "eos_token": "</s>"})
    said = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]
    assert made_.render(said, answer_next=False) == "<s>S\n\n### User:\nU\n\n### Assistant:\nA</s>\n\n"
    assert made_.render(said[:2], answer_next=True) == "<s>S\n\n### User:\nU\n\n### Assistant:\n"
