"""Each fault of an index, and the sentence that it ends in."""

from __future__ import annotations

import pytest

from tests.standin.faults import Altered, Cut, Shortened, Status
from tests.unit.simple.shop import WHOLE, Shop, versions

PAGE = "/rocm/pytorch/whl-next/torch/"


@pytest.mark.parametrize(
    ("where", "kind", "says"),
    [
        ("/rocm/whl-next/torch/", Status(403), "the index 'stable' does not serve 'torch'; try again later"),
        ("/rocm/whl-next/torch/", Status(404), "the server answers HTTP 404 for http://127.0.0.1"),
        ("/rocm/whl-next/torch/", Status(401), "HTTP 401 for "),
        ("/rocm/whl-next/torch/", Status(407), "the proxy lets nobody ask "),
        ("/rocm/whl-next/torch/", Status(500), "whl-next/torch/ gives no answer (HTTP 500); check the network"),
        ("/rocm/whl-next/torch/", Status(429), "gives no answer (HTTP 429); check the network"),
        (PAGE, Cut(50), "gives no answer (the connection was cut); check the network"),
        (PAGE, Shortened(0), "the index page of 'torch' is empty"),
        (PAGE, Shortened(60), "the index page of 'torch' is cut off"),
    ],
)
def test_faults_of_a_page(shop: Shop, where: str, kind: Status | Cut | Shortened, says: str) -> None:
    shop.amd.fail(where, kind)
    assert says in shop.refused()


@pytest.mark.parametrize(
    ("file", "kind", "says"),
    [
        ("*/torch-2.13*cp313-linux*", Status(404), "cp313-linux_x86_64.whl, but it is not there; try again later"),
        ("*/torch-2.13*cp313-linux*", Status(403), "the index 'stable' lists torch-2.13.0+rocm10.0.0-cp313"),
        ("*/torch-2.13*cp313-linux*", Status(500), "gives no answer (HTTP 500)"),
        ("*/torch-2.13*cp313-linux*", Shortened(900), "cp313-linux_x86_64.whl cannot be read (File is not a zip file)"),
        ("*/rocm-10.0.0.tar.gz", Shortened(40), "rocm-10.0.0.tar.gz cannot be read ("),
        ("*/rocm_sdk_core-*", Cut(9000), "rocm_sdk_core-10.0.0-py3-none-linux_x86_64.whl could not be downloaded"),
    ],
)
def test_faults_of_a_file(shop: Shop, file: str, kind: Status | Cut | Shortened, says: str) -> None:
    # the parts that metadata is read from still come
    shop.amd.fail(file, kind, skip=2 if isinstance(kind, Cut) else 0)
    assert says in shop.refused()


def test_what_passes_is_waited_for(shop: Shop) -> None:
    shop.amd.fail("/rocm/whl-next/torch/", Status(429, "7"), times=1)
    shop.amd.fail("/rocm/whl-next/rocm/", Status(503), times=3)
    shop.amd.fail("*/rocm_sdk_core-*", Cut(100_000), times=1, skip=2)
    assert versions(shop.resolve()) == WHOLE
    assert shop.waits[0] == 7.0
    assert len(shop.waits) == 5
    resumed = [asked.range for asked in shop.amd.asked if "rocm_sdk_core" in asked.path and asked.sent > 100_000]
    assert resumed == ["bytes=100000-"]


def test_a_file_that_changes_while_its_metadata_is_read(shop: Shop) -> None:
    shop.amd.fail("*/torch-2.13*cp313-linux*", Altered(), skip=1)
    assert "cp313-linux_x86_64.whl changed while it was read; try again" in shop.refused()


def test_a_status_means_absent_only_where_the_channel_says_so(shop: Shop) -> None:
    assert "the server answers HTTP 403 for " in shop.refused(absent=(404,), target="gfx1201")
