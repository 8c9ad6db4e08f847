"""What a push sends, names and leaves alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strix_finetune import key as keys
from strix_finetune import names, tested
from strix_finetune.errors import InputError, WorkError
from strix_finetune.events import BlobProgress, LayerDone
from strix_finetune.oci.descriptor import INDEX, canonical, digest_of
from strix_finetune.registry import release
from strix_finetune.registry.faults import RegistryError, Unreachable
from tests.unit.registry.site import TARGET, Site, key_tags
from tests.unit.registry_double import times
from tests.unit.test_registry_client import registry


def test_a_release_has_names_for_machines_and_for_people(site: Site) -> None:
    found = site.push(default=True, revision="c0ffee")
    people = {TARGET, "gfx1151-20261130", "gfx1151-7.14.0-x", "latest"}
    assert set(found) == people | key_tags(site, "base", "rccl", "torch", "app")
    kind, content = site.served.manifests["a/b", TARGET]
    index = json.loads(content)
    assert kind == INDEX
    assert index["annotations"] == {
        names.TARGET: TARGET,
        names.CHANNEL: "debian",
        names.KEY: site.keyed["app"].key,
        names.DEVICE_TESTS: "not-run",
        "org.opencontainers.image.version": "7.14.0+x",
        "org.opencontainers.image.created": "2026-11-30T01:02:03Z",
        "org.opencontainers.image.revision": "c0ffee",
    }
    assert [row["annotations"][names.LAYER] for row in index["manifests"]] == ["app", "torch", "rccl", "base"]
    assert [row["platform"]["os"] for row in index["manifests"]] == ["linux", *["unknown"] * 3]
    assert all(site.served.manifests["a/b", tag] == (kind, content) for tag in people)
    manifest = json.loads(site.served.manifests["a/b", index["manifests"][0]["digest"]][1])
    assert keys.key_of(manifest["annotations"][names.INPUTS]) == site.keyed["app"].key


def test_a_second_push_sends_and_packs_nothing(site: Site) -> None:
    site.push()
    sent, packs = site.served.sent, len(site.packs)
    site.served.log.clear()
    site.push(revision="another")
    assert site.served.sent - sent < 2000
    assert len(site.packs) == packs == 1
    assert not site.served.requests("POST")
    index = json.loads(site.served.manifests["a/b", TARGET][1])
    assert "org.opencontainers.image.revision" not in index["annotations"]
    # nor does the next day move a name
    before = site.served.manifests["a/b", TARGET]
    assert "gfx1151-20261201" in site.push(day="2026-12-01")
    assert site.served.manifests["a/b", TARGET] == before


def test_a_change_at_the_top_moves_the_top(site: Site) -> None:
    site.push()
    site.write("python/strix_train/run.py", "print(2)\n")
    site.build()
    before = site.served.sent
    blobs = set(site.served.blobs)
    site.push()
    new = set(site.served.blobs) - blobs
    assert {digest_of(site.tar("app"))} < new
    assert len(new) == 2
    assert site.served.sent - before < 20_000


def test_builders_go_along_when_they_are_asked_for(site: Site) -> None:
    assert not key_tags(site, "devel") & set(site.push())
    assert key_tags(site, "devel") <= set(site.push(builders=True))
    assert site.packs == [["base", "rccl", "torch", "app"], ["base", "devel"]]


def test_nothing_of_which_the_tests_are_not_those_of_today(site: Site) -> None:
    site.write("images/app/smoke/it.sh", "#!/bin/sh\nexit 1\n")
    with pytest.raises(WorkError, match=r"smoke test app/it\.sh changed; run 'strix-finetune build' first"):
        site.push()
    assert site.served.log == []


def test_results_of_device_tests_are_told_apart(site: Site) -> None:
    from strix_finetune.events import SmokeResult

    def result(state: Any) -> None:
        image = site.engine.refs[names.final_ref(TARGET)]
        results = [SmokeResult("app", "app/gpu.sh", "device", state, "")]
        tested.record(site.images.root / "state", site.images.stack(), site.keyed["app"], image, results)

    for state in ("passed", "failed", "not-run"):
        result(state)
        site.push()
        index = json.loads(site.served.manifests["a/b", TARGET][1])
        assert index["annotations"][names.DEVICE_TESTS] == state
    assert len(site.packs) == 1


def test_blobs_of_another_repository_are_mounted(site: Site) -> None:
    site.push()
    site.client = registry(site.served, path="other")
    sent = site.served.sent
    site.push()
    assert site.served.sent - sent < 20_000
    moved = {event.state for event in site.events if isinstance(event, BlobProgress)}
    # on a slow machine some are seen on their way
    assert moved - {"moving"} == {"sent", "mounted"}
    assert len([event for event in site.events if isinstance(event, BlobProgress) and event.state == "sent"]) == 8


def test_another_channels_release_is_not_replaced(site: Site) -> None:
    site.push()
    index = json.loads(site.served.manifests["a/b", TARGET][1])
    index["annotations"][names.CHANNEL] = "amd"
    site.served.manifests["a/b", TARGET] = (INDEX, canonical(index))
    with pytest.raises(InputError, match="is a release of the channel amd; push to another repository"):
        site.push()
    site.served.manifests["a/b", TARGET] = ("application/x", b"{}")
    with pytest.raises(InputError, match="is a release not by this program"):
        site.push()
    site.push(force=True)
    assert json.loads(site.served.manifests["a/b", TARGET][1])["annotations"][names.CHANNEL] == "debian"


@pytest.mark.parametrize("what", ["PUT /v2/a/b/blobs", "PUT /v2/a/b/manifests/app", "PUT /v2/a/b/manifests/sha256"])
def test_a_push_that_fails_moves_no_name_that_people_type(site: Site, what: str) -> None:
    site.served.faults = [times(1, 507, what)]
    with pytest.raises(RegistryError, match="as ordered"):
        site.push()
    assert not {tag for tag in site.served.tags("a/b") if tag.startswith(TARGET)}
    assert list((site.images.root / "cache").iterdir()) == []
    site.push()
    assert TARGET in site.served.tags("a/b")


def test_a_registry_that_dies_in_the_middle_goes_on_where_it_was(site: Site) -> None:
    site.served.faults = [times(99, 503, "PUT /v2/a/b/manifests/torch")]
    with pytest.raises(Unreachable, match="HTTP 503; try again: what is whole is not sent twice"):
        site.push()
    assert site.waits == sorted(site.waits)
    site.served.faults = []
    site.served.log.clear()
    site.push()
    done = [event.layer for event in site.events if isinstance(event, LayerDone)]
    assert done == ["base", "rccl", "torch", "app"]


def test_versions_fit_into_tags() -> None:
    assert release.human_tags("cpu", "2.13.0+cpu~x", "2026-01-02", default=False) == (
        "cpu-20260102",
        "cpu-2.13.0-cpu-x",
        "cpu",
    )
    assert release.human_tags("cpu", "", "2026-01-02", default=True) == ("cpu-20260102", "cpu", "latest")
