"""docs/recipes.md, from one's own rows to a chat: its commands, one after the other."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest
from workshop import ROOT, Done, Forks, Workshop

TEXT = (ROOT / "docs" / "recipes.md").read_text()
[WALK] = re.findall(r"## From your rows to a chat.*?```sh\n(.*?)```", TEXT, re.DOTALL)
[RECIPE] = re.findall(r"```yaml\n# my-recipe.yaml\n(.*?)```", TEXT, re.DOTALL)[:1]


@pytest.fixture(scope="module")
def walk(workshop: Workshop, forks: Callable[[str], Forks]) -> dict[str, Done]:
    """Run the commands on a tiny model and the workshop's rows; what is typed into the chat is said here."""
    assert "Qwen/Qwen3-4B-Instruct-2507" in RECIPE
    assert "data: rows.jsonl" in RECIPE
    (workshop.path / "my-recipe.yaml").write_text(RECIPE.replace("Qwen/Qwen3-4B-Instruct-2507", "llama"))
    found: dict[str, Done] = {}
    for line in WALK.splitlines():
        words = shlex.split(line)
        assert words[0] == "train"
        if words[1] != "chat":
            found[words[1]] = forks("unsloth").train(*words[1:])
            continue
        done = subprocess.run(
            [sys.executable, "-m", "strix_train", *words[1:]],
            cwd=workshop.path,
            env=workshop.environment(),
            input="What follows red?\n/new\nSay what comes after green.\n",
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        found["chat"] = Done(done.returncode, done.stdout, done.stderr)
    return found


def test_every_command_does_its_work(walk: dict[str, Done], workshop: Workshop) -> None:
    assert [*walk] == ["check", "my-recipe.yaml", "eval", "generate", "chat", "export"]
    assert {name: done.code for name, done in walk.items()} == dict.fromkeys(walk, 0), walk
    assert "perplexity" in walk["eval"].out
    assert walk["generate"].out.strip()
    assert len(walk["chat"].out.strip()) > 20
    assert "Traceback" not in walk["chat"].err
    assert (workshop.path / "my-run" / "report.html").is_file()
    assert (workshop.path / "my-run" / "export" / "merged" / "model.safetensors").is_file()


def test_a_chat_answers_as_a_question_is_answered(workshop: Workshop) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from strix_train.answers import ask
    from strix_train.chat import Chat
    from strix_train.recipe.schema import Question

    folder = str(workshop.path / "models" / "llama")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    question = Question.model_construct(prompt="What follows red?", expect="", system=None)
    [answer] = ask(model, tokenizer, [question], max_new_tokens=24)
    chat = Chat(model, tokenizer, system=None, max_new_tokens=24, temperature=0.0)
    shown: list[str] = []
    said = chat.say("What follows red?", shown.append)
    # bytes that make no character are held back
    assert said.rstrip("\ufffd") == answer.text.rstrip("\ufffd")
    assert "".join(shown).strip() == said
    chat.say("And then?", shown.append)
    assert [turn["role"] for turn in chat.turns] == ["user", "assistant"] * 2
    # what was said is part of the next question
    assert said in tokenizer.decode(chat.prompt())
