"""A variable chooses among the patch series of a layer; the channel or the user sets it."""

from __future__ import annotations

import pytest

from strix_finetune.errors import DefinitionError
from tests.conftest import RCCL, Images

LAYER = """\
name = "rccl"
description = "a layer"
parent = ["base"]
builders = ["devel"]
serves = "gpu"
vars = { version = "1.0" }
patches = { series = "patches/{version}/series" }
"""


CHOSEN = "'{}' is chosen by one variable of the layer that is a string; did you mean 'version'?"


@pytest.fixture
def versions(chain: Images) -> Images:
    chain.layer("rccl", "", RCCL)
    chain.write("images/rccl/layer.toml", LAYER)
    for version, names in {"1.0": ("a.patch", "b.patch"), "2.0": ("c.patch",), "stock": ()}.items():
        for name in names:
            chain.write(f"images/rccl/patches/{version}/{name}", f"{version} {name}\n")
        chain.write(f"images/rccl/patches/{version}/series", "".join(f"{name}\n" for name in names))
    return chain


def patches(images: Images, **options: object) -> list[str]:
    return [patch.name for patch in images.stack(**options).node("rccl").patches]  # type: ignore[arg-type]


def test_layer_channel_and_user_choose_in_that_order(versions: Images) -> None:
    assert patches(versions) == ["a.patch", "b.patch"]
    versions.channel("new", '[layers.rccl.vars]\nversion = "2.0"\n')
    assert patches(versions, channel="new") == ["c.patch"]
    versions.write("mine/override.toml", '[layers.rccl]\nvars = { version = "stock" }\npatches = ["z.patch"]\n')
    versions.write("mine/z.patch", "")
    assert patches(versions, channel="new", override=versions.root / "mine") == ["z.patch"]
    # one folder in the context, whatever the version is called
    text = versions.render(override=versions.root / "mine")["rccl"]
    assert [file.path for file in text.layer.files] == ["patches/z.patch"]


def test_another_series_is_another_key(versions: Images) -> None:
    before = versions.render()["rccl"].key
    versions.write("images/rccl/patches/2.0/c.patch", "changed\n")
    assert versions.render()["rccl"].key == before
    versions.write("images/rccl/patches/1.0/a.patch", "changed\n")
    assert versions.render()["rccl"].key != before


def test_a_version_without_a_series(versions: Images) -> None:
    versions.channel("new", '[layers.rccl.vars]\nversion = "2.1"\n')
    with pytest.raises(DefinitionError) as caught:
        versions.stack(channel="new")
    assert versions.faults(caught.value) == [
        "images/channels/new.toml:7: the layer 'rccl' has no patch series for version '2.1'; did you mean '2.0'?"
    ]


@pytest.mark.parametrize(
    ("series", "sentence"),
    [
        (
            "patches/{verison}/series",
            CHOSEN.format("patches/{verison}/series"),
        ),
        ("none/{version}/series", "there is no patch series 'none/{version}/series'; write one for each value"),
        (
            "patches/{version}/{version}",
            CHOSEN.format("patches/{version}/{version}"),
        ),
    ],
)
def test_a_series_that_nothing_can_choose(versions: Images, series: str, sentence: str) -> None:
    versions.write("images/rccl/layer.toml", LAYER.replace("patches/{version}/series", series))
    with pytest.raises(DefinitionError) as caught:
        versions.load()
    assert versions.faults(caught.value) == [f"images/rccl/layer.toml:7: {sentence}"]


def test_faults_of_a_series_that_is_not_chosen_are_told(versions: Images) -> None:
    versions.write("images/rccl/patches/2.0/series", "c.patch\nmissing.patch\n")
    with pytest.raises(DefinitionError) as caught:
        versions.load()
    cure = "add it, or remove its line from the series"
    assert versions.faults(caught.value) == [
        f"images/rccl/patches/2.0/series:2: the patch 'missing.patch' does not exist; {cure}"
    ]


def test_a_user_patch_may_not_bear_the_name_of_one_in_any_series(versions: Images) -> None:
    versions.write("mine/override.toml", '[layers.rccl]\npatches = ["c.patch"]\n')
    versions.write("mine/c.patch", "")
    with pytest.raises(DefinitionError, match=r"has a patch 'c\.patch'"):
        versions.load(versions.root / "mine")
