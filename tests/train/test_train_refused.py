"""What `train generate`, `train chat` and `train eval` cannot do is said in one sentence, with exit code 2."""

from __future__ import annotations

import shutil

import pytest
import tiny_models as tiny
from workshop import Done, Workshop

NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


@pytest.fixture(scope="module")
def done(workshop: Workshop) -> dict[str, Done]:
    """The commands, in one process."""
    models, folder = workshop.path / "models", workshop.path
    shutil.copytree(models / "llama", models / "nosys")
    (models / "nosys" / "chat_template.jinja").write_text(NO_SYSTEM + tiny.CHATML)
    shutil.copytree(models / "llama", models / "notok", ignore=shutil.ignore_patterns("tokenizer*", "chat_*"))
    system = '{"prompt": "Hello?", "system": "Be brief."}\n'
    (folder / "system.jsonl").write_text(system)
    commands: dict[str, list[str]] = {
        "generate": ["generate", "nosys", "--system", "Be brief.", "-p", "What follows red?"],
        "file": ["generate", "nosys", "--prompts", "system.jsonl"],
        "chat": ["chat", "nosys", "--system", "Be brief."],
        "prompt": ["generate", "llama", "-p", "na\udcefve?"],
        "system": ["generate", "llama", "-p", "Hello?", "--system", "na\udcefve"],
        "chat-system": ["chat", "llama", "--system", "na\udcefve"],
        "no-tokenizer": ["generate", "notok", "-p", "Hello?"],
        "without": ["generate", "nosys", "-p", "What follows red?", "--max-new-tokens", "2"],
    }
    return dict(zip(commands, workshop.several(list(commands.values())), strict=True))


@pytest.mark.parametrize(("name", "asked"), [("generate", "What follows red?"), ("file", "Hello?"), ("chat", "Hello")])
def test_a_system_message_that_the_template_refuses(done: dict[str, Done], name: str, asked: str) -> None:
    assert done[name].code == 2
    assert done[name].err.endswith(
        f"train: the model's chat template refuses a system message before '{asked}': System role not supported; "
        "write it in front of the question instead\n"
    )
    assert done["without"].code == 0, done["without"].err


@pytest.mark.parametrize("name", ["prompt", "system", "chat-system"])
def test_words_that_are_no_text(done: dict[str, Done], name: str) -> None:
    """As a terminal of another encoding hands them over: halves of characters."""
    assert done[name].code == 2
    assert done[name].err == (
        f"train: --{name.removeprefix('chat-')} is no UTF-8; let the terminal, or the script, have that encoding\n"
    )


def test_a_model_without_its_tokenizer(done: dict[str, Done], workshop: Workshop) -> None:
    assert done["no-tokenizer"].code == 2
    folder = workshop.path / "models" / "notok"
    assert done["no-tokenizer"].err == (
        f"train: the model in {folder} has no tokenizer; add the tokenizer.json that it came with\n"
    )
