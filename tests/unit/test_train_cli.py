"""The command line of `train`: exit codes, sentences, and what it must not load."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strix_train import __version__, environment
from strix_train.__main__ import main
from strix_train.errors import Interrupted

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "strix_train").rglob("*.py"))
HEAVY = ("torch", "transformers", "numpy", "datasets", "peft", "trl", "unsloth", "matplotlib")


def python(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **env}, check=False, timeout=60
    )


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRIX_MODELS", str(tmp_path / "models"))
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.json").write_text("{}")
    (tmp_path / "d.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 2)
    path = tmp_path / "r.yaml"
    path.write_text("model: m\ndata: d.jsonl\nschedule: {steps: 1}\nbackend: hf\n")
    return path


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("check", "generate", "import", "recipes", "train RECIPE"):
        assert word in text
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out
    assert main([]) == 2


def test_check_looks_and_leaves_nothing(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in recipe.parent.iterdir())
    assert main(["check", str(recipe)]) == 0
    text = capsys.readouterr().out
    assert "rows       2 to train on" in text
    assert "train  d.jsonl     2  prompt-completion" in text
    assert "1 training rows repeat another one word for word" in text
    assert text.splitlines()[-1] == "no faults found"
    assert sorted(path.name for path in recipe.parent.iterdir()) == before


@pytest.mark.parametrize("words", [["check", "{r}"], ["{r}"], ["{r}", "--dry-run"], ["run", "{r}"]])
def test_a_wrong_recipe_is_exit_2_and_a_sentence(
    recipe: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    recipe.write_text(recipe.read_text().replace("steps", "stepz"))
    assert main([word.format(r=recipe) for word in words]) == 2
    err = capsys.readouterr().err
    assert f"train: {recipe}:3:12: unknown key 'stepz'; did you mean 'schedule.steps'?" in err
    assert "Traceback" not in err
    assert not (recipe.parent / "runs").exists()


def test_wrong_data_is_exit_2_with_its_line(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = recipe.parent / "d.jsonl"
    data.write_text(data.read_text() + '{"prompt": "a"}\n')
    assert main(["check", "r.yaml"]) == 2
    assert f"train: {data}:3:1: the row has no 'completion'" in capsys.readouterr().err


def test_half_a_character_of_a_key_is_told_as_json(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recipe.parent / "d.jsonl").write_text('{"prom\\ud83dpt": "q", "completion": "a"}\n')
    assert main(["check", "r.yaml", "--json"]) == 2
    printed = capsys.readouterr().out
    assert printed.encode()
    assert "'prom\\ud83dpt'" in json.loads(printed)["errors"][0]["cure"]
    # a name that is not UTF-8, as Python has it
    assert main(["check", "\udcff.yaml", "--json"]) == 2
    printed = capsys.readouterr().out
    assert printed.encode()
    assert json.loads(printed)["errors"][0]["message"] == "there is no recipe '\udcff.yaml'"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["chekc", "r.yaml"], "unexpected extra argument"),
        (["nope"], "there is no recipe 'nope'"),
        (["x" * 300], f"'{'x' * 40}…' is no name of a recipe; name a recipe file"),
        (["r.yaml", "--stes=1"], "No such option"),
        (["generate", "m"], "there is nothing to ask; give --prompt or --prompts FILE.jsonl"),
        (["generate", "nope", "-p", "x"], "there is no model 'nope'"),
        (["generate", "m", "-p", "x", "--temperature", "9"], "is not in the range"),
        (["import", "none.gguf", "out"], "none.gguf: cannot be read: No such file or directory"),
        (["import", "r.yaml", "out"], "r.yaml: is not a GGUF file; it would begin with the letters GGUF"),
        (["r.yaml", "--resume"], "train: "),
    ],
)
def test_wrong_words_are_exit_2_and_a_sentence(
    recipe: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert sentence.lower() in err.lower()
    assert all(line.startswith("train: ") for line in err.splitlines())


def test_a_run_that_has_no_adapter_yet(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recipe.parent / "run"
    run.mkdir()
    (run / "recipe.resolved.yaml").write_text("model: m\n")
    assert main(["generate", "run", "-p", "x"]) == 2
    assert "has no adapter yet" in capsys.readouterr().err


def test_the_dry_run_says_what_it_would_do(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from strix_train import backends

    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    monkeypatch.setenv("STRIX_CHANNEL_NOTICE", "Debian's CPU build of torch: no GPU will be used")
    assert main(["r.yaml", "--dry-run", "--set", "schedule.steps=7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"strix-train {__version__} · torch")
    assert lines[0].endswith("(Debian's CPU build of torch: no GPU will be used)")
    assert any(line.startswith("schedule  7 steps") for line in lines)
    assert not (recipe.parent / "runs").exists()


def test_without_the_libraries_the_sentence_says_what_to_install(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from strix_train import backends

    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert main(["r.yaml"]) == 2
    assert "backend hf needs transformers, which is not here; install" in capsys.readouterr().err
    assert main(["r.yaml", "--set", "backend=auto"]) == 2
    assert "neither Unsloth nor transformers with peft is installed here" in capsys.readouterr().err


def test_auto_takes_unsloth_where_it_is_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from strix_train import backends

    monkeypatch.setattr(backends, "find_spec", lambda name: None if name == "unsloth" else object())
    assert backends.choose("auto").name == "hf"
    assert backends.choose("auto").reason == "auto: Unsloth is not installed"
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    assert backends.choose("auto").name == "unsloth"
    assert backends.choose("hf") == backends.Choice("hf", "asked for", True)


def test_faults_of_our_own_are_a_sentence_and_a_kept_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from strix_train import names

    def broken() -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(names, "shipped_recipes", broken)
    assert main(["recipes"]) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError: of all things; the traceback is in " in err
    log = Path(err.split("the traceback is in ")[1].strip())
    assert "shipped_recipes" in log.read_text()
    log.unlink()


def test_an_interruption_is_exit_130(monkeypatch: pytest.MonkeyPatch) -> None:
    from strix_train import names

    def stopped() -> None:
        raise Interrupted("SIGTERM")

    monkeypatch.setattr(names, "shipped_recipes", stopped)
    assert main(["recipes"]) == 130


def test_recipes_lists_what_ships(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIX_RECIPES", str(ROOT / "recipes"))
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("demo ") for line in lines)
    assert lines[-1] == f"in {ROOT / 'recipes'}"


def test_a_reader_that_leaves_is_no_fault() -> None:
    command = f"{sys.executable} -m strix_train recipes 2>&1 | true"
    assert subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60).stderr == ""


def test_light_commands_load_nothing_heavy(recipe: Path) -> None:
    code = (
        "import sys\nfrom strix_train.__main__ import main\n"
        "for words in (['--help'], ['--version'], ['recipes'], ['check', 'r.yaml'], ['check', 'nope'],\n"
        "  ['estimate', 'llama3.1-8b-lora', '--device', 'h200'], ['bench', 'm', '--adapters', 'x']): main(words)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    assert python("-c", code).stderr.splitlines()[-1] == "[]"


def test_help_loads_nothing_but_click() -> None:
    """What makes it quick: bench/check.py has the time."""
    code = (
        "import sys; from strix_train.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "ours = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names\n"
        "print('loaded', *sorted(name for name in ours if not name.startswith('_')))"
    )
    assert python("-c", code).stdout.splitlines()[-1] == "loaded click strix_train"


# Triton compiles functions of a module; so this one needs torch when it is imported, and nothing imports it at once
KERNELS = "strix_train.lean.kernels"


@pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(ROOT / "src")) for path in SOURCES])
def test_no_module_knows_the_driver_or_loads_a_library_at_once(path: Path) -> None:
    tree = ast.parse(path.read_text())
    every = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    named = {alias.name for node in every if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module or "" for node in every if isinstance(node, ast.ImportFrom)}
    assert not any(name.split(".")[0] == "strix_finetune" for name in named)
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    at_once = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    at_once |= {node.module or "" for node in top if isinstance(node, ast.ImportFrom)}
    at_once |= {
        f"{node.module}.{alias.name}" for node in top if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert KERNELS not in at_once
    heavy = {name.split(".")[0] for name in at_once} & set(HEAVY)
    assert heavy == ({"torch"} if ".".join(path.relative_to(ROOT / "src").with_suffix("").parts) == KERNELS else set())
    assert len(path.read_text().splitlines()) < 300


def test_an_environment_without_a_home(tmp_path: Path) -> None:
    code = (
        "import json, os\nfrom strix_train import environment\nenvironment.prepare(offline=True)\n"
        "print(json.dumps(dict(os.environ)))"
    )
    for home in (str(tmp_path / "none"), "", "/proc"):
        done = python("-c", code, HOME=home, TMPDIR=str(tmp_path), XDG_CACHE_HOME="")
        env = json.loads(done.stdout)
        own = tmp_path / f"strix-train-{os.getuid()}"
        assert env["HF_HOME"] == str(own / "huggingface")
        assert env["UNSLOTH_COMPILE_LOCATION"] == str(own / "unsloth")
        assert env["TRITON_CACHE_DIR"].startswith(str(own))
        assert env["HF_HUB_OFFLINE"] == "1"
        assert env["UNSLOTH_DISABLE_STATISTICS"] == "1"
        assert own.stat().st_mode & 0o777 == 0o700


def test_a_private_folder_of_someone_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / f"strix-train-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"strix-train-{os.getuid()}").chmod(0o777)
    code = (
        "import os\nfrom strix_train import environment\nenvironment.prepare(offline=True)\n"
        "print(os.environ['HF_HOME'])"
    )
    done = python("-c", code, HOME="", TMPDIR=str(tmp_path))
    assert not done.stdout.startswith(str(tmp_path / f"strix-train-{os.getuid()}/"))
    assert done.stdout.startswith(str(tmp_path / "strix-train-"))


def test_a_home_that_can_be_written_and_the_users_settings_stay(tmp_path: Path) -> None:
    code = (
        "import json, os\nfrom strix_train import environment\nenvironment.prepare(offline=False)\n"
        "print(json.dumps(dict(os.environ)))"
    )
    env = json.loads(
        python("-c", code, HOME=str(tmp_path), XDG_CACHE_HOME="", HF_HOME="/mine", OMP_NUM_THREADS="3").stdout
    )
    assert env["HF_HOME"] == "/mine"
    assert env["OMP_NUM_THREADS"] == "3"
    assert env["HOME"] == str(tmp_path)
    assert "HF_HUB_OFFLINE" not in env or os.environ.get("HF_HUB_OFFLINE")
    assert env["UNSLOTH_COMPILE_LOCATION"] == str(tmp_path / ".cache" / "strix-finetune" / "unsloth")


@pytest.mark.parametrize(
    ("content", "granted"),
    [("max 100000", 0), ("50000 100000", 1), ("99999999 100000", 0), ("", 0), ("x y", 0), ("100000 0", 0)],
)
def test_a_containers_share_of_the_cores(
    tmp_path: Path, content: str, granted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text(content)
    assert environment._granted_cores(tmp_path) == granted
    assert environment._granted_cores(tmp_path / "none") == 0
