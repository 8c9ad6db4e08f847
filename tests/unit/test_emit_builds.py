"""emit bake and emit actions: the build for machines that somebody else runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from strix_finetune import bake, graph, names
from strix_finetune.cli import main
from strix_finetune.emit import edited
from strix_finetune.errors import InputError
from strix_finetune.lockmodel import AptLock, AptPackage, Lock, PipLock, Release
from strix_finetune.model import ContextFile
from strix_finetune.paths import find
from strix_finetune.render import render_stack
from strix_finetune.workflow import render
from strix_finetune.workspace import Workspace, locked
from tests.conftest import Images

DATE = "2026-11-01T10:00:00+00:00"
APP = PipLock("3.14", f"peft==1.0 --hash=sha256:{'b' * 64}\n", "")
TARGETS = ("gfx1151", "cpu")
FOLDER = find({}).toolbox


class AnyPackage(dict[str, AptPackage]):
    """A lock that has every package."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> AptPackage:
        return AptPackage("1", 1, "a" * 64)


def stacks(images: Images) -> list[bake.Rendered]:
    project = images.load()
    found = []
    for target in TARGETS:
        lock = Lock("debian", target, AptLock("sid", {"sid": Release(DATE, "")}, AnyPackage()), {"app": APP})
        workspace = Workspace(images.folders, project, graph.stack(project, target, "debian"))
        layers = render_stack(project, workspace.stack, locked(lock), images.folders)
        found.append(bake.Rendered(workspace, lock, layers))
    return found


def document(images: Images) -> dict[str, Any]:
    return bake.document(stacks(images), lambda stack, layer: {names.KEY: layer.key, names.TESTS: "{}"})


def test_each_parent_is_another_target_of_the_file(chain: Images) -> None:
    made = document(chain)
    texts = {layer.key: layer.layer.dockerfile for stack in stacks(chain) for layer in stack.layers}
    for name, target in made["target"].items():
        wanted = set(re.findall(r"^FROM (localhost/\S+)", texts[target["labels"][names.KEY]], re.M))
        assert wanted <= set(target.get("contexts", {})), name
        for link in target.get("contexts", {}).values():
            kind, _, other = link.partition(":")
            assert kind == "target"
            # parents stand before children, so there is no circle
            assert list(made["target"]).index(other) < list(made["target"]).index(name)


def test_a_layer_of_one_key_is_built_once_and_has_the_names_of_every_target(chain: Images) -> None:
    made = document(chain)
    assert [name for name in made["target"] if name.startswith("base-")] == ["base-gfx1151"]
    assert {tag.split(":")[1].split("-")[0] for tag in made["target"]["base-gfx1151"]["tags"]} == set(TARGETS)
    assert made["group"]["default"]["targets"] == [made["group"][target]["targets"][0] for target in TARGETS]
    assert made["variable"]["PREFIX"]["default"] == names.PREFIX
    for target in made["target"].values():
        assert all(tag.startswith("${PREFIX}") for tag in target["tags"])
        # nobody has tested what it builds
        assert names.TESTS not in target["labels"]
        assert target["args"] == {"SOURCE_DATE_EPOCH": "1793527200"}


class Files:
    """What the driver would fetch, without a network."""

    def files(self, layer: Any, emit: Any) -> Iterator[ContextFile]:
        yield ContextFile(".strix-net/bin/uv", b"program", executable=True)
        yield from layer.layer.files


def write(images: Images, folder: Path, **more: Any) -> int:
    made = stacks(images)
    text = json.dumps(document(images))
    return bake.write(made, [Files() for _ in made], text, folder, lambda line: None, **more)  # type: ignore[misc]


def test_contexts_are_written_whole_and_nothing_of_others_is_lost(chain: Images, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert write(chain, folder) > 0
    made = json.loads((folder / bake.FILE).read_text())
    assert {path.name for path in folder.iterdir() if path.is_dir()} == set(made["target"])
    for name in made["target"]:
        assert (folder / name / "Dockerfile").read_text().startswith(("FROM", "#", "\n"))
        assert (folder / name / ".strix-net/bin/uv").stat().st_mode & 0o111
    (folder / "base-gfx1151/left").touch()
    write(chain, folder)
    assert not (folder / "base-gfx1151/left").exists()
    (folder / bake.FILE).write_text("{}")
    with pytest.raises(InputError, match="was not made by emit bake; --force replaces it"):
        write(chain, folder)
    write(chain, folder, force=True)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")] == []


def test_a_failure_leaves_the_folder_as_it_was(chain: Images, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write(chain, folder)
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))

    class Broken(Files):
        def files(self, layer: Any, emit: Any) -> Iterator[ContextFile]:
            raise OSError("no network")

    made = stacks(chain)
    with pytest.raises(OSError, match="no network"):
        bake.write(made, [Broken() for _ in made], "{}", folder, lambda line: None)  # type: ignore[misc]
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")] == []


def test_the_command_prints_the_file_of_the_shipped_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", "bake", "--target", "gfx1151,cpu", "--channel", "debian"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert set(made["group"]) == {"default", *TARGETS}
    assert made["target"]["rccl-gfx1151"]["contexts"].keys() >= {
        tag.replace("${PREFIX}", names.PREFIX) for tag in made["target"]["rocm-devel-gfx1151"]["tags"][:1]
    }


def checked(text: str, tmp_path: Path) -> None:
    """Against the schema that GitHub's workflows have in public."""
    path = tmp_path / "workflow.yml"
    path.write_text(text)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("more", [{}, {"to": "registry.example.org:5000/team/images", "runner": "self-hosted,amd"}])
def test_a_workflow_is_one(more: dict[str, str], tmp_path: Path) -> None:
    made = render((("gfx1151", "amd"), ("cpu", "debian")), FOLDER, **more)
    checked(made.text, tmp_path)
    assert not edited(made.text)
    job = yaml.safe_load(made.text)["jobs"]["image"]
    rows = job["strategy"]["matrix"]["include"]
    assert rows == [{"target": "gfx1151", "channel": "amd"}, {"target": "cpu", "channel": "debian"}]
    assert job["runs-on"] == (["self-hosted", "amd"] if more else ["ubuntu-latest"])
    steps = [step.get("run", "") for step in job["steps"]]
    assert job["env"]["REGISTRY"] == more.get("to", "${{ vars.REGISTRY }}")
    build, push = (next(step for step in steps if f"strix-finetune {word} " in step) for word in ("build", "push"))
    for command in (build, push):
        words = command.replace("${REGISTRY:+--from", "--from").replace("}", "").replace('"', "").split()[1:]
        assert known(words), f"an option of {command} does not exist"
    # what a pull request asks for is not pushed
    assert "pull_request" in job["steps"][-1]["if"]


def known(words: list[str]) -> bool:
    from strix_finetune.cli import root

    command = root.get_command(SimpleNamespace(), words[0])  # type: ignore[arg-type]
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts}
    return all(word in options for word in words if word.startswith("--"))


def test_wrong_places_are_refused() -> None:
    with pytest.raises(InputError, match="'here:tag' is not a repository"):
        render((("cpu", "debian"),), FOLDER, to="here:tag")
    with pytest.raises(InputError, match="is no runner"):
        render((("cpu", "debian"),), FOLDER, runner="a b")


def test_options_of_others_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", "bake", "--to", "x/y"]) == 2
    assert "--to means nothing for bake" in capsys.readouterr().err
    assert main(["emit", "compose", "--channel", "debian"]) == 2
    assert "--channel means nothing for compose" in capsys.readouterr().err
