"""A user's changes: what they may touch, what wins, and the line of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune.errors import DefinitionError, Place, Problem
from strix_finetune.model import Stack
from strix_finetune.override import edit_list
from strix_finetune.schema import ListEdit
from tests.conftest import Images

BASE = """\
vars = { jobs = 2, name = "base", flags = ["-O2"], fast = true }
packages = { core = ["bash", "git"], more = [] }
[pip.tools]
requirements = ["peft==1.0", "trl==2.0"]
"""


@pytest.fixture
def stacked(images: Images) -> Images:
    images.layer("base", BASE + "[patches]\nseries = 'patches/series'\n")
    images.write("images/base/patches/series", "0002-b.patch\n0001-a.patch\n")
    images.write("images/base/patches/0001-a.patch", "a")
    images.write("images/base/patches/0002-b.patch", "b")
    images.layer("app", 'parent = ["base"]\nfinal = true\n')
    return images


def mine(images: Images, toml: str) -> Path:
    images.write("mine/override.toml", toml)
    return images.root / "mine"


def faults(images: Images, toml: str) -> list[str]:
    folder = mine(images, toml)
    with pytest.raises(DefinitionError) as caught:
        images.stack(override=folder)
    return images.faults(caught.value)


def test_layer_then_channel_then_user(stacked: Images) -> None:
    stacked.channel("debian", '[layers.base]\nvars = { jobs = 4, name = "channel" }\npackages = { core = ["zsh"] }\n')
    before = stacked.stack().node("base")
    assert (before.vars["jobs"], before.vars["name"], before.vars["fast"]) == (4, "channel", True)
    assert before.packages["core"] == ("zsh",)
    folder = mine(stacked, '[layers.base]\nvars = { name = "user" }\npackages.core.append = ["vim"]\n')
    after = stacked.stack(override=folder).node("base")
    assert (after.vars["jobs"], after.vars["name"], after.vars["fast"]) == (4, "user", True)
    assert after.packages["core"] == ("zsh", "vim")


def test_lists_are_edited_and_patches_come_last(stacked: Images) -> None:
    folder = mine(
        stacked,
        "[layers.base]\npatches = ['p/0000-z.patch']\n[layers.base.packages]\ncore = { append = ['vim', 'vim'], "
        "remove = ['bash'] }\nmore = { append = ['curl'] }\n[layers.base.requirements.tools]\n"
        "append = ['peft==1.1', 'gguf==3']\nremove = ['peft==1.0']\n",
    )
    stacked.write("mine/p/0000-z.patch", "z")
    node = stacked.stack(override=folder).node("base")
    assert node.packages == {"core": ("git", "vim"), "more": ("curl",)}
    assert node.layer.spec.pip["tools"].requirements == ["trl==2.0", "peft==1.1", "gguf==3"]
    assert [patch.name for patch in node.layer.patches] == ["0002-b.patch", "0001-a.patch", "0000-z.patch"]


def test_requirements_are_edited_in_the_set_that_the_channel_puts_in_their_place(stacked: Images) -> None:
    tuned = '[layers.base.pip]\ntools = { requirements = ["trl==3.0", "numpy"] }\nmore = { requirements = ["x"] }\n'
    stacked.channel("amd", tuned)
    folder = mine(
        stacked,
        "[layers.base.requirements]\ntools = { append = ['gguf==3'], remove = ['trl==3.0', 'peft==1.0'] }\n"
        "more.append = ['y']\n",
    )
    node = stacked.stack(channel="amd", override=folder).node("base")
    assert {name: asked.requirements for name, asked in node.pip.items()} == {
        "tools": ["numpy", "gguf==3"],
        "more": ["x", "y"],
    }
    node = stacked.stack(override=folder).node("base")
    assert {name: asked.requirements for name, asked in node.pip.items()} == {"tools": ["trl==2.0", "gguf==3"]}
    assert stacked.stack(channel="amd").node("base").pip["tools"].requirements == ["trl==3.0", "numpy"]


def test_removing_all_that_the_channel_asks_for(stacked: Images) -> None:
    stacked.channel("amd", '[layers.base.pip.more]\nrequirements = ["x"]\n')
    folder = mine(stacked, "\n[layers.base.requirements]\nmore.remove = ['x']\n")
    stacked.stack(override=folder)
    with pytest.raises(DefinitionError) as caught:
        stacked.stack(channel="amd", override=folder)
    assert stacked.faults(caught.value) == [
        "mine/override.toml:3: nothing is left in the requirement set 'more'; leave or append a requirement"
    ]
    assert faults(stacked, "[layers.base.requirements]\nmore.remove = ['xy']\nmor.append = ['z']\n") == [
        "mine/override.toml:2: 'xy' is not in the list and cannot be removed; did you mean 'x'?",
        "mine/override.toml:3: the layer 'base' has no requirement set 'mor'; did you mean 'more'?",
    ]


def test_what_the_user_changes_is_not_changed_for_anybody_else(stacked: Images) -> None:
    folder = mine(stacked, "[layers.base.requirements.tools]\nappend = ['gguf==3']\n")
    stacked.stack(override=folder)
    assert stacked.stack().node("base").layer.spec.pip["tools"].requirements == ["peft==1.0", "trl==2.0"]


def test_added_layers_and_templates(stacked: Images) -> None:
    stacked.layer("lab", 'parent = ["app"]\n', folder="mine/layers")
    stacked.write(
        "mine/templates/base/Dockerfile.j2", '{% extends "layer:base" %}{% block x %}RUN touch /mine\n{% endblock %}'
    )
    stacked.write("images/base/Dockerfile.j2", "FROM scratch\n{% block x %}{% endblock %}RUN make base\n")
    layers = stacked.render(override=stacked.root / "mine")
    assert layers["base"].layer.dockerfile == "FROM scratch\nRUN touch /mine\nRUN make base\n"
    assert layers["lab"].layer.dockerfile.startswith("FROM localhost/strix-finetune/app:gfx1151-")
    plain = stacked.render()
    assert plain["base"].key != layers["base"].key
    assert "lab" not in plain


def test_every_mistake_has_its_line(stacked: Images) -> None:
    assert faults(
        stacked,
        """\
[layers.bsae]
vars = { jobs = 1 }

[layers.base]
vars = { job = 1, name = 3, fast = 1, flags = "x" }
patches = ["gone.patch",
  "p/0001-a.patch"]

[layers.base.packages]
cor = { append = ["x"] }
core = { append = ["vim", "rm -rf /"] }

[layers.base.requirements.tool]
append = ["x"]

[layers.base.requirements.tools]
append = [
  "gguf==",
]
remove = [
  "trl==2.0",
  "pefd==1.0",
]

[layers.app]
patches = ["p/0001-a.patch"]
""",
    ) == [
        "mine/override.toml:1: unknown layer 'bsae'; did you mean 'base'?",
        "mine/override.toml:5: the layer 'base' has no variable 'job'; did you mean 'jobs'?",
        "mine/override.toml:5: the variable 'name' of 'base' is a string; it cannot be a whole number here",
        "mine/override.toml:5: the variable 'fast' of 'base' is true or false; it cannot be a whole number here",
        "mine/override.toml:5: the variable 'flags' of 'base' is a list; it cannot be a string here",
        "mine/override.toml:6: the patch 'gone.patch' does not exist; add it below mine",
        "mine/override.toml:7: the patch 'p/0001-a.patch' does not exist; add it below mine",
        "mine/override.toml:10: the layer 'base' has no package list 'cor'; did you mean 'core'?",
        "mine/override.toml:11: 'rm -rf /' is not the name of a Debian package; write the name alone",
        "mine/override.toml:13: the layer 'base' has no requirement set 'tool'; did you mean 'tools'?",
        "mine/override.toml:18: the requirement 'gguf==' names no version; write it as name==version",
        "mine/override.toml:22: 'pefd==1.0' is not in the list and cannot be removed; did you mean 'peft==1.0'?",
        "mine/override.toml:26: the layer 'app' applies no patches; remove it",
    ]


def test_removing_a_package_that_is_not_there(stacked: Images) -> None:
    # known only once the channel has had its say
    assert faults(stacked, "[layers.base.packages.core]\nremove = [\n 'git',\n 'gti',\n]\n") == [
        "mine/override.toml:4: 'gti' is not in the list and cannot be removed; known: bash"
    ]


def test_removing_all_requirements(stacked: Images) -> None:
    assert faults(stacked, "\n[layers.base.requirements]\ntools.remove = ['peft==1.0', 'trl==2.0']\n") == [
        "mine/override.toml:3: nothing is left in the requirement set 'tools'; leave or append a requirement"
    ]


def test_a_patch_may_not_take_the_name_of_another(stacked: Images) -> None:
    stacked.write("mine/p/0001-a.patch", "")
    assert faults(stacked, "[layers.base]\npatches = ['p/0001-a.patch']") == [
        "mine/override.toml:2: the layer 'base' has a patch '0001-a.patch'; rename yours"
    ]


def test_templates_and_layers_that_do_not_fit(stacked: Images) -> None:
    stacked.write("mine/templates/bsae/Dockerfile.j2", "")
    stacked.write("mine/templates/app/Dockerfile", "")
    stacked.layer("base", folder="mine/layers")
    assert faults(stacked, "") == [
        "mine/layers/base/layer.toml:1: the layer 'base' exists already; rename it, or change it in override.toml",
        "mine/templates/app: the folder holds no template; call it Dockerfile.j2",
        "mine/templates/bsae/Dockerfile.j2: a template for the unknown layer 'bsae'; did you mean 'base'?",
    ]


def test_a_folder_that_changes_nothing_is_a_mistake(stacked: Images) -> None:
    for folder, fault in (
        ("nowhere", "nowhere: the override folder does not exist; name an existing folder"),
        (
            "recipes",
            "recipes: the override folder holds none of override.toml, templates/ and layers/; is it the right folder?",
        ),
    ):
        with pytest.raises(DefinitionError) as caught:
            stacked.load(stacked.root / folder)
        assert stacked.faults(caught.value) == [fault]


def test_an_override_of_a_broken_layer_is_one_fault(stacked: Images) -> None:
    stacked.write("images/base/layer.toml", "name = \n")
    stacked.write("mine/templates/base/Dockerfile.j2", "")
    assert faults(stacked, "[layers.base.vars]\nx = 1\n") == ["images/base/layer.toml:1: not valid TOML: invalid value"]


# the property: the order in which a file says things changes nothing, and the three sources are applied in their order

NAMES = ["jobs", "name", "flags"]
values = st.fixed_dictionaries(
    {},
    optional={
        "jobs": st.integers(0, 9),
        "name": st.sampled_from(["x", "y", "z"]),
        "flags": st.lists(st.sampled_from("abc"), max_size=2),
    },
)
edits = st.fixed_dictionaries(
    {},
    optional={
        "append": st.lists(st.sampled_from(["vim", "git", "zsh", "curl"]), max_size=3),
        "remove": st.lists(st.sampled_from(["bash", "git"]), max_size=2, unique=True),
    },
)


def as_toml(prefix: str, table: dict[str, object]) -> list[str]:
    def text(value: object) -> str:
        return "[" + ", ".join(map(text, value)) + "]" if isinstance(value, list) else repr(value)

    return [f"{prefix}.{key} = {text(value)}\n" for key, value in table.items()]


@given(values, values, edits, edits, st.randoms())
def test_precedence_and_order(
    tmp_path_factory: pytest.TempPathFactory, channel: dict, user: dict, core: dict, pip: dict, random: object
) -> None:
    images = Images(tmp_path_factory.mktemp("override"))
    images.targets()
    images.layer("base", BASE + "[patches]\nseries = 'series'\n")
    images.write("images/base/series", "")
    images.layer("app", 'parent = ["base"]\nfinal = true\n')
    images.channel("debian", "[layers.base]\n" + "".join(as_toml("vars", channel)))
    pip = {key: [f"{item}==1" for item in items] for key, items in pip.items() if key == "append"}
    lines = [
        *as_toml("layers.base.vars", user),
        *as_toml("layers.base.packages.core", core),
        *as_toml("layers.base.requirements.tools", pip),
    ]
    stacks: list[Stack] = []
    for _ in range(2):
        stacks.append(images.stack(override=mine(images, "".join(lines) or "\n")))
        random.shuffle(lines)  # type: ignore[attr-defined]
    first, second = (stack.node("base") for stack in stacks)
    assert (first.vars, first.packages) == (second.vars, second.packages)
    assert first.layer.spec == second.layer.spec
    assert first.vars == {"jobs": 2, "name": "base", "flags": ["-O2"], "fast": True} | channel | user
    kept = [item for item in ("bash", "git") if item not in core.get("remove", [])]
    added = [item for item in dict.fromkeys(core.get("append", [])) if item not in kept]
    assert first.packages["core"] == (*kept, *added)
    assert first.layer.spec.pip["tools"].requirements[2:] == list(dict.fromkeys(pip.get("append", [])))


items = st.lists(st.sampled_from("abcdef"), max_size=5, unique=True)


@given(items, items, items, st.randoms())
def test_editing_a_list(start: list[str], append: list[str], remove: list[str], random: object) -> None:
    def edit(remove: list[str]) -> tuple[list[str], list[Problem]]:
        problems: list[Problem] = []
        place = Place(Path("f"), 1)
        return edit_list(start, ListEdit(append=append, remove=remove), lambda *keys: place, problems), problems

    result, problems = edit(remove)
    shuffled = list(remove)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert edit(shuffled)[0] == result
    # removal comes first, so what is appended stays; what stays keeps its place
    assert set(result) == (set(start) - set(remove)) | set(append)
    assert [item for item in result if item in start and item not in remove] == [
        item for item in start if item not in remove
    ]
    assert len(problems) == len(set(remove) - set(start))
    assert len(result) == len(set(result))
    # once edited, the same appending changes nothing
    assert edit_list(result, ListEdit(append=append), lambda *keys: Place(Path("f")), []) == result
