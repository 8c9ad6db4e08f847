"""docs/recipes.md, from one's own rows to a chat: its commands, one after the other."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models as tiny
from workshop import ROOT, Done, Workshop

TEXT = (ROOT / "docs" / "recipes.md").read_text()
[WALK] = re.findall(r"## From your rows to a chat.*?```sh\n(.*?)```", TEXT, re.DOTALL)
[RECIPE] = re.findall(r"```yaml\n# my-recipe.yaml\n(.*?)```", TEXT, re.DOTALL)[:1]


@pytest.fixture(scope="module")
def walk(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Done]]:
    """Run the commands on a tiny model; what is typed into the chat is said here."""
    folder = tmp_path_factory.mktemp("walk")
    tiny.write_rows(folder / "rows.jsonl", tiny.rows(40))
    assert "Qwen/Qwen3-4B-Instruct-2507" in RECIPE
    (folder / "my-recipe.yaml").write_text(RECIPE.replace("Qwen/Qwen3-4B-Instruct-2507", "llama"))
    found: dict[str, Done] = {}
    for line in WALK.splitlines():
        words = shlex.split(line)
        assert words[0] == "train"
        done = subprocess.run(
            [sys.executable, "-m", "strix_train", *words[1:]],
            cwd=folder,
            env=workshop.environment(),
            input="What follows red?\n/new\nSay what comes after green.\n" if words[1] == "chat" else "",
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        found[words[1]] = Done(done.returncode, done.stdout, done.stderr)
    return folder, found


def test_every_command_does_its_work(walk: tuple[Path, dict[str, Done]]) -> None:
    folder, found = walk
    assert [*found] == ["check", "my-recipe.yaml", "eval", "generate", "chat", "export"]
    assert {name: done.code for name, done in found.items()} == dict.fromkeys(found, 0), found
    assert "perplexity" in found["eval"].out
    assert found["generate"].out.strip()
    assert (folder / "my-run" / "report.html").is_file()
    assert (folder / "my-run" / "export" / "merged" / "model.safetensors").is_file()


def test_the_chat_answers_as_generate_does(walk: tuple[Path, dict[str, Done]]) -> None:
    _, found = walk
    # so few steps teach a model of no size nothing: what it says is nonsense, and the same nonsense
    said = found["generate"].out.strip()
    assert len(said) > 20
    assert found["chat"].out.startswith(said[:20])
    assert "Traceback" not in found["chat"].err
