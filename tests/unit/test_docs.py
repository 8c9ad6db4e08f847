"""What README.md and docs/ claim of commands, files and modules is so."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from strix_finetune import cli
from strix_finetune.load import load
from strix_finetune.paths import find

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.M | re.S)


def code(page: Path) -> Iterator[str]:
    """Each line of the code blocks of a page, and each piece of code in its text."""
    text = page.read_text("utf-8")
    for block in BLOCK.findall(text):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))


def commands() -> list[tuple[str, str]]:
    """(page, words behind `strix-finetune`) of every command line that is shown."""
    found = []
    for page in PAGES:
        for line in code(page):
            # a comment stands behind a few spaces or a sign
            match = re.match(r"(?:\S*/)?strix-finetune ([a-z].*)", re.split(r"   |#|;|\|", line.strip())[0].strip())
            if match:
                found.append((page.name, match[1]))
    return found


def context(name: str) -> tuple[click.Command, click.Context]:
    root = click.Context(cli.root)
    command = cli.root.get_command(root, name)
    assert command, f"there is no command '{name}'"
    return command, click.Context(command, info_name=name, parent=root)


def test_there_are_commands_in_the_pages() -> None:
    assert len({words.split()[0] for _, words in commands()}) >= 10


@pytest.mark.parametrize(("page", "words"), commands())
def test_a_command_that_is_shown_exists_with_its_options(page: str, words: str) -> None:
    name, *rest = words.split()
    command, where = context(name)
    if isinstance(command, click.Group) and rest:
        inner = command.get_command(where, rest[0])
        assert inner, f"{page}: there is no command '{name} {rest[0]}'"
        command, where = inner, click.Context(inner, info_name=rest[0], parent=where)
    known = {option for parameter in command.get_params(where) for option in parameter.opts}
    passes_on = bool(command.context_settings.get("ignore_unknown_options"))
    for word in rest:
        if word == "--" or (passes_on and not word.startswith("-")):
            break
        if word.startswith("-"):
            assert word.partition("=")[0].rstrip(",.`") in known, f"{page}: '{name}' has no option {word}"


def test_every_goal_of_make_that_is_shown_exists() -> None:
    text = (ROOT / "Makefile").read_text()
    goals = set(re.findall(r"^([a-z][a-z-]*):", text, re.M))
    shown = {
        match[1] for page in PAGES for line in code(page) if (match := re.match(r"make ([a-z][a-z-]*)", line.strip()))
    }
    assert {"demo", "image", "test"} <= shown <= goals


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_override_of_the_readme_is_one(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    [example] = [block for block in BLOCK.findall(text) if block.startswith("# override.toml")]
    (tmp_path / "override.toml").write_text(example)
    for layer in tomllib.loads(example)["layers"].values():
        for patch in layer.get("patches", []):
            (tmp_path / patch).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / patch).write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    project = load(find().images, tmp_path)
    changed = {name for name, layer in project.layers.items() if layer.edit}
    assert changed == set(tomllib.loads(example)["layers"])


def test_every_command_with_json_has_a_description_of_it() -> None:
    text = (ROOT / "docs/json.md").read_text("utf-8")
    for name in cli.COMMANDS:
        command, where = context(name)
        options = {option for parameter in command.get_params(where) for option in parameter.opts}
        if "--json" in options:
            assert re.search(rf"`{name}(?: --[a-z]+)* --json|`{name}`", text), f"docs/json.md does not tell of {name}"


def test_the_map_of_the_code_has_every_module() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    part = text.partition("### `src/strix_finetune`")[2].partition("### `src/strix_train`")[0]
    named = set(re.findall(r"[\w/]+", " ".join(re.findall(r"`([^`]+)`", part))))
    package = ROOT / "src/strix_finetune"
    here = {path.stem for path in package.glob("*.py")} - {"__init__"}
    here |= {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    missing = {name for name in here if name not in named and name.rstrip("/") not in named}
    assert not missing, "say in docs/architecture.md what these are for"
