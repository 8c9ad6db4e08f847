"""`build --from`: what a registry has is not built."""

from __future__ import annotations

import pytest

from strix_finetune.events import LayerStarted
from strix_finetune.execute import Failed, Pulled
from strix_finetune.oci.descriptor import digest_of
from strix_finetune.plan import tags_of
from strix_finetune.registry.faults import Unreachable
from tests.unit.registry.site import Site, Store
from tests.unit.registry_double import times


def test_an_empty_engine_pulls_and_builds_nothing(site: Site) -> None:
    site.push()
    site.served.log.clear()
    engine = Store()
    plan, outcomes = site.build_from(engine)
    assert {step.name: type(step.action).__name__ for step in plan.steps} == {
        "base": "NotNeeded",
        "devel": "NotNeeded",
        "rccl": "NotNeeded",
        "torch": "NotNeeded",
        "app": "Pull",
    }
    assert isinstance(outcomes["app"], Pulled)
    assert set(engine.refs) == set(tags_of(site.keyed["app"], site.stack))
    # one question; then the configuration and the layers
    assert len([line for line in site.served.requests("GET") if "/manifests/" in line]) == 1


def test_each_layer_is_asked_for_once_at_most(site: Site) -> None:
    site.push()
    site.write("python/strix_train/run.py", "print(2)\n")
    site.write("images/torch/files/new", "x")
    site._keyed = {}
    site.images.layer(
        "torch", 'parent = ["rccl", "base"]\n', "FROM {{ parent }}\nCOPY files/new /new\nRUN make torch\n"
    )
    site.served.log.clear()
    engine = Store()
    source = site.source(engine)
    plan = site.plan(source, engine)
    assert {step.name: type(step.action).__name__ for step in plan.steps} == {
        "base": "NotNeeded",
        "devel": "NotNeeded",
        "rccl": "Pull",
        "torch": "Build",
        "app": "Build",
    }
    assert len(site.served.log) == 3
    site.plan(source, engine)
    assert len(site.served.log) == 3


def test_what_is_here_is_not_asked_for(site: Site) -> None:
    site.push()
    site.served.log.clear()
    site.build_from(site.engine)
    assert site.served.log == []


def test_a_registry_that_cannot_be_asked_ends_the_plan(site: Site) -> None:
    site.served.faults = [times(99, 503)]
    with pytest.raises(Unreachable):
        site.plan(site.source(Store()), Store())


def test_a_blob_that_was_changed_fails_that_layer(site: Site) -> None:
    site.push()
    site.served.blobs[digest_of(site.tar("app"))] = site.tar("app")[:-1] + b"x"
    engine = Store()
    _, outcomes = site.build_from(engine)
    outcome = outcomes["app"]
    assert isinstance(outcome, Failed)
    assert "is not what its digest says" in str(outcome.error)
    assert not engine.refs
    started = [event.action for event in site.events if isinstance(event, LayerStarted)]
    assert started[-1] == "pull"
