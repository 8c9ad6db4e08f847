"""The command line: exit codes, one sentence for each fault, and no traceback."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from strix_finetune import cli, errors
from strix_finetune.errors import Place, Problem

# one value of each kind of error that is shown to people
SHOWN = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.StrixError)
]  # fmt: skip


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Put a function in the place of the command `plan`."""

    def put(work: Callable[[], object]) -> None:
        module = types.ModuleType("commands_of_a_test")
        module.plan = click.command("plan")(work)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "commands_of_a_test", module)
        monkeypatch.setitem(cli.COMMANDS, "plan", ("commands_of_a_test:plan", "A test."))

    return put


def raising(error: BaseException) -> Callable[[], object]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(("result", "code"), [(0, 0), (1, 1), (None, 0), ("text", 0)])
def test_results(command: Callable[..., None], result: object, code: int) -> None:
    command(lambda: result)
    assert cli.main(["plan"]) == code


@pytest.mark.parametrize("kind", SHOWN)
def test_faults_are_sentences(
    command: Callable[..., None], kind: type[errors.StrixError], capsys: pytest.CaptureFixture[str]
) -> None:
    command(raising(kind(Problem("it is wrong", Place(Path("f.toml"), 3), "mend it"))))
    assert cli.main(["plan"]) == kind.exit_code
    assert capsys.readouterr() == ("", "error: f.toml:3: it is wrong; mend it\n")


def test_exit_codes_of_faults() -> None:
    assert {kind.__name__ for kind in SHOWN if kind.exit_code == 2} == {
        "InputError",
        "DefinitionError",
        "TemplateError",
        "LockError",
    }
    assert {kind.exit_code for kind in SHOWN} == {1, 2}


def test_several_faults_are_several_lines(command: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(errors.DefinitionError([Problem("one"), Problem("two", Place(Path("x")))])))
    assert cli.main(["plan"]) == 2
    assert capsys.readouterr().err == "error: one\nerror: x: two\n"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 1, "/x/y: no space left on device; free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "error: /x: permission denied"),
        (OSError("odd"), 1, "error: odd"),
        (KeyboardInterrupt(), 130, "interrupted; what was finished is kept, the next run goes on from there"),
        (EOFError(), 130, "interrupted; "),
        (click.Abort(), 130, "interrupted; "),
        (click.UsageError("Wrong."), 2, "error: wrong; see "),
        (click.ClickException("Odd"), 1, "error: Odd"),
        (click.FileError("x", "gone"), 1, "error: "),
        (ZeroDivisionError("a\nb"), 1, "error: a fault in strix-finetune itself (ZeroDivisionError: a); please"),
        (RecursionError(), 1, "error: a fault in strix-finetune itself (RecursionError); please report it"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), 1, "in strix-finetune itself (UnicodeDecodeError: "),
    ],
)  # fmt: skip
def test_everything_else_is_a_sentence_too(
    command: Callable[..., None],
    error: BaseException,
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command(raising(error))
    assert cli.main(["plan"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    # the traceback of a fault of our own is kept for the report
    kept = list(tmp_path.glob("strix-finetune-*.txt"))
    assert len(kept) == ("a fault in strix-finetune itself" in err)
    assert all("Traceback" in path.read_text() and str(path) in err for path in kept)


def test_a_fault_of_our_own_on_a_full_disk(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere/at/all")
    command(raising(ZeroDivisionError("x")))
    assert cli.main(["plan"]) == 1
    assert capsys.readouterr().err.endswith("(ZeroDivisionError: x); please report it\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["biuld"], "there is no command 'biuld'; did you mean 'build'?"),
        (["zzz"], "there is no command 'zzz'; known: " + ", ".join(sorted(cli.COMMANDS))),
        (["build", "--taget", "x"], "there is no option '--taget'; did you mean '--target'?"),
        (["build", "--engine", "dcker"], "--engine cannot be 'dcker'; did you mean 'docker'?"),
        (["build", "--jobs", "x"], "invalid value for '--jobs' / '-j': 'x' is not a valid integer range; see"),
        (["build", "--jobs", "0"], "invalid value for '--jobs' / '-j': 0 is not in the range 1<=x<=64; see"),
        (["build", "--jobs"], "option '--jobs' requires an argument; see"),
        (["build", "-z"], "there is no option '-z'; "),
        (["--verison"], "there is no option '--verison'; did you mean '--version'?"),
    ],
)
def test_mistyped_words(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {sentence}")
    assert err.count("\n") == 1


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([])
    out, err = capsys.readouterr()
    assert (out + err).startswith("Usage: strix-finetune")
    assert "error:" not in out + err


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_lists_every_command(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([option]) == 0
    out = capsys.readouterr().out
    for name, (_, text) in cli.COMMANDS.items():
        assert f"\n  {name} " in out
        assert text in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"strix-finetune, version {version('strix-finetune')}\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_can_be_called(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, attribute = cli.COMMANDS[name][0].split(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, click.Command)
    assert cli.main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: strix-finetune {name}")


# as a process


def process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_help_imports_no_command() -> None:
    done = process("-X", "importtime", "-m", "strix_finetune", "--help")
    assert done.returncode == 0
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    ours = {name for name in imported if name.startswith("strix_finetune")}
    assert ours == {"strix_finetune", "strix_finetune.fast", "strix_finetune.cli", "strix_finetune.errors"}
    assert not imported & {"jinja2", "pydantic", "docker", "rich", "requests"}


def test_exit_codes_reach_the_shell(tmp_path: Path) -> None:
    assert process("-m", "strix_finetune", "biuld").returncode == 2
    done = process("-m", "strix_finetune", "plan", "--images", str(tmp_path / "none"), cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no folder of layers; name it with --images" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "strix_finetune", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


LATE = """
import sys, types, click
from strix_finetune import cli
module = types.ModuleType("late")
module.plan = click.command()(lambda: print("small enough to wait in a buffer"))
sys.modules["late"] = module
cli.COMMANDS["plan"] = ("late:plan", "")
sys.exit(cli.main(["plan"]))
"""


def test_a_reader_that_goes_before_the_buffer_is_written() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", LATE], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


WAITS = """
import sys, types, click, time
from strix_finetune import cli, __main__
def wait():
    print("waiting", flush=True)
    time.sleep(30)
module = types.ModuleType("waits")
module.plan = click.command()(wait)
sys.modules["waits"] = module
cli.COMMANDS["plan"] = ("waits:plan", "")
sys.argv = ["strix-finetune", "plan"]
sys.exit(__main__.main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout
        assert running.stderr
        assert running.stdout.readline() == "waiting\n"
        began = time.monotonic()
        running.send_signal(number)
        assert running.wait(20) == 130
        assert time.monotonic() - began < 10
        said = running.stderr.read()
    assert "interrupted; what was finished is kept" in said
    assert "Traceback" not in said
