"""A site for each test; its final layer has a test that every image passes, and one that needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Images
from tests.unit.registry.site import Site
from tests.unit.registry_double import double

SMOKE = '[[smoke]]\nfile = "smoke/it.sh"\n[[smoke]]\nfile = "smoke/gpu.sh"\nkind = "device"\n'


@pytest.fixture
def site(chain: Images) -> Iterator[Site]:
    chain.write("images/app/layer.toml", (chain.path / "app/layer.toml").read_text() + SMOKE)
    for name in ("it", "gpu"):
        chain.write(f"images/app/smoke/{name}.sh", "#!/bin/sh\n", executable=True)
    with double() as served:
        made = Site(chain, served)
        made.build()
        yield made
