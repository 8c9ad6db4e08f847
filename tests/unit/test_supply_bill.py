"""Bills of materials: what is in them, how they are held against a lock, and both formats by their own validators."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from strix_finetune.errors import WorkError
from strix_finetune.schema import Archive
from strix_finetune.supply import bill, cyclonedx, spdx
from strix_finetune.supply.locked import Expected, Marked, Source, expected
from strix_finetune.supply.model import Bill, Component, Patch, purl
from strix_finetune.workspace import Options, open_workspace
from tests.unit.supply_images import VENV, Store, base, metadata, top

PATCH = Patch("0001-x.patch", "1" * 64)
SOURCE = "2" * 64


def wanted(**changes: Any) -> Expected:
    values: dict[str, Any] = {
        "date": "2026-10-30T08:08:01Z",
        "debs": {"bash": "5.3-4"},
        "dists": {"unsloth": "2026.10.9"},
        "hashes": {"unsloth": "3" * 64},
        "urls": {"unsloth": "https://index.example/unsloth.whl"},
        "sources": (),
        "marked": (Marked(PATCH, "unsloth/models.py", "patched = True"),),
    }
    return Expected(**{**values, **changes})


def find(store: Store, what: Expected | None) -> bill.Found:
    return bill.make(store.engine, store.held, what)


def whole() -> Bill:
    return bill.refuse(find(Store(), wanted()), "x")


def by_name(found: Bill) -> dict[str, Component]:
    return {component.name: component for component in found.components}


def rccl(**changes: Any) -> dict[str, bytes | tuple[str, str]]:
    library = b"compiled"
    manifest = {
        "name": "rccl",
        "version": "5.4.3",
        "api": "NCCL 2.18.3",
        "source": {"file": "rccl.tar.gz", "sha256": SOURCE},
        "patches": [{"file": PATCH.name, "sha256": PATCH.sha256}],
        "library": {"file": "lib/librccl.so.1.0", "sha256": hashlib.sha256(library).hexdigest()},
        **changes,
    }
    return {"opt/rccl/manifest.json": json.dumps(manifest).encode(), "opt/rccl/lib/librccl.so.1.0": library}


def source() -> Source:
    return Source("rccl", "rccl", "5.4.3", Archive(url="apt-source:rccl/x", sha256=SOURCE, size=1), (PATCH,))


def test_everything_that_is_installed_is_listed() -> None:
    found = by_name(whole())
    assert {name: (item.kind, item.version) for name, item in found.items()} == {
        "bash": ("deb", "5.3-4"),
        "libstdc++6": ("deb", "16.1.0-2+b1"),
        "strix-finetune-ucx-without-hip": ("own", "1"),
        "numpy": ("pypi", "2.4.0"),
        "old-thing": ("pypi", "0.1"),
        "unsloth": ("pypi", "2026.10.9"),
        "strix-train": ("own", "0.1.0"),
    }
    assert found["libstdc++6"].purl == "pkg:deb/debian/libstdc%2B%2B6@16.1.0-2%2Bb1?arch=amd64&distro=sid"
    assert found["libstdc++6"].facts == {"source": "gcc-16", "source version": "16.1.0-2"}
    assert found["libstdc++6"].licence is None
    assert found["numpy"].facts["installed by"] == "dpkg"
    assert found["unsloth"].sha256 == "3" * 64
    assert found["unsloth"].patches == (PATCH,)


def test_it_says_which_files_are_under_the_agpl() -> None:
    found = whole()
    assert found.affero == {"unsloth": (f"{VENV}/unsloth/fsdp2.py", f"{VENV}/unsloth/old.py")}
    document = cyclonedx.document(found, "1")
    named = {item["name"]: item["value"] for item in document["metadata"]["component"]["properties"]}
    assert named["strix-finetune:agpl:unsloth"] == f"{VENV}/unsloth/fsdp2.py, {VENV}/unsloth/old.py"


def test_a_distribution_under_the_agpl_as_a_whole() -> None:
    store = Store(
        [base(), {f"{VENV}/cli-1.dist-info/METADATA": metadata("cli", "1", "License-Expression: AGPL-3.0-only")}]
    )
    assert find(store, None).bill.affero == {"cli": ()}


def test_package_urls_are_those_of_the_library() -> None:
    from packageurl import PackageURL

    for component in whole().components:
        parsed = PackageURL.from_string(component.purl)
        assert parsed.to_string() == component.purl
        assert (parsed.name, parsed.version) == (component.name, component.version)
    assert PackageURL.from_string(purl("pypi", "torch", "2.13.0+rocm10.0.0")).version == "2.13.0+rocm10.0.0"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"debs": {"bash": "5.3-5"}}, "the Debian package bash is 5.3-4, locked is 5.3-5"),
        ({"debs": {"gone": "1"}}, "the Debian package gone is missing, locked is 1"),
        ({"dists": {}}, "the Python package unsloth 2026.10.9 is in no lock"),
        ({"dists": {"unsloth": "1"}}, "the Python package unsloth is 2026.10.9, locked is 1"),
        ({"dists": {"unsloth": "2026.10.9", "trl": "1"}}, "the Python package trl is missing, locked is 1"),
        (
            {"marked": (Marked(PATCH, "unsloth/models.py", "patched = False"),)},
            "the patch 0001-x.patch is not in unsloth/models.py",
        ),
        ({"sources": (source(),)}, "RCCL is to be in the image, and there is no /opt/rccl/manifest.json"),
    ],
)
def test_a_difference_to_the_lock_is_named(changes: dict[str, Any], sentence: str) -> None:
    found = find(Store(), wanted(**changes))
    assert len(found.differences) == 1
    assert found.differences[0].startswith(sentence)
    with pytest.raises(WorkError, match="is not what its lock says"):
        bill.refuse(found, "x")


def test_the_same_version_in_other_words_is_the_same() -> None:
    assert not find(Store(), wanted(dists={"unsloth": "2026.10.09"})).differences


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"source": {"sha256": "4" * 64}}, "RCCL was made of another source"),
        ({"patches": []}, "RCCL was made with other patches"),
        ({"library": {"file": "lib/librccl.so.1.0", "sha256": "5" * 64}}, "is not the one that was compiled"),
    ],
)
def test_rccl_is_what_its_layer_compiled(changes: dict[str, Any], sentence: str) -> None:
    good = Store([base(), top(), rccl()])
    what = wanted(sources=(source(),))
    assert not find(good, what).differences
    component = by_name(find(good, what).bill)["rccl"]
    assert (component.version, component.sha256, component.patches) == ("5.4.3", SOURCE, (PATCH,))
    assert component.facts["api"] == "NCCL 2.18.3"
    [said] = find(Store([base(), top(), rccl(**changes)]), what).differences
    assert sentence in said


def test_without_a_lock_it_says_so_and_takes_rccl_from_its_manifest() -> None:
    found = find(Store([base(), top(), rccl()]), None)
    assert not found.bill.checked
    assert by_name(found.bill)["rccl"].patches == (PATCH,)
    assert not found.differences


def test_an_image_without_dpkg_is_a_sentence() -> None:
    with pytest.raises(WorkError, match="Debian packages are not known"):
        find(Store([top()]), None)


def test_cyclonedx_is_valid_and_the_same_each_time() -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    store = Store([base(), top(), rccl()])
    found = find(store, wanted(sources=(source(),))).bill
    text = json.dumps(cyclonedx.document(found, "1.0"))
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert fault is None, fault
    again = find(Store([base(), top(), rccl()]), wanted(sources=(source(),))).bill
    assert json.dumps(cyclonedx.document(again, "1.0")) == text
    first, *rest = json.loads(text)["components"]
    assert first == {"type": "operating-system", "bom-ref": "system", "name": "debian", "version": "sid"}
    assert len({item["bom-ref"] for item in rest}) == len(rest) == len(found.components)


def test_spdx_is_valid() -> None:
    from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    found = find(Store([base(), top(), rccl()]), wanted(sources=(source(),))).bill
    document = JsonLikeDictParser().parse(json.loads(json.dumps(spdx.document(found, "1.0"))))
    faults = validate_full_spdx_document(document)
    assert not faults, faults[0].validation_message
    assert len(document.packages) == len(found.components) + 1


def test_what_is_expected_follows_from_the_definitions_and_the_lock() -> None:
    workspace = open_workspace(Options(target="gfx1151", channel="debian"), {"HOME": "/nowhere"})
    lock = workspace.read_lock()
    assert lock
    layers = workspace.render(lock)
    found = expected(workspace.stack, layers, lock, "finetune")
    assert found.debs["bash"] == lock.apt.packages["bash"].version
    assert found.dists == lock.pip["unsloth"].packages
    # what only a builder has is in no image
    assert "cmake" in lock.apt.packages
    assert "cmake" not in found.debs
    [compiled] = [item for item in found.sources if item.name == "rccl"]
    assert compiled.version == "5.4.3"
    assert len(compiled.patches) == len(workspace.stack.node("rccl").patches) > 10
    assert {mark.package for mark in found.marked} == {"torch", "unsloth-zoo"}
    assert not expected(workspace.stack, layers, lock, "base").dists


def test_wheels_of_a_channel_are_expected_with_their_addresses() -> None:
    workspace = open_workspace(Options(target="gfx1151", channel="amd"), {"HOME": "/nowhere"})
    lock = workspace.read_lock()
    assert lock
    found = expected(workspace.stack, workspace.render(lock), lock, "finetune")
    wheels = [wheel for held in lock.wheels.values() for wheel in held.wheels]
    assert len(wheels) > 5
    for wheel in wheels:
        assert found.dists[wheel.name] == wheel.version
        assert (found.hashes[wheel.name], found.urls[wheel.name]) == (wheel.sha256, wheel.url)
    assert found.dists["torch"].startswith("2.13.0+rocm")
    # this channel's PyTorch needs no patch, and its RCCL is AMD's
    assert {mark.package for mark in found.marked} == {"unsloth-zoo"}
    assert "rccl" not in {source.name for source in found.sources}
