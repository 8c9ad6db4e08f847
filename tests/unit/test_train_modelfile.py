"""Ollama's template, found out from chat templates of the shapes that models have."""

from __future__ import annotations

import pytest
from jinja2 import Environment

from strix_train.export.modelfile import Messages, Turns, find_turns, modelfile

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' and default %}"
    "{{ '<|im_start|>system\n' + default + '<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ '<bos>' }}{% for m in messages %}{% if m.role == 'system' %}{{ raise('System role not supported') }}{% endif %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
)
HARMONY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{% else %}"
    "{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)


def turns(template: str, bos: str = "", default: str = "") -> Turns | None:
    def refuse(text: str) -> str:
        raise ValueError(text)

    made = Environment().from_string(template)
    made.globals["raise"] = refuse

    def render(messages: Messages) -> str:
        return made.render(messages=messages, add_generation_prompt=True, default=default)

    return find_turns(render, bos)


def test_chatml() -> None:
    assert turns(CHATML) == Turns(
        system=("<|im_start|>system\n", "<|im_end|>\n"),
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        answer="<|im_start|>assistant\n",
    )


def test_a_system_message_of_the_models_own() -> None:
    found = turns(CHATML, default="You are helpful.")
    assert found is not None
    assert found.default_system() == "You are helpful."
    assert found.user == ("<|im_start|>user\n", "<|im_end|>\n")
    text = modelfile("m.gguf", found, ["<|im_end|>"], {})
    assert 'SYSTEM """You are helpful."""' in text
    assert text.count("You are helpful.") == 1


def test_families_with_a_first_token() -> None:
    gemma = turns(GEMMA, "<bos>")
    assert gemma == Turns(
        system=None,
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
        answer="<start_of_turn>model\n",
    )
    llama = turns(LLAMA3, "<|begin_of_text|>")
    assert llama is not None
    assert llama.system == ("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>")
    assert llama.assistant == ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>")


def test_questions_and_answers_may_end_differently() -> None:
    found = turns(MISTRAL, "<s>")
    assert found is not None
    assert (found.user, found.assistant, found.answer) == (("[INST]", "[/INST]"), ("", "</s>"), "")


def test_what_is_not_turn_by_turn_is_left_to_ollama() -> None:
    assert turns(HARMONY) is None
    assert turns("{{ messages[-1].content }}") is None
    assert turns("{% for m in messages %}{{ m.content }}{% endfor %}{{ messages | length }}") is None
    assert modelfile("m.gguf", None, [], {}) == (
        "FROM ./m.gguf\n# the chat template is in the file; Ollama finds it there where it knows it\n"
    )


@pytest.mark.parametrize(("template", "bos"), [(CHATML, ""), (GEMMA, "<bos>"), (MISTRAL, "<s>")])
def test_the_modelfile_renders_conversations_as_the_model_does(template: str, bos: str) -> None:
    """Ollama's template language is close enough to Jinja's that this one template can be read by both."""
    found = turns(template, bos)
    text = modelfile("model-q8_0.gguf", found, ["<|im_end|>", "<eos>", "<eos>"], {"temperature": 0.6, "top_k": 20})
    assert text.startswith('FROM ./model-q8_0.gguf\nTEMPLATE """')
    assert text.endswith(
        'PARAMETER stop "<|im_end|>"\nPARAMETER stop "<eos>"\nPARAMETER temperature 0.6\nPARAMETER top_k 20\n'
    )
    go = text.split('"""')[1]
    jinja = go.replace("{{ range .Messages }}", "{% for m in messages %}").replace("{{ .Content }}", "{{ m.content }}")
    for role in ("system", "user", "assistant"):
        jinja = jinja.replace(f'{{{{ if eq .Role "{role}" }}}}', f"{{% if m.role == '{role}' %}}")
    before, last = jinja.rsplit("{{ end }}", 1)
    jinja = before.replace("{{ end }}", "{% endif %}") + "{% endfor %}" + last
    made = Environment(keep_trailing_newline=True)
    user, answer = {"role": "user", "content": "How?"}, {"role": "assistant", "content": "So."}
    for messages in ([user], [user, answer, user], [user, answer, user, answer, user]):
        expected = made.from_string(template).render(messages=messages, add_generation_prompt=True, default="")
        assert bos + made.from_string(jinja).render(messages=messages) == expected


def test_text_that_looks_like_the_template_language_is_kept() -> None:
    found = turns(
        "{% for m in messages %}{{ '{{' + m.role + '}}' + m.content + '<e>' }}{% endfor %}{{ '{{assistant}}' }}"
    )
    assert found is not None
    assert '{{ "{{" }}user}}{{ .Content }}<e>' in modelfile("m.gguf", found, [], {})
