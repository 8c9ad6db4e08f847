"""Names of images, faults in words, and the folders of an installation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune import fast, names, paths
from strix_finetune.errors import InputError, Place, Problem, nearest

KEY = "0123456789ab" + "c" * 52


def test_names_are_fully_qualified() -> None:
    assert names.layer_ref("rccl", "gfx1151", KEY) == "localhost/strix-finetune/rccl:gfx1151-0123456789ab"
    assert names.moving_ref("rccl", "gfx1151") == "localhost/strix-finetune/rccl:gfx1151"
    assert names.final_ref("gfx1151") == "localhost/strix-finetune:gfx1151"


def test_labels_are_of_one_family_and_the_fast_path_asks_for_the_same() -> None:
    labels = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
    assert {value for value in labels if value.startswith("io.")} >= {names.KEY, names.PARTS, names.LABEL}
    assert names.KEY == fast.LABEL


@given(st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True))
def test_any_layer_makes_a_good_tag(layer: str) -> None:
    tag = names.layer_ref("x", layer, KEY).rsplit(":", 1)[1]
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", tag)


def test_problems_are_one_sentence() -> None:
    place = Place(Path("a/b.toml"), 3)
    assert str(Problem("it is wrong", place, "mend it")) == "a/b.toml:3: it is wrong; mend it"
    assert str(Problem("it is wrong", Place(Path("a")))) == "a: it is wrong"
    assert str(Problem("it is wrong", cure="mend it")) == "it is wrong; mend it"
    error = InputError([Problem("one"), Problem("two")])
    assert str(error) == "one\ntwo"
    assert str(InputError("no", cure="yes")) == "no; yes"


@pytest.mark.parametrize(
    ("word", "known", "cure"),
    [
        ("pytroch", ["pytorch", "rocm"], "did you mean 'pytorch'?"),
        ("zzz", ["b", "a"], "known: a, b"),
        ("zzz", [], "none is defined"),
        ("", ["a"], "known: a"),
    ],
)
def test_the_nearest_word(word: str, known: list[str], cure: str) -> None:
    assert nearest(word, known) == cure


def test_folders_of_a_checkout_and_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib/strix_finetune"
    package.mkdir(parents=True)
    monkeypatch.setattr(paths, "__file__", str(package / "paths.py"))
    env = {"HOME": "/home/u"}
    found = paths.find(env)
    assert (found.images, found.recipes) == (package / "_data/images", package / "_data/recipes")
    assert not found.in_checkout
    assert found.python == tmp_path / "lib"
    checkout = tmp_path / "images"
    checkout.mkdir()
    (checkout / "targets.toml").write_text("")
    found = paths.find(env)
    assert found.images == checkout
    assert found.in_checkout
    # through a link, as pipx and distributions install things
    (tmp_path / "link").symlink_to(tmp_path / "lib")
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "link/strix_finetune/paths.py"))
    (checkout / "targets.toml").unlink()
    assert not paths.find(env).in_checkout


def test_the_users_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    found = paths.find({"HOME": "/home/u"})
    assert [str(path) for path in (found.cache, found.state, found.data)] == [
        "/home/u/.cache/strix-finetune",
        "/home/u/.local/state/strix-finetune",
        "/home/u/.local/share/strix-finetune",
    ]
    env = {"HOME": "/home/u", "XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "relative", "XDG_DATA_HOME": ""}
    found = paths.find(env)
    assert [str(path) for path in (found.cache, found.state, found.data)] == [
        "/c/strix-finetune",
        "/home/u/.local/state/strix-finetune",
        "/home/u/.local/share/strix-finetune",
    ]
    monkeypatch.setenv("HOME", "/home/other")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert str(paths.find().cache) == "/home/other/.cache/strix-finetune"
