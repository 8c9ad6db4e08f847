"""What goes wrong on the way to a build: what lasts stops it, what passes does not."""

from __future__ import annotations

import pytest

from strix_finetune.engine.base import Engine
from tests.e2e.amd.images import moving
from tests.standin.amd import RELEASE
from tests.standin.faults import Altered, Cut, Kind, Shortened, Slow, Status
from tests.standin.place import Place, Said


def core(place: Place) -> str:
    """sha256 of a file that the layer rocm of every target is made of."""
    files = place.locked()["wheels"]["rocm"]["files"]
    return next(str(item["sha256"]) for item in files if item["name"] == "rocm-sdk-core")


SPOILED: list[tuple[Kind, str]] = [
    (Status(403), "the index 'amd' does not serve rocm_sdk_core-"),
    (Status(404), "the index 'amd' does not serve rocm_sdk_core-"),
    (Status(429, retry_after="1"), "could not be downloaded (HTTP 429"),
    (Cut(after=0), "could not be downloaded (the connection was cut"),
    (Altered(), "is not the file that the lock names: its sha256 is "),
    (Shortened(keep=5000), "has 5000 bytes there, and the lock says "),
]


@pytest.mark.parametrize(("kind", "sentence"), SPOILED, ids=repr)
def test_a_lasting_fault_stops_the_build_and_moves_no_name(
    place: Place, built: Said, docker: Engine, kind: Kind, sentence: str
) -> None:
    before = moving(docker)
    place.forget([core(place)])
    place.amd.fail("*/rocm_sdk_core-*.whl", kind)
    said = place.strix("build", "rocm", "--rebuild", "--json")
    assert said.code == 1
    assert f"rocm_sdk_core-{RELEASE.rocm}-py3-none-linux_x86_64.whl" in said.sentence
    assert sentence in said.sentence
    assert moving(docker) == before
    assert not (place.downloads / core(place)).exists()


def test_passing_faults_end_in_the_same_image(place: Place, built: Said, docker: Engine) -> None:
    wheels = [item for entry in place.locked()["wheels"].values() for item in entry["files"]]
    place.forget(item["sha256"] for item in wheels)
    amd = place.amd
    where = "/rocm/core/whl-next/*/"
    faults = [
        amd.fail(f"{where}rocm_sdk_core-*.whl", Cut(after=100_000), times=3),
        amd.fail(f"{where}rocm_sdk_libraries-*.whl", Status(429, retry_after="1"), times=2),
        amd.fail(f"{where}rocm_sdk_device_*.whl", Slow(delay=0.05, piece=1024)),
        amd.fail(f"{where}rocm-10.0.0.tar.gz", Status(500), times=2),
        amd.fail(f"{where}rocm_bootstrap-*.whl", Status(503, retry_after="1"), times=1),
    ]
    said = place.strix("build", "rocm", "--rebuild", "--json")
    assert said.code == 0, said.sentence
    assert [fault.hits for fault in faults] == [3, 2, 1, 2, 1]
    # what was there of a broken download is not asked for again
    assert [asked.range for asked in amd.asked if "rocm_sdk_core" in asked.path and asked.status == 206] == [
        "bytes=100000-",
        "bytes=200000-",
        "bytes=300000-",
    ]
    assert said.smoke["rocm", "rocm/packages.py"][0] == "passed"
