"""Every command that README.md and docs/ print is run by a test, or read here as the program would read it.

Commands of this project are taken apart by the program's own parser, with all their options and values; `emit` is run.
Of other programs each is in a table: which test runs it, or why none can.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from strix_finetune import cli
from strix_train.cli import cli as train

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```([a-z]*)\n(.*?)^```", re.M | re.S)
# what a block is when it holds no commands
OTHER_THINGS = ("yaml", "toml", "json", "jsonl", "dockerfile", "ini")
OURS = ("strix-finetune", "train", "make", "pytest", "python -m bench")
# a command's beginning → the test that runs it
RUN_BY = {
    "docker run --rm": "tests/e2e/test_readme.py",
    "docker run": "tests/e2e/test_tools.py",
    "docker compose run": "tests/e2e/test_tools.py",
    "./strix.sh train": "tests/engine/test_emitted.py",
    "distrobox assemble": "tests/e2e/test_tools.py",
    "distrobox create": "tests/engine/test_emitted.py",
    "distrobox enter": "tests/e2e/test_tools.py",
    "toolbox create": "tests/e2e/test_podman.py",
    "toolbox enter": "tests/e2e/test_podman.py",
    "toolbox run": "tests/e2e/test_podman.py",
    "llama-server": "images/export/smoke/converts.py",
    "docker buildx bake": "tests/engine/test_emitted.py",
    "mkdir -p": "tests/e2e/test_tools.py",
    "sbatch": "tests/e2e/test_slurm.py",
}
# a command's beginning → why no test runs it
NOT_RUN = {
    "docker run --device /dev/kfd": "needs an AMD GPU",
    "systemctl --user": "needs a user manager of systemd, which no container has; the units are read by its verifier",
    "podman exec -it strix-finetune": "enters what systemd has started",
    "ollama create": "needs Ollama, which no archive has; the Modelfile is read by tests/unit/test_train_modelfile.py",
    "ssh -L": "needs another machine",
    "cp -r": "copies what only a host with an AMD GPU has",
    "cp -rL": "copies what only a host with an AMD GPU has",
    "python -m bench.gpu_runs": "needs a GPU",
    "python -m bench.gpu_cluster": "needs GPUs; --tiny is run on a CPU",
    "python -m bench.gpu_speed": "needs a GPU",
    "python -m bench.gpu_rounding": "needs a GPU; its --tiny is run on a CPU by tests/train",
    "cp --parents": "copies what only a host with an AMD GPU has",
    "stat -c": "looks at device files of an AMD GPU",
    "sudo firewall-cmd": "would open the firewall of whoever runs the tests",
    "sudo ufw": "would open the firewall of whoever runs the tests",
    "sudo sysctl": "would change the network of whoever runs the tests",
    "docker login": "needs an account at a registry",
    "podman login": "needs an account at a registry",
    "docker builder prune": "would empty the caches of whoever runs the tests",
    "kubectl": "needs a cluster; what is applied is held against the API's models by tests/unit/test_kubernetes.py",
    "podman image prune": "would empty the store of whoever runs the tests",
}
# commands of the driver that no test calls by name → the test of what they call
CALLED_OTHERWISE = {"diff": "tests/unit/test_oci_difference.py"}
PROGRAMS = {key.split()[0] for key in (*OURS, *RUN_BY, *NOT_RUN)}


@dataclass(frozen=True)
class Shown:
    """A command as a page shows it, without comment."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def lines(page: Path) -> Iterator[tuple[str, bool]]:
    """What may be a command: each line of the code blocks (True), and each piece of code in the text (False)."""
    text = page.read_text("utf-8")
    for language, block in BLOCK.findall(text):
        if language in OTHER_THINGS or "─" in block:
            continue
        typed = re.findall(r"^\$ (.*)", block, re.M)
        for line in typed or block.splitlines():
            # a sentence of ours that is shown as an error is no command
            if line.strip() and not line.startswith("error: "):
                yield line.strip(), True
    for piece in re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)):
        # two words only name a command that is spoken of
        if len(piece.split()) > 2 and piece.split()[0] in PROGRAMS - {"mkdir", "cp", "stat", "train"}:
            yield piece, False


def shown() -> dict[Shown, bool]:
    """Every command with whether it stands in a block; a comment stands behind spaces or a sign."""
    found: dict[Shown, bool] = {}
    for page in PAGES:
        for line, whole in lines(page):
            for part in re.split(r"   |\s#\s", line)[0].split(" && "):
                if not part.startswith("cd "):
                    command = Shown(page.name, re.sub(r"^\S*/(?=strix-finetune )", "", part.strip()))
                    found[command] = found.get(command, False) or whole
    return found


COMMANDS = shown()


def begins(text: str, known: dict[str, str]) -> str:
    """The longest key of `known` that the command begins with."""
    return max((key for key in known if text == key or text.startswith(f"{key} ")), key=len, default="")


def of(program: str) -> list[Shown]:
    return [each for each in COMMANDS if each.text == program or each.text.startswith(f"{program} ")]


def parsed(group: click.Command, words: list[str], name: str) -> list[str]:
    """Let the program read its words, and run nothing; returns the names of the commands."""
    context = group.make_context(name, words, resilient_parsing=False)
    names = []
    while isinstance(group, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            break
        found, command, rest = group.resolve_command(context, rest)
        assert found
        assert command
        names.append(found)
        group, context = command, command.make_context(found, list(rest), parent=context)
    return names


def test_pages_show_commands() -> None:
    assert len(of("strix-finetune")) > 40
    assert len(of("train")) > 10


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_each_command_is_known(command: Shown) -> None:
    """Where this fails: name the test that runs the new command, or the reason why none can."""
    assert begins(command.text, dict.fromkeys(OURS, "")) or begins(command.text, RUN_BY | NOT_RUN)


@pytest.mark.parametrize("command", [each for each in of("strix-finetune") if COMMANDS[each]], ids=str)
def test_the_driver_reads_it(command: Shown) -> None:
    assert parsed(cli.root, shlex.split(command.text.replace("…", "x"))[1:], "strix-finetune")


@pytest.mark.parametrize(
    "name", sorted({shlex.split(each.text)[1] for each in of("strix-finetune")} & cli.COMMANDS.keys())
)
def test_a_test_runs_each_command_that_is_shown(name: str) -> None:
    if name in CALLED_OTHERWISE:
        assert name in (ROOT / CALLED_OTHERWISE[name]).read_text("utf-8")
        return
    assert any(re.search(rf"""[(\[]\s*\*?\(?["']{name}["']""", text) for text in texts_of_tests())


def texts_of_tests() -> list[str]:
    return [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]


@pytest.mark.parametrize("command", [each for each in of("train") if COMMANDS[each]], ids=str)
def test_train_reads_it(command: Shown) -> None:
    assert parsed(train, shlex.split(command.text.replace("…", "x"))[1:], "train")


@pytest.mark.parametrize("command", [each for each in of("strix-finetune emit") if COMMANDS[each]], ids=str)
def test_emit_writes_it(command: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("secret\n")
    words = shlex.split(command.text)[1:]
    # a machine without a GPU has no groups to find out
    more = ["-t", "cpu"] if "compose" in words and "-t" not in words else []
    assert cli.main([words[0], words[1], *more, *words[2:]]) == 0


@pytest.mark.parametrize("command", of("make"), ids=str)
def test_make_would_do_it(command: Shown) -> None:
    words = ["make", "--dry-run", *shlex.split(command.text)[1:]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", of("pytest"), ids=str)
def test_pytest_finds_its_files(command: Shown) -> None:
    assert [word for word in command.text.split() if word.startswith("tests/")]
    assert all((ROOT / word).exists() for word in command.text.split() if word.startswith("tests/"))


@pytest.mark.parametrize("command", of("python -m bench"), ids=str)
def test_bench_has_it(command: Shown) -> None:
    from bench.__main__ import BENCHES

    assert command.text.split()[3] in BENCHES


def test_the_tables_are_true() -> None:
    """A test that is named exists and has the words of the command; nothing is in the tables that no page shows."""
    others = [each.text for each in COMMANDS if not begins(each.text, dict.fromkeys(OURS, ""))]
    used = {begins(text, RUN_BY | NOT_RUN) for text in others}
    assert set(RUN_BY) | set(NOT_RUN) <= used, "take these out of the tables"
    for beginning, file in RUN_BY.items():
        text = (ROOT / file).read_text("utf-8")
        program = Path(beginning.split()[0]).name.removesuffix(".sh")
        assert program in text, f"{file} does not run {beginning}"
