"""A channel's index somewhere else: what the host says, and what that makes of addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune import mirrors, netconf
from strix_finetune.errors import InputError
from strix_finetune.lockmodel import WheelLock
from strix_finetune.netconf import Flags
from strix_finetune.schema import Index
from strix_finetune.workspace import Options, open_workspace
from tests.conftest import Images

INDEX = Index(url="https://stable.example/rocm/whl-next")
FILE = "torch-2.13.0%2Brocm10-cp313-cp313-linux_x86_64.whl"
MIRROR = "http://127.0.0.1:8080/amd"


def test_a_flag_wins_over_a_variable() -> None:
    env = {
        "STRIX_INDEX_AMD": "https://a.example/whl/",
        "STRIX_INDEX_AMD_EDGE": "http://localhost:1",
        "STRIX_INDEX_X": "",
    }
    found = mirrors.collect(env, ["amd=https://b.example"])
    assert found == {"STRIX_INDEX_AMD": "https://b.example", "STRIX_INDEX_AMD_EDGE": "http://localhost:1"}
    settings = netconf.collect(env, Flags(indexes=("amd=https://b.example",)), run=lambda command: "")
    assert [settings.index_url(name) for name in ("amd", "amd-edge", "amd.edge", "pytorch")] == [
        "https://b.example",
        "http://localhost:1",
        "http://localhost:1",
        "",
    ]


@pytest.mark.parametrize(
    ("env", "flags", "says"),
    [
        ({}, ["amd"], "--index 'amd' names no index and URL; write it as NAME=URL"),
        ({}, ["=https://a.example"], "--index '=https://a.example' names no index and URL; write it as NAME=URL"),
        ({}, ["amd=http://a.example"], "'http://a.example' of --index cannot be the URL of an index; it begins with"),
        ({}, ["amd=/srv/wheels"], "'/srv/wheels' of --index cannot be the URL of an index; it begins with"),
        (
            {"STRIX_INDEX_AMD": "https://me:secret@a.example"},
            [],
            "'https://***@a.example' of STRIX_INDEX_AMD cannot be the URL of an index",
        ),
        ({"STRIX_INDEX_AMD": "https://a.example/?token=x"}, [], "of STRIX_INDEX_AMD cannot be the URL of an index"),
    ],
)
def test_what_cannot_be_an_index(env: dict[str, str], flags: list[str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        mirrors.collect(env, flags)
    assert says in str(caught.value)


def test_an_index_that_the_channel_does_not_have(chain: Images) -> None:
    chain.channel("amd", '[indexes.amd-next]\nurl = "https://stable.example/whl"\n')

    def opened(*flags: str, channel: str = "amd") -> None:
        open_workspace(Options("gfx1151", channel, images=chain.path, network=Flags(indexes=flags)), {})

    opened("amd-next=https://a.example")
    with pytest.raises(InputError, match=r"the channel amd has no index 'amd-nxt'; did you mean 'amd-next'\?"):
        opened("amd-nxt=https://a.example")
    with pytest.raises(InputError, match="the channel debian has no index 'amd-next'; none is defined"):
        opened("amd-next=https://a.example", channel="debian")


@pytest.mark.parametrize(
    ("url", "there"),
    [
        (f"{INDEX.url}/torch/{FILE}", f"{MIRROR}/torch/{FILE}"),
        (f"{INDEX.url}/{FILE}", f"{MIRROR}/{FILE}"),
        # where a redirect led: not below the index's own address
        (f"https://stable.example/rocm/pytorch/whl-next/torch/{FILE}", f"{MIRROR}/torch/{FILE}"),
        (f"https://cdn.example/x/{FILE}?token=1#sha256=abc", f"{MIRROR}/torch/{FILE}"),
        ("https://stable.example/rocm/whl-nextt/a/torch-1.whl", f"{MIRROR}/torch/torch-1.whl"),
    ],
)
def test_where_a_mirror_has_a_file(url: str, there: str) -> None:
    wheel = WheelLock("torch", "2.13.0+rocm10", url, "a" * 64)
    assert mirrors.address(wheel, INDEX, MIRROR) == there
    assert mirrors.address(wheel, INDEX, "") == url


@given(st.from_regex(r"[a-z0-9]{1,8}(/[A-Za-z0-9._-]{1,8}){0,2}", fullmatch=True))
def test_what_is_found_on_a_mirror_is_locked_as_the_index_has_it(folder: str) -> None:
    wheel = WheelLock("torch", "2.13.0+rocm10", f"{MIRROR}/{folder}/{FILE}", "a" * 64, 5)
    locked = mirrors.canonical(wheel, INDEX, MIRROR)
    assert locked.url == f"{INDEX.url}/{folder}/{FILE}"
    assert mirrors.address(locked, INDEX, MIRROR) == wheel.url
    assert (locked.sha256, locked.size, locked.file) == (wheel.sha256, wheel.size, wheel.file)
    assert mirrors.canonical(wheel, INDEX, "") is wheel
