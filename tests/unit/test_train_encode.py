"""Which tokens count in the loss: on templates like those of real model families, with a tokenizer of a few lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, TemplateError

from strix_train.data.rows import Continuation, Conversation, Row, Turn
from strix_train.encode import IGNORED, Encoded, Span, encoder
from strix_train.errors import InputError, Place

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Trims the texts and refuses a system turn in the wrong place, like Gemma's.
GEMMA = (
    "<bos>{% for m in messages %}{% if (m.role == 'assistant') != (loop.index0 % 2 == 1) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# Puts an empty thought before the last answer only, like Qwen3's.
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The generation prompt opens a thought that a trained answer does not have, like DeepSeek-R1's.
THINKER = (
    "{% for m in messages %}{{ '<|User|>' if m.role == 'user' else '<|Assistant|>' }}{{ m.content }}"
    "{% if m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} </s>"
    "{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "gemma": GEMMA, "qwen3": QWEN3, "thinker": THINKER, "llama2": LLAMA2}

_TOKEN = re.compile(r"<\|[^|<>]+\|>|<bos>|<(?:start|end)_of_turn>|</?s>|\w+|\s+|.", re.DOTALL)
_ENDS = {"<|im_end|>", "<end_of_turn>", "<|end|>", "</s>"}
PLACE = Place("d.jsonl", 1)


class Words:
    """A tokenizer whose tokens are words, spaces and marks."""

    bos = ""
    eos = "</s>"

    def __init__(self, template: str = "") -> None:
        self.has_template = bool(template)
        self.known: list[str] = []
        self._template = Environment().from_string(template)

    def render(self, messages: Sequence[dict[str, str]], *, answer_next: bool) -> str:
        def refuse(why: str) -> None:
            raise TemplateError(why)

        try:
            return self._template.render(messages=messages, add_generation_prompt=answer_next, raise_exception=refuse)
        except TemplateError as error:
            raise ValueError(str(error)) from error

    def tokens(self, text: str) -> tuple[list[int], list[Span]]:
        found = list(_TOKEN.finditer(text))
        self.known += [each.group() for each in found if each.group() not in self.known]
        return [self.known.index(each.group()) for each in found], [each.span() for each in found]

    def is_end(self, token: int) -> bool:
        return self.known[token] in _ENDS

    def learned(self, row: Encoded) -> str:
        """Return the text that counts in the loss, with a bar between separate parts."""
        parts: list[str] = []
        for index, label in enumerate(row.labels):
            if label == IGNORED:
                continue
            new = index == 0 or row.labels[index - 1] == IGNORED
            parts += ["|"] if new and parts else []
            parts.append(self.known[label])
        return "".join(parts)


def talk(*contents: str, system: str = "") -> Conversation:
    turns = [Turn("system", system, False)] if system else []
    for index, content in enumerate(contents):
        turns.append(Turn(("user", "assistant")[index % 2], content, index % 2 == 1))
    return Conversation(tuple(turns), PLACE)


def encode(words: Words, row: Row, *, template: str = "auto", only: bool = True, length: int = 1000) -> Encoded:
    return encoder(words, template=template, responses_only=only, max_length=length)(row)


@pytest.mark.parametrize(
    ("name", "learned"),
    [
        ("chatml", "yes, it is<|im_end|>|no<|im_end|>"),
        ("gemma", "yes, it is<end_of_turn>|no<end_of_turn>"),
        ("qwen3", "yes, it is<|im_end|>|<think>\n\n</think>\n\nno<|im_end|>"),
        ("thinker", "yes, it is<|end|>|no<|end|>"),
        ("llama2", " yes, it is </s>| no </s>"),
    ],
)
def test_the_answers_and_their_ends_are_learned_and_nothing_else(name: str, learned: str) -> None:
    words = Words(TEMPLATES[name])
    row = encode(words, talk("is it?", "yes, it is", "and that?", "no"))
    assert words.learned(row) == learned
    assert len(row.ids) == len(row.labels)
    assert all(label in (IGNORED, token) for token, label in zip(row.ids, row.labels, strict=True))


def test_the_tokens_are_those_of_the_whole_text() -> None:
    words = Words(CHATML)
    row = encode(words, talk("q", "a", system="s"))
    assert "".join(words.known[token] for token in row.ids) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    )


def test_an_answer_that_the_question_also_holds_is_found_in_its_place() -> None:
    words = Words(CHATML)
    row = encode(words, talk("say yes", "yes", "say yes again", "yes"))
    assert words.learned(row) == "yes<|im_end|>|yes<|im_end|>"
    assert row.labels.count(IGNORED) == len(row.labels) - 4


def test_turns_that_are_not_learned_stay_masked() -> None:
    words = Words(CHATML)
    turns = (
        Turn("user", "a", False),
        Turn("assistant", "b", False),
        Turn("user", "c", False),
        Turn("assistant", "d", True),
    )
    assert words.learned(encode(words, Conversation(turns, PLACE))) == "d<|im_end|>"


def test_everything_is_learned_on_request() -> None:
    words = Words(CHATML)
    row = encode(words, talk("q", "a"), only=False)
    assert row.labels == row.ids


def test_prompt_and_completion_take_the_template_where_there_is_one() -> None:
    words = Words(CHATML)
    row = encode(words, Continuation("q", "a", PLACE))
    assert words.learned(row) == "a<|im_end|>"
    plain = encode(words, Continuation("q ", "a b", PLACE), template="plain")
    assert words.learned(plain) == "a b</s>"
    assert "".join(words.known[token] for token in plain.ids) == "q a b</s>"


def test_prompt_and_completion_without_a_template_end_with_the_end_token_once() -> None:
    words = Words()
    assert words.learned(encode(words, Continuation("q ", "a", PLACE))) == "a</s>"
    assert words.learned(encode(words, Continuation("q ", "a</s>", PLACE))) == "a</s>"


def test_the_beginning_mark_is_put_in_front_of_plain_text() -> None:
    words = Words()
    words.bos = "<s>"
    row = encode(words, Continuation("q ", "a", PLACE))
    assert "".join(words.known[token] for token in row.ids) == "<s>q a</s>"
    assert words.learned(row) == "a</s>"


def test_a_long_row_is_cut_and_says_so() -> None:
    words = Words(CHATML)
    row = encode(words, talk("q", "a b c d"), length=12)
    assert (len(row.ids), row.cut) == (12, True)
    lost = encode(words, talk("q q q q q q q q", "a"), length=8)
    assert (lost.learned, lost.cut) == (0, True)
    assert encode(words, talk("q", "a")).cut is False


def test_conversations_without_a_template_are_refused() -> None:
    with pytest.raises(InputError, match=r"d.jsonl:1: the rows are .* no chat template; write data.template: simple,"):
        encode(Words(), talk("q", "a"))


def test_what_the_template_refuses_is_told_with_the_row() -> None:
    with pytest.raises(InputError, match=r"d.jsonl:1: the model's chat template refuses .*: roles must alternate"):
        encode(Words(GEMMA), talk("q", "a", system="s"))


def test_a_template_that_drops_the_answers_is_refused() -> None:
    with pytest.raises(InputError, match="its answers cannot be found in it; write responses_only: false"):
        encode(Words(CHATML.replace("m.content", "'x'")), talk("q", "a0"))


def test_a_template_that_rewrites_the_answers_is_followed() -> None:
    words = Words(CHATML.replace("m.content", "m.content | upper"))
    assert words.learned(encode(words, talk("q", "yes"))) == "YES<|im_end|>"


_WORDS = st.text(alphabet="ab <|>_\n./é😀'", min_size=1, max_size=12).filter(lambda text: bool(text.strip()))


@given(st.sampled_from(sorted(TEMPLATES)), st.lists(st.tuples(_WORDS, _WORDS), min_size=1, max_size=3))
def test_every_answer_of_any_talk_is_learned_whole(name: str, pairs: list[tuple[str, str]]) -> None:
    words = Words(TEMPLATES[name])
    row = encode(words, talk(*[content for pair in pairs for content in pair]))
    learned = words.learned(row)
    rest = learned
    for _, answer in pairs:
        at = rest.find(answer.strip())
        assert at >= 0, (learned, answer)
        rest = rest[at + len(answer.strip()) :]
    assert row.learned < len(row.ids)
