"""Each fault of the stand-in ends in a sentence that names it, or in the very files that a healthy server gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strix_finetune.errors import FetchFailed, LockError, StrixError
from strix_finetune.fetch import fetch
from strix_finetune.lockmodel import WheelLock, WheelSetLock
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve.simple import resolve_wheels
from strix_finetune.schema import Index, WheelSet
from tests.standin.amd import NEWER, RELEASE, archives, placeholders
from tests.standin.faults import Altered, Cut, Kind, Shortened, Slow, Status
from tests.standin.server import Standin
from tests.standin.tree import Tree
from tests.unit.simple.shop import WHOLE

TORCH = "torch-2.13.0+rocm10.0.0-cp313-cp313-linux_x86_64.whl"
CORE = "rocm_sdk_core-10.0.0-py3-none-linux_x86_64.whl"
PACK = "amd_torch_device_gfx1151-2.13.0+rocm10.0.0-cp313-cp313-linux_x86_64.whl"
WANTED = WheelSet(
    index="amd",
    requirements=["torch[device-{target}]==2.13.0+rocm10.0.0", "torchvision[device-{target}]==0.28.0+rocm10.0.0"],
    follow=["amd-torch-*", "amd-torchvision-*", "rocm", "rocm-*", "triton"],
)


@dataclass
class Client:
    """Locks and fetches as the product does; `waits` has the pauses that it would have made, in seconds."""

    amd: Standin
    cache: Path
    waits: list[float] = field(default_factory=list)

    def lock(self, target: str = "gfx1151") -> WheelSetLock:
        return resolve_wheels(
            "torch",
            WANTED,
            Index(url=self.amd.index, absent=[403, 404]),
            target=target,
            python="3.13",
            glibc="2.41",
            settings=NetSettings(),
            cache=self.cache,
            tell=lambda line: None,
            sleep=self.waits.append,
        )

    def fetch(self, wheel: WheelLock) -> Path:
        folder = self.cache / "wheels"
        return fetch(wheel.url, wheel.sha256, wheel.size, folder, NetSettings(), sleep=self.waits.append)

    def left(self) -> list[str]:
        """What lies in the download folder."""
        folder = self.cache / "wheels"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture(scope="module")
def serving() -> Iterator[Standin]:
    older = archives(RELEASE, ["gfx1151", "gfx942"])
    with Standin(Tree([*older, *archives(NEWER, ["gfx1151"])])) as standin:
        yield standin


@pytest.fixture
def client(serving: Standin, tmp_path: Path) -> Client:
    serving.heal()
    return Client(serving, tmp_path)


@pytest.fixture(scope="module")
def healthy(serving: Standin, tmp_path_factory: pytest.TempPathFactory) -> WheelSetLock:
    """The lock when nothing goes wrong."""
    serving.heal()
    return Client(serving, tmp_path_factory.mktemp("healthy")).lock()


def test_the_set_of_a_target(healthy: WheelSetLock, client: Client) -> None:
    published = {item.sha256: item for item in archives(RELEASE, ["gfx1151"])}
    assert {wheel.name: wheel.version for wheel in healthy.wheels} == WHOLE
    for wheel in healthy.wheels:
        assert wheel.sha256 in published, wheel
        assert published[wheel.sha256].size == wheel.size
    assert {wheel.name for wheel in client.lock("gfx942").wheels} & {"amd-torch-device-gfx942", "triton"} == {
        "amd-torch-device-gfx942",
        "triton",
    }


RECOVERED: list[tuple[str, Kind, int]] = [
    ("/rocm/pytorch/whl-next/torch/", Status(429, retry_after="7"), 2),
    ("/rocm/pytorch/whl-next/torch/", Status(500), 2),
    ("/rocm/core/whl-next/rocm/", Status(503), 3),
    ("/rocm/pytorch/whl-next/torch/", Cut(after=100), 2),
    (f"*/{CORE}", Status(429, retry_after="7"), 2),
    (f"*/{CORE}", Cut(after=200_000), 2),
    (f"*/{TORCH}", Cut(after=10), 3),
    (f"*/{TORCH}", Slow(delay=0.01, piece=512), 9),
]


@pytest.mark.parametrize(("where", "kind", "times"), RECOVERED, ids=repr)
def test_a_lock_is_the_same_after_a_passing_fault(
    where: str, kind: Kind, times: int, client: Client, healthy: WheelSetLock
) -> None:
    fault = client.amd.fail(where, kind, times=times)
    assert client.lock().wheels == healthy.wheels
    assert fault.hits >= min(times, 2)
    if isinstance(kind, Status) and kind.retry_after:
        assert client.waits.count(7.0) == times


SPOILED: list[tuple[str, Kind, str]] = [
    ("/rocm/whl-next/torch/", Status(403), "the index 'amd' does not serve 'torch'"),
    ("/rocm/whl-next/torch/", Status(404), "the index 'amd' does not serve 'torch'"),
    ("/rocm/pytorch/whl-next/torch/", Status(500), "whl-next/torch/ gives no answer (HTTP 500)"),
    ("/rocm/pytorch/whl-next/torch/", Status(429, retry_after="3"), "whl-next/torch/ gives no answer (HTTP 429)"),
    ("/rocm/pytorch/whl-next/torch/", Cut(after=100), "whl-next/torch/ gives no answer (the connection was cut)"),
    ("/rocm/pytorch/whl-next/torch/", Shortened(keep=0), "the index page of 'torch' is empty"),
    ("/rocm/pytorch/whl-next/torch/", Shortened(keep=300), "the index page of 'torch' is cut off"),
    ("/rocm/whl-next/amd-torch-device-gfx1151/", Status(403), "does not serve 'amd-torch-device-gfx1151'"),
    (f"*/{TORCH}", Status(404), f"the index 'amd' lists {TORCH}, but it is not there"),
    (f"*/{TORCH}", Status(403), f"the index 'amd' lists {TORCH}, but it is not there"),
    (f"*/{PACK}", Status(500), f"{PACK} gives no answer (HTTP 500)"),
]


@pytest.mark.parametrize(("where", "kind", "sentence"), SPOILED, ids=repr)
def test_no_lock_comes_of_a_lasting_fault(where: str, kind: Kind, sentence: str, client: Client) -> None:
    client.amd.fail(where, kind)
    with pytest.raises(StrixError) as caught:
        client.lock()
    assert sentence in str(caught.value).replace("%2B", "+")
    assert "\n" not in str(caught.value)


def test_half_of_a_set_names_what_is_missing_and_what_is_whole(tmp_path: Path) -> None:
    tree = Tree([*archives(RELEASE, ["gfx1151"]), *archives(NEWER, ["gfx1151"])])
    tree.withdraw("amd_torch_device_gfx1151-2.13.0*")
    with Standin(tree) as amd, pytest.raises(LockError) as caught:
        Client(amd, tmp_path).lock()
    assert "the index 'amd' has no amd-torch-device-gfx1151==2.13.0+rocm10.0.0" in str(caught.value)
    assert "which torch 2.13.0+rocm10.0.0 needs" in str(caught.value)
    assert "the newest complete set has torch 2.14.0+rocm10.1.0" in str(caught.value)


def test_a_placeholder_does_not_win(tmp_path: Path) -> None:
    """What PyPI has under AMD's names is empty; here it lies on AMD's own index, which is worse."""
    tree = Tree(archives(RELEASE, ["gfx1151"]))
    for empty in placeholders():
        if empty.project.startswith("amd-torch"):
            tree.add(empty)
    with Standin(tree) as amd:
        assert {wheel.name: wheel.version for wheel in Client(amd, tmp_path).lock().wheels} == WHOLE


FETCHED: list[tuple[Kind, int]] = [
    (Status(429, retry_after="11"), 2),
    (Status(500), 3),
    (Cut(after=0), 2),
    (Cut(after=100_000), 4),
    (Slow(delay=0.01, piece=1 << 16), 1),
]


@pytest.mark.parametrize(("kind", "times"), FETCHED, ids=repr)
def test_a_download_recovers(kind: Kind, times: int, client: Client, healthy: WheelSetLock) -> None:
    core = next(wheel for wheel in healthy.wheels if wheel.name == "rocm-sdk-core")
    fault = client.amd.fail(f"*/{CORE}", kind, times=times)
    path = client.fetch(core)
    assert (path.name, path.stat().st_size, fault.hits) == (core.sha256, core.size, times)
    ranges = [asked.range for asked in client.amd.asked if asked.path.endswith(CORE) and asked.range]
    if isinstance(kind, Cut) and kind.after:
        # not a byte of it comes twice
        assert ranges == [f"bytes={kind.after * part}-" for part in range(1, times + 1)]


REFUSED: list[tuple[Kind, str]] = [
    (Status(403), "the server answers HTTP 403 for "),
    (Status(404), "the server answers HTTP 404 for "),
    (Status(500), f"{CORE} could not be downloaded (HTTP 500"),
    (Status(429, retry_after="1"), f"{CORE} could not be downloaded (HTTP 429"),
    (Cut(after=0), f"{CORE} could not be downloaded (the connection was cut"),
    (Altered(), f"{CORE} is not the file that the lock names: its sha256 is "),
    (Shortened(keep=1000), f"{CORE} has 1000 bytes there, and the lock says "),
]


@pytest.mark.parametrize(("kind", "sentence"), REFUSED, ids=repr)
def test_a_download_that_cannot_be_right_leaves_nothing(
    kind: Kind, sentence: str, client: Client, healthy: WheelSetLock
) -> None:
    core = next(wheel for wheel in healthy.wheels if wheel.name == "rocm-sdk-core")
    client.amd.fail(f"*/{CORE}", kind)
    with pytest.raises(FetchFailed) as caught:
        client.fetch(core)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert client.left() == []
