"""What is read of an image: layers over one another, in whatever order they come."""

from __future__ import annotations

import pytest

from strix_finetune.errors import EngineError
from strix_finetune.supply import tree as trees
from tests.unit.supply_images import DEBIAN, VENV, Store, base, metadata, top


def read(*layers: dict[str, bytes | tuple[str, str]], wanted: tuple[str, ...] = ()) -> trees.Tree:
    store = Store(list(layers))
    found = trees.read(store.engine, store.id, wanted)
    assert store.exports == 1
    return found


def test_only_what_says_something_is_kept() -> None:
    tree = read(base(), {**top(), "usr/bin/bash": b"x" * 5000, f"{VENV}/unsloth/data.json": b"{}"})
    assert f"{VENV}/unsloth-2026.10.9.dist-info/METADATA" in tree.files
    assert not any("bin/bash" in path or path.endswith(".json") for path in tree.files)
    assert tree.tops == {f"{VENV}/unsloth-2026.10.9.dist-info/RECORD": frozenset({"unsloth"})}
    assert tree.licences == {f"{VENV}/unsloth/fsdp2.py": "AGPL-3.0-only", f"{VENV}/unsloth/old.py": "AGPL-3.0"}


def test_an_upper_layer_replaces_and_removes() -> None:
    removed = {
        f"{VENV}/.wh.unsloth-2026.10.9.dist-info": b"",
        f"{VENV}/unsloth/fsdp2.py": b"# all of it is MIT now\n",
        "usr/share/doc/bash/copyright": b"other",
    }
    tree = read(base(), top(), removed)
    assert not any("unsloth-2026" in path for path in tree.files)
    assert list(tree.licences) == [f"{VENV}/unsloth/old.py"]
    assert tree.files["usr/share/doc/bash/copyright"] == b"other"


def test_an_emptied_folder_keeps_what_the_same_layer_puts_there() -> None:
    emptied = {f"{VENV}/.wh..wh..opq": b"", f"{VENV}/new-1.dist-info/METADATA": metadata("new", "1")}
    tree = read(base(), top(), emptied)
    assert [path for path in tree.files if path.startswith(VENV)] == [f"{VENV}/new-1.dist-info/METADATA"]
    assert not tree.licences
    assert any(path.startswith(DEBIAN) for path in tree.files)


def test_a_link_in_the_place_of_a_folder_hides_what_was_in_it() -> None:
    tree = read(base(), {"usr/share/doc/bash": ("sym", "gcc-16-base")})
    assert b"GCC" in (tree.follow("usr/share/doc/bash/copyright") or b"")


def test_links_of_documentation_are_followed_and_rings_are_not() -> None:
    ring = {"usr/share/doc/a": ("sym", "b"), "usr/share/doc/b": ("sym", "/usr/share/doc/a")}
    tree = read(base(), ring)
    assert b"GCC" in (tree.follow("usr/share/doc/libstdc++6/copyright") or b"")
    assert tree.follow("usr/share/doc/a/copyright") is None
    assert tree.follow("usr/share/doc/missing/copyright") is None


def test_hard_links_have_the_content_of_the_first() -> None:
    twice = {
        "usr/share/doc/one/copyright": b"text",
        "usr/share/doc/two/copyright": ("hard", "usr/share/doc/one/copyright"),
    }
    assert read(base(), twice).files["usr/share/doc/two/copyright"] == b"text"


def test_what_others_carry_along_is_no_distribution() -> None:
    inner = f"{VENV}/setuptools/_vendor/wheel-1.dist-info/METADATA"
    assert inner not in read(base(), {inner: metadata("wheel", "1")}).files


def test_files_that_are_asked_for_are_kept() -> None:
    tree = read(base(), top(), wanted=("unsloth/models.py",))
    assert tree.files[f"{VENV}/unsloth/models.py"] == b"patched = True\n"


def test_a_compiled_library_is_hashed() -> None:
    tree = read(
        base(), {"opt/rccl/lib/librccl.so.1.0": b"code", "opt/rccl/lib/librccl.so.1": ("sym", "librccl.so.1.0")}
    )
    digest = "5694d08a2e53ffcae0c3103e5ad6f6076abd960eb1f8a56577040bc1028f702b"
    assert tree.digests == {"opt/rccl/lib/librccl.so.1.0": digest}


def test_an_image_with_a_layer_that_cannot_be_read_is_refused() -> None:
    store = Store()

    class Broken(Store):
        @property
        def archives(self) -> list[bytes]:
            return [store.archives[0], b"no tar at all" * 100]

    broken = Broken()
    with pytest.raises(EngineError, match="could not be read"):
        trees.read(broken.engine, broken.id)
