"""One truth of what outlives a container: the launcher and every emitted definition mount the same folders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from strix_finetune.caches import CACHES, ENVIRONMENT, TOKEN, moved
from strix_finetune.emit import Values, render
from strix_finetune.engine.base import EngineInfo
from strix_finetune.hostfacts import read
from strix_finetune.launch import plan
from strix_finetune.paths import find
from strix_train import environment, names
from tests.unit.test_emit import FOLDER, after, ran, unit

IMAGE = "localhost/strix-finetune:gfx1151"
DOCKER = EngineInfo("docker", "28.0.0", "1.48", "unix:///x", rootless=False, runtime="runc")
# target → (source, read only)
Mounts = dict[str, tuple[str, bool]]


def _read_volumes(volumes: list[str], home: Path) -> Mounts:
    found = (volume.replace("%h", str(home)).split(":") for volume in volumes)
    return {fields[1]: (fields[0], "ro" in fields[2:]) for fields in found}


def _read_mounts(mounts: list[str]) -> Mounts:
    found = (dict(part.partition("=")[::2] for part in mount.split(",")) for mount in mounts)
    return {fields["target"]: (fields["source"], "readonly" in fields) for fields in found}


def _quadlet(text: str, home: Path, tmp_path: Path) -> tuple[Mounts, dict[str, str]]:
    container = unit(text)["Container"]
    return _read_volumes(container["Volume"], home), dict(pair.split("=", 1) for pair in container["Environment"])


def _compose(text: str, home: Path, tmp_path: Path) -> tuple[Mounts, dict[str, str]]:
    document = yaml.safe_load(text.replace("${HOME:?}", str(home)))
    service = document["services"]["strix-finetune"]
    secret = service["secrets"][0]
    mounts = {each["target"]: (each["source"], each["read_only"]) for each in service["volumes"]}
    mounts[secret["target"]] = (document["secrets"][secret["source"]]["file"], True)
    return mounts, service["environment"]


def _devcontainer(text: str, home: Path, tmp_path: Path) -> tuple[Mounts, dict[str, str]]:
    found = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M).replace("${localEnv:HOME}", str(home)))
    return _read_mounts(found["mounts"]), found["containerEnv"]


def _script(text: str, home: Path, tmp_path: Path) -> tuple[Mounts, dict[str, str]]:
    argv = ran(text, tmp_path, env={"HOME": str(home)})
    return _read_mounts(after(argv, "--mount")), dict(pair.split("=", 1) for pair in after(argv, "--env"))


READERS: Mapping[str, Callable[[str, Path, Path], tuple[Mounts, dict[str, str]]]] = {
    "quadlet": _quadlet,
    "compose": _compose,
    "devcontainer": _devcontainer,
    "docker": _script,
    "podman": _script,
    "wsl": _script,
}


@pytest.mark.parametrize("kind", READERS)
def test_a_definition_mounts_what_the_launcher_mounts(kind: str, tmp_path: Path) -> None:
    home, token = tmp_path / "home", tmp_path / "token"
    token.touch()
    env = {"HOME": str(home), "HF_TOKEN_PATH": str(token)}
    request = plan("i", ["x"], read(env, target="", interactive=False), DOCKER).request
    project = str(tmp_path / "a project")
    values = Values(IMAGE, groups=("44",), user="1:1", project=project, token=str(token), devices=("/dev/null",))
    mounts, found = READERS[kind](render(kind, values, FOLDER)[0].text, home, tmp_path)
    launched = {mount.target: (mount.source, mount.read_only) for mount in request.mounts}
    for target in (*(cache.target for cache in CACHES), TOKEN):
        assert mounts[target] == launched[target]
    names_ = (*ENVIRONMENT, "HF_TOKEN_PATH")
    assert {name: found[name] for name in names_} == {name: request.env[name] for name in names_}


def test_where_the_environment_moves_a_cache_every_definition_has_it_there(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "HF_HOME": "/data/hub", "XDG_CACHE_HOME": "/fast"}
    there = moved(env)
    assert there == {
        "models": "/fast/strix-finetune/models",
        "hub": "/data/hub",
        "compiled": "/fast/strix-finetune/compiled",
    }
    assert moved({"HOME": str(tmp_path), "XDG_CACHE_HOME": "relative"}) == {}
    values = Values(IMAGE, groups=("44",), user="1:1", project="/p", token="/t", moved=there)
    for kind in ("quadlet", "compose", "devcontainer"):
        text = render(kind, values, FOLDER)[0].text
        mounts, _ = READERS[kind](text, tmp_path, tmp_path)
        assert {cache.name: mounts[cache.target][0] for cache in CACHES} == there
        assert ".cache" not in text
    # both tools bring the home along, and nothing else
    box = render("distrobox", values, FOLDER)[0].text
    assert re.findall(r'^volume="(.*)"$', box, re.M) == [f"{path}:{path}" for path in there.values()]
    assert "volume=" not in render("distrobox", Values(IMAGE), FOLDER)[0].text


def test_scripts_find_moved_caches_when_they_run(tmp_path: Path) -> None:
    script = render("docker", Values(IMAGE, devices=("/dev/null",)), FOLDER)[0].text
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "x"), "STRIX_MODELS": str(tmp_path / "m")}
    argv = ran(script, tmp_path, env=env)
    mounts = _read_mounts(after(argv, "--mount"))
    assert {cache.name: mounts[cache.target][0] for cache in CACHES} == {
        cache.name: str(cache.place(env)) for cache in CACHES
    }


def test_train_looks_in_the_same_places_without_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Toolbx and Distrobox, which bring the home along."""
    for name in ("XDG_CACHE_HOME", "STRIX_MODELS"):
        monkeypatch.delenv(name, raising=False)
    for cache_home in ("", str(tmp_path / "elsewhere")):
        monkeypatch.setenv("HOME", str(tmp_path))
        if cache_home:
            monkeypatch.setenv("XDG_CACHE_HOME", cache_home)
        env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": cache_home}
        places = {cache.name: cache.place(env) for cache in CACHES}
        assert places["models"] == names.models_folder()
        assert places["compiled"].parent == environment.cache_folder() == find(env).cache
