"""The stack of most of these tests."""

from __future__ import annotations

import pytest

from tests.conftest import Images
from tests.unit.execute.site import Site


@pytest.fixture
def site(images: Images) -> Site:
    """base → left, right (independent) → top; top takes files of both."""
    images.layer("base")
    images.layer("left", 'parent = ["base"]\n')
    images.layer("right", 'parent = ["base"]\n')
    images.layer("top", 'parent = ["left"]\nbuilders = ["right"]\nfinal = true\n')
    return Site(images)
