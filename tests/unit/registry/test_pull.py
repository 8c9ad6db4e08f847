"""A release as an engine gets it, and what is told where there is none."""

from __future__ import annotations

import pytest

from strix_finetune import names
from strix_finetune.errors import InputError, StrixError
from strix_finetune.oci.descriptor import INDEX
from strix_finetune.plan import tags_of
from tests.unit.registry.site import TARGET, Site, Store


def test_a_pulled_image_has_the_names_of_a_built_one(site: Site) -> None:
    site.push()
    engine = Store()
    image = site.pull(engine)
    assert {ref for ref, held in engine.refs.items() if held == image} == set(tags_of(site.keyed["app"], site.stack))
    assert site.plan(engine=engine).step("app").action.reason == "up to date"
    assert "tests on a GPU" in "".join(site.heard())
    assert not [path for path in (site.images.root / "pulls").iterdir() if path.is_dir()]
    before = len(site.served.requests("GET"))
    assert site.pull(engine) == image
    # the index, the manifest, the configuration
    assert len(site.served.requests("GET")) == before + 3


def test_layers_that_the_engine_has_are_not_fetched(site: Site) -> None:
    site.push()
    site.write("python/strix_train/run.py", "print(2)\n")
    engine = Store()
    site.build(engine)
    site.served.log.clear()
    site.pull(engine)
    fetched = {line.rpartition("/")[2] for line in site.served.requests("GET") if "/blobs/" in line}
    assert len(fetched) == 2
    assert [call for call in engine.calls if call[0] == "load"] == [("load", "3.tar")]


def test_an_engine_that_keeps_images_in_its_own_way(site: Site) -> None:
    """Ids that are no digests of configurations, and no layer may be missing."""
    site.push()
    site.write("python/strix_train/run.py", "print(2)\n")
    engine = Store(own_ids=True, partial=False)
    site.build(engine)
    image = site.pull(engine)
    assert engine.refs[names.final_ref(TARGET)] == image
    assert [call for call in engine.calls if call[0] == "load"] == [("load", "0.tar", "1.tar", "2.tar", "3.tar")]
    assert not any("/pulled:" in ref for ref in engine.refs)
    before = len(engine.calls)
    assert site.pull(engine) == image
    assert "load" not in {call[0] for call in engine.calls[before:]}


def test_a_target_that_is_not_there_is_told_with_those_that_are(site: Site) -> None:
    with pytest.raises(InputError, match="has no image for gfx1151; check the name of the repository"):
        site.pull(Store())
    site.served.manifests["a/b", "cpu"] = (INDEX, b"{}")
    with pytest.raises(InputError, match="has no image for gfx1151; it has images for cpu: name one"):
        site.pull(Store())


def test_an_engine_that_loads_something_else_is_seen(site: Site) -> None:
    site.push()
    engine = Store(broken=True)
    with pytest.raises(StrixError, match="as another image than it is"):
        site.pull(engine)
    assert not engine.refs
