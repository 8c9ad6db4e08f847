"""All definitions are checked at once, and each fault has the line that is at fault."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strix_finetune.errors import DefinitionError, Problem
from strix_finetune.load import load
from strix_finetune.pep508 import range_fault, requirement_fault
from tests.conftest import LAYER_RCCL, Images


def faults(images: Images, override: Path | None = None) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        images.load(override)
    assert caught.value.exit_code == 2
    return images.faults(caught.value)


def test_a_good_folder_is_read_as_it_is(chain: Images) -> None:
    project = chain.load()
    assert list(project.layers) == ["app", "base", "devel", "rccl", "torch"]
    assert [patch.name for patch in project.layers["rccl"].patches] == ["0001-a.patch", "0002-x.patch"]
    assert list(project.targets) == ["gfx1151", "cpu"]
    assert project.default_target == "gfx1151"
    assert project.layers["base"].spec.vars == {"jobs": 2}


def test_cycle(images: Images) -> None:
    images.layer("a", 'parent = ["c"]\n')
    images.layer("b", 'parent = [\n  "a",\n]\n')
    images.layer("c", 'builders = ["b"]\n')
    assert faults(images) == [
        "images/b/layer.toml:4: the layers form a cycle: a → c → b → a; remove one of these links"
    ]


def test_a_layer_that_is_its_own_parent(images: Images) -> None:
    images.layer("a", 'parent = ["b", "a"]\n')
    images.layer("b")
    assert faults(images) == ["images/a/layer.toml:3: the layers form a cycle: a → a; remove one of these links"]


def test_two_cycles_are_two_faults(images: Images) -> None:
    for name, other in (("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")):
        images.layer(name, f'parent = ["{other}"]\n')
    assert len(faults(images)) == 2


def test_unknown_parent_and_builder(images: Images) -> None:
    images.layer("pytorch")
    images.layer("rocm", 'parent = [\n "pytorch",\n "pytroch",\n]\nbuilders = ["nothing-like-it"]\n')
    assert faults(images) == [
        "images/rocm/layer.toml:5: unknown layer 'pytroch' in 'parent' of 'rocm'; did you mean 'pytorch'?",
        "images/rocm/layer.toml:7: unknown layer 'nothing-like-it' in 'builders' of 'rocm'; known: pytorch, rocm",
    ]


@pytest.mark.parametrize(("copy", "original"), [("a-copy", "pytorch"), ("z-copy", "pytorch")])
def test_duplicate_layer(images: Images, copy: str, original: str) -> None:
    images.layer(original)
    images.layer(copy)
    images.write(f"images/{copy}/layer.toml", f'description = "x"\nname = "{original}"\n')
    assert faults(images) == [
        (
            f"images/{copy}/layer.toml:2: the layer in folder '{copy}' calls itself '{original}', and "
            f"images/{original}/layer.toml has that name too; a layer bears its folder's name"
        )
    ]


def test_a_layer_that_cannot_be_read_is_one_fault_though_others_build_on_it(images: Images) -> None:
    images.layer("base", "parent = \n")
    images.layer("mid", 'parent = ["base"]\n')
    images.layer("renamed", 'parent = ["base"]\nserves = "cpus"\n')
    images.layer("top", 'parent = ["renamed"]\nbuilders = ["base"]\n')
    images.channel("debian", 'omit = ["base"]\n[layers.renamed]\nvars = { x = 1 }\n')
    assert faults(images) == [
        "images/base/layer.toml:3: not valid TOML: invalid value",
        "images/renamed/layer.toml:4: 'serves' cannot be 'cpus'; did you mean 'cpu'?",
    ]


def test_a_builder_is_no_parent(images: Images) -> None:
    images.layer("devel", 'role = "builder"\n')
    images.layer("app", 'parent = ["devel"]\n')
    assert faults(images) == [
        (
            "images/app/layer.toml:3: 'devel' is a builder and cannot be the parent of the image 'app'; "
            "list it in 'builders'"
        )
    ]


def test_missing_files(images: Images) -> None:
    images.layer("a", '[[smoke]]\nfile = "smoke/gone.sh"\n[patches]\nseries = "patches/series"\n')
    (images.path / "a/Dockerfile.j2").unlink()
    images.layer("b", 'patches = { series = "p/series" }\n')
    images.write(
        "images/b/p/series", "# the series\n\n0001-a.patch # why\n0002-gone.patch\n../0003.patch\n0001-a.patch\n"
    )
    images.write("images/b/p/0001-a.patch", "")
    (images.path / "empty").mkdir()
    (images.path / ".hidden").mkdir()
    assert faults(images) == [
        "images/a/Dockerfile.j2: the layer 'a' has no template; add a Dockerfile.j2",
        "images/a/layer.toml:4: the smoke test 'smoke/gone.sh' does not exist; add it below images/a",
        (
            "images/a/layer.toml:6: the patch series 'patches/series' does not exist; "
            "write it: the names of the patches, one a line"
        ),
        "images/b/p/series:4: the patch '0002-gone.patch' does not exist; add it, or remove its line from the series",
        "images/b/p/series:5: the patch '../0003.patch' lies outside of the layer; copy it beside the series",
        "images/b/p/series:6: a patch called '0001-a.patch' is in the series twice; remove one",
        "images/empty: the folder has no layer.toml; add one, or remove the folder",
    ]


def test_a_series_that_is_not_text_or_has_a_name_no_file_can_have(images: Images) -> None:
    images.layer("a", 'patches = { series = "series" }\n')
    images.write("images/a/series", b"0001\n\xff\n")
    images.layer("b", 'patches = { series = "series" }\n')
    images.write("images/b/series", "x" * 300)
    images.layer("c", f'[[smoke]]\nfile = "{"y" * 300}"\n[[smoke]]\nfile = "a\\u0000b"\n')
    images.layer("d", 'patches = { series = "series" }\n')
    os.mkfifo(images.path / "d/series")
    found = faults(images)
    assert [fault.split(": ")[0] for fault in found] == [
        "images/a/series:2",
        "images/b/series:1",
        "images/c/layer.toml:4",
        "images/c/layer.toml:6",
        "images/d/layer.toml:3",
    ]


def test_requirements_and_ceilings(images: Images) -> None:
    images.layer(
        "a",
        '[pip.one]\nrequirements = [\n  "peft==1.0",\n  "torch==",\n  "trl >= 1, <",\n  "not a name",\n]\n'
        '[ceilings]\ntorch = "< 2.15"\ntrl = "below 2"\npeft = ""\n',
    )
    assert faults(images) == [
        "images/a/layer.toml:6: the requirement 'torch==' names no version; write it as name==version",
        "images/a/layer.toml:7: the requirement 'trl >= 1, <' names no version; write it as name==version",
        (
            "images/a/layer.toml:8: 'not a name' is not a Python requirement (expected semicolon (after name with no "
            "version specifier) or end); write it as name==version"
        ),
        "images/a/layer.toml:12: ceiling of 'trl': 'below 2' is no range of versions; write it as <2.15",
        "images/a/layer.toml:13: ceiling of 'peft': the range of versions is empty; write it as <2.15",
    ]


@pytest.mark.parametrize(
    "text", ["torch==", "torch== ", "torch[extra]>=", "torch ~= ; python_version > '3'", "torch>=2,<", "torch (>=)"]
)
def test_a_requirement_without_its_version(text: str) -> None:
    assert requirement_fault(text) == f"the requirement '{text}' names no version"


@pytest.mark.parametrize(
    "text", ["torch", "torch==2.14.1", "torch[a,b]>=2,<3", "x ; python_version >= '3.11'", "y @ file:///tmp/y.whl"]
)
def test_good_requirements(text: str) -> None:
    assert requirement_fault(text) == ""


def test_ranges() -> None:
    assert range_fault("<2.15,>=2") == ""
    assert range_fault("2.15") == "'2.15' is no range of versions"


def test_channels_and_targets(images: Images) -> None:
    images.layer("rccl", 'vars = { jobs = 2, flags = ["a"] }\npackages = { build = ["make"] }\n')
    images.channel("debian", 'omit = ["rcl"]\ntargets = [\n "gfx1151",\n "gfx1511",\n]\n')
    images.channel("amd", '[layers.rccl]\nvars = { job = 3, flags = "x" }\n[layers.rccl.packages]\nbuld = ["gcc"]\n')
    text = images.channel("image").read_text()
    images.write("images/channels/image.toml", text.replace('source = "mmdebstrap"', 'source = "image"'))
    images.write("images/channels/wrong.toml", text)
    images.targets('[target.gfx1151]\nkind = "gpu"\n')
    images.write("images/targets.toml", 'default = "gfx1151x"\n[target.gfx1151]\nkind = "gpu"\n')
    assert faults(images) == [
        "images/channels/amd.toml:7: the layer 'rccl' has no variable 'job'; did you mean 'jobs'?",
        "images/channels/amd.toml:7: the variable 'flags' of 'rccl' is a list; it cannot be a string here",
        "images/channels/amd.toml:9: the layer 'rccl' has no package list 'buld'; did you mean 'build'?",
        "images/channels/debian.toml:6: unknown layer 'rcl'; did you mean 'rccl'?",
        "images/channels/debian.toml:9: unknown target 'gfx1511'; did you mean 'gfx1151'?",
        "images/channels/image.toml:4: bootstrap from an image needs 'image'; name it as host/name:tag",
        (
            "images/channels/wrong.toml:1: the channel in 'wrong.toml' calls itself 'image'; "
            "a channel bears its file's name"
        ),
        "images/targets.toml:1: the default target 'gfx1151x' is not defined; did you mean 'gfx1151'?",
    ]


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError) as caught:
        load(tmp_path / "nowhere")
    assert sorted(str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems) == [
        "nowhere/channels: there is no channel; add one as <name>.toml",
        "nowhere/targets.toml: the file is missing; create it",
        "nowhere: there is no folder of layers; name it with --images",
    ]


def test_faults_of_one_file_come_in_the_order_of_its_lines(images: Images) -> None:
    images.layer("a", "\n" * 5 + 'parent = ["x"]\n' + "\n" * 5 + 'builders = ["y"]\n')
    assert [fault.split(": ")[0] for fault in faults(images)] == ["images/a/layer.toml:8", "images/a/layer.toml:14"]


def test_faults_of_all_files_are_reported_together(chain: Images) -> None:
    chain.write("images/base/layer.toml", 'nmae = "base"\n')
    chain.write("images/rccl/layer.toml", LAYER_RCCL.replace('["devel"]', '["develop"]'))
    (chain.path / "torch/Dockerfile.j2").unlink()
    chain.write("images/channels/amd.toml", "[[[")
    assert [fault.split(": ")[0] for fault in faults(chain)] == [
        "images/base/layer.toml:1",
        "images/base/layer.toml:1",
        "images/channels/amd.toml:1",
        "images/rccl/layer.toml:4",
        "images/torch/Dockerfile.j2",
    ]


LINES = (
    *('name = "a"', 'description = "d"', 'parent = ["a"]', 'parent = ["base"]', "vars = { x = 1 }", "final = true"),
    *('[patches]\nseries = "Dockerfile.j2"', '[[smoke]]\nfile = "."', '[pip.a]\nrequirements = ["x", "y=="]', "\0"),
    *("[layers.base]", "[layers.a]", "vars = { jobs = true }", 'patches = ["layers"]', 'ceilings = { a = "<1" }'),
    'packages = { rootfs = { append = ["a;b"], remove = ["bash"] } }',
)
toml_bytes = st.binary(max_size=40) | st.lists(st.sampled_from(LINES), max_size=8).map(
    lambda lines: "\n".join(lines).encode()
)


@given(toml_bytes, toml_bytes, st.booleans())
@example(b'name = "a"\ndescription = "d"\nparent = ["a"]\n', b"[layers.a]\n", True)
def test_any_bytes_are_loaded_or_refused(
    tmp_path_factory: pytest.TempPathFactory, layer: bytes, override: bytes, in_override: bool
) -> None:
    images = Images(tmp_path_factory.mktemp("any"))
    images.channel()
    images.targets()
    images.layer("base", 'vars = { jobs = 1 }\npackages = { rootfs = ["bash"] }\n')
    folder = "mine/layers" if in_override else "images"
    images.layer("a", folder=folder)
    images.write(f"{folder}/a/layer.toml", layer)
    images.write("mine/override.toml", override)
    problems: tuple[Problem, ...] = ()
    try:
        images.load(images.root / "mine")
    except DefinitionError as error:
        problems = error.problems
    assert all("\n" not in str(problem) and problem.place and problem.place.path.exists() for problem in problems)
