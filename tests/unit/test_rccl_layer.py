"""The layer rccl as it is shipped: its series, its function sets, and the programs that its build runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from strix_finetune import graph
from strix_finetune.errors import DefinitionError
from strix_finetune.load import load
from strix_finetune.model import Project
from strix_finetune.paths import Folders
from strix_finetune.workspace import Workspace

IMAGES = Path(__file__).parents[2] / "images"
LAYER = IMAGES / "rccl"
SERIES = sorted(path.parent for path in LAYER.glob("patches/*/series"))


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, LAYER / "files" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def project() -> Project:
    return load(IMAGES)


@pytest.mark.parametrize("folder", SERIES, ids=lambda folder: folder.name)
def test_every_patch_is_in_the_series_and_says_what_it_is(folder: Path) -> None:
    lines = (folder / "series").read_text("utf-8").splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert names == sorted(path.name for path in folder.glob("*.patch"))
    for number, name in enumerate(names, 1):
        assert name.startswith(f"{number:04}-")
        header, _, change = (folder / name).read_text("utf-8").partition("\n--- ")
        for field in ("Subject", "Why", "Upstream", "Source"):
            assert re.search(rf"^{field}: \S", header, re.M), f"{name} has no {field}"
        # the smoke test finds exactly these in the library
        left = [line.split()[-1].strip('");') for line in re.findall(r"^\+.*\d{4}-[a-z0-9-]+.*$", change, re.M)]
        assert name.removesuffix(".patch") in left, f"{name} leaves no mark of its own"


def test_the_series_hold_what_gfx1151_needs() -> None:
    names = " ".join(path.name for path in (LAYER / "patches/5.4.3").glob("*.patch"))
    for concern in ("gcn-arch-name", "pointer-attributes", "wave32", "collective-trace", "ll128", "function-set"):
        assert concern in names


def test_a_gpu_target_has_rocm_and_rccl_below_pytorch_and_the_cpu_has_neither(project: Project) -> None:
    gpu = graph.stack(project, "gfx1151", "debian")
    assert gpu.node("rccl").parent == "rocm"
    assert gpu.node("rccl").builders == ("rocm-devel",)
    assert gpu.node("pytorch").parent == "rccl"
    assert gpu.node("rccl").vars["functions"] == "full"
    assert gpu.node("rccl").patches
    without = graph.stack(project, "gfx1103", "debian")
    assert without.node("pytorch").parent == "rocm"
    assert "rccl" in without.absent
    cpu = graph.stack(project, "cpu", "debian")
    assert not {"rocm", "rocm-devel", "rccl"} & {node.name for node in cpu.nodes}


def test_the_profile_of_the_demo_changes_the_functions_alone() -> None:
    project = load(IMAGES, IMAGES / "profiles/training")
    stack = graph.stack(project, "gfx1151", "debian")
    assert stack.node("rccl").vars["functions"] == "training"
    plain = graph.stack(load(IMAGES), "gfx1151", "debian")
    for node in stack.nodes:
        assert (node.packages, node.archives, node.parent) == (
            plain.node(node.name).packages,
            plain.node(node.name).archives,
            plain.node(node.name).parent,
        )
    # so that it shares the locks
    folders = Folders(IMAGES, IMAGES, IMAGES, Path("/c"), Path("/s"), Path("/d"))
    assert all("profiles" not in folder.parts for folder in Workspace(folders, project, stack).lock_folders)


def test_a_version_without_patches_is_refused(tmp_path: Path) -> None:
    (tmp_path / "override.toml").write_text('[layers.rccl.vars]\nversion = "5.4.4"\n')
    with pytest.raises(DefinitionError, match=r"has no patch series for version '5\.4\.4'; did you mean '5\.4\.3'\?"):
        graph.stack(load(IMAGES, tmp_path), "gfx1151", "debian")


# -- function sets


def header(name: str) -> dict[str, str]:
    command = [sys.executable, LAYER / "files/function_set.py", LAYER / f"files/functions/{name}.txt"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^#define (\w+) (.+)$", text, re.M))


def test_the_full_set_leaves_nothing_out() -> None:
    made = header("full")
    assert made.pop("RCCL_FUNCTION_SET") == '"full"'
    assert len(made) == 3 * 6 * 10 + 1
    assert set(made.values()) == {"0"}


def test_the_training_set() -> None:
    made = header("training")
    assert made["RCCL_LEFT_OUT_CollNet"] == "1"
    held = {name.removeprefix("RCCL_LEFT_OUT_") for name, value in made.items() if value == "0"}
    # FSDP2 averages, which NCCL does by multiplying before it sums
    assert {"ReduceScatter_PreMulSum_float", "ReduceScatter_PreMulSum_rccl_bfloat16"} <= held
    assert {"AllReduce_Sum_half", "AllReduce_Sum_int64_t", "AllReduce_Max_uint8_t", "AllReduce_Min_int64_t"} <= held
    assert not [name for name in held if name.startswith("Reduce_")]
    assert len(held) == 21


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("AllReduce Sum flaot32", "'flaot32' is none of int8, uint8"),
        ("AllReduce Avg float32", "'Avg' is none of Sum, Prod"),
        ("AllGather Sum float32", "'AllGather' is none of Reduce, ReduceScatter, AllReduce"),
        ("AllReduce Sum", "names no type"),
        ("Collnet", "'Collnet' is none of Reduce"),
    ],
)
def test_a_set_that_says_nothing_known(tmp_path: Path, line: str, fault: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(f"# mine\n{line}\n")
    command = [sys.executable, LAYER / "files/function_set.py", path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{path}:2: ")
    assert fault in done.stderr
    assert done.stderr.count("\n") == 1


# -- the link that is not made twice


@pytest.fixture
def linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes down that it was called."""
    path = tmp_path / "cc"
    path.write_text('#!/bin/sh\necho called >> calls\n[ ! -e fail ] || exit 3\ncat b.o a.o > "$2"\n')
    path.chmod(0o755)
    monkeypatch.setenv("LINK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LINK_COMPILER", "clang 22")
    monkeypatch.chdir(tmp_path)
    for name in ("a.o", "b.o"):
        Path(name).write_text(name)
    return path


def link(linker: Path, output: str = "librccl.so.1.0") -> tuple[int, int]:
    """The exit code, and how often the compiler was called so far."""
    code = program("cached_link").main([str(linker), "-o", output, "a.o", "b.o"])
    return code, len(Path("calls").read_text().splitlines())


def test_the_same_link_comes_from_the_cache(linker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert link(linker) == (0, 1)
    Path("librccl.so.1.0").unlink()
    assert link(linker) == (0, 1)
    assert Path("librccl.so.1.0").read_text() == "b.oa.o"
    assert os.access("librccl.so.1.0", os.X_OK)
    Path("a.o").write_text("changed")
    assert link(linker) == (0, 2)
    monkeypatch.setenv("LINK_COMPILER", "clang 23")
    assert link(linker) == (0, 3)
    assert link(linker, "librccl.so.2.0") == (0, 4)


def test_a_link_that_fails_and_a_probe_are_not_kept(linker: Path) -> None:
    Path("fail").touch()
    assert link(linker) == (3, 1)
    assert link(linker) == (3, 2)
    Path("fail").unlink()
    assert link(linker, "cmTC_1234") == (0, 3)
    assert link(linker, "cmTC_1234") == (0, 4)
    assert list(Path("cache").iterdir()) == []


def test_few_links_are_kept(linker: Path) -> None:
    for number in range(12):
        Path("a.o").write_text(str(number))
        link(linker)
    assert len(list(Path("cache").iterdir())) == program("cached_link").KEPT
