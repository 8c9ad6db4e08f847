"""Wheels of a lock that do not belong together; device code that is missing, of another GPU or another release."""

from __future__ import annotations

import pytest

from strix_finetune.errors import LockError
from strix_finetune.lock import check_versions, version_problems
from strix_finetune.lockmodel import AptLock, Lock, PipLock, WheelLock, WheelSetLock
from strix_finetune.model import Stack
from tests.conftest import Images

CHANNEL = """\
[indexes]
amd = { url = "https://stable.example/whl" }
[layers.base.wheels.rocm]
index = "amd"
requirements = ["rocm[libraries,device-{target}]==10.0.0"]
[layers.torch.wheels.torch]
index = "amd"
requirements = ["torch[device-{target}]==2.13.0+rocm10.0.0"]
"""
ROCM = ["rocm 10.0.0", "rocm-bootstrap 0.1.0", "rocm-sdk-libraries 10.0.0", "rocm-sdk-device-gfx1151 10.0.0"]
TORCH = [
    "torch 2.13.0+rocm10.0.0",
    "triton 3.8.0+git4cff872c.rocm10.0.0",
    "amd-torch-device-gfx1151 2.13.0+rocm10.0.0",
    "amd-torch-device-gfx115x 2.13.0+rocm10.0.0",
]


@pytest.fixture
def stack(chain: Images) -> Stack:
    chain.channel("amd", CHANNEL)
    return chain.stack(channel="amd")


def said(stack: Stack, rocm: list[str], torch: list[str]) -> list[str]:
    sets = {
        name: WheelSetLock(
            "3.14",
            "amd",
            "2026-10-30T08:08:01Z",
            "d" * 64,
            tuple(
                WheelLock(project, version, f"https://x.example/{project}-{version}.whl", f"{len(project):064x}")
                for project, version in map(str.split, words)
            ),
        )
        for name, words in (("rocm", rocm), ("torch", torch))
    }
    lock = Lock("amd", "gfx1151", AptLock("sid", {}), wheels=sets)
    problems = version_problems(stack, lock)
    if problems:
        with pytest.raises(LockError):
            check_versions(stack, lock)
    return [f"{problem.place.line if problem.place else ''}: {problem.message}" for problem in problems]


def without(words: list[str], name: str, *more: str) -> list[str]:
    return [word for word in words if word.split()[0] != name] + list(more)


def test_a_whole_set(stack: Stack) -> None:
    assert said(stack, ROCM, TORCH) == []
    assert said(stack, [], []) == []
    # wheels of another maker say nothing of a ROCm, and bring their device code themselves
    assert said(stack, [], ["torch 2.11.0+rocm7.2", "triton-rocm 3.6.0"]) == []


def test_two_releases_of_rocm(stack: Stack) -> None:
    newer = without(TORCH, "triton", "triton 3.9.0+git11d5a2c0.rocm10.1.0")
    [line] = said(stack, ROCM, newer)
    assert line.endswith(": triton 3.9.0+git11d5a2c0.rocm10.1.0 is for ROCm 10.1.0, and rocm 10.0.0 for ROCm 10.0.0")
    first, other = "10.1.0a20260823", "10.1.0a20260824"
    assert len(said(stack, [f"rocm {first}"], [f"torch 2.14.0+rocm{other}"])) == 1


def test_a_device_pack_is_missing(stack: Stack) -> None:
    assert said(stack, without(ROCM, "rocm-sdk-device-gfx1151"), TORCH) == [
        "8: rocm-sdk-device-gfx1151 is not locked, and without it rocm-sdk-libraries 10.0.0 has no code for gfx1151"
    ]
    [line] = said(stack, ROCM, without(TORCH, "amd-torch-device-gfx1151"))
    assert line.endswith(
        "amd-torch-device-gfx1151 is not locked, and without it torch 2.13.0+rocm10.0.0 has no code for gfx1151"
    )


def test_a_device_pack_of_another_gpu(stack: Stack) -> None:
    [line] = said(stack, ROCM, [*TORCH, "amd-torch-device-gfx90a 2.13.0+rocm10.0.0"])
    assert line.endswith("amd-torch-device-gfx90a 2.13.0+rocm10.0.0 has device code for another GPU than gfx1151")
    assert said(stack, ROCM, [*TORCH, "amd-torch-device-gfx12-0 2.13.0+rocm10.0.0"]) == []


def test_a_placeholder_and_a_pack_without_its_host(stack: Stack) -> None:
    [line] = said(stack, ROCM, without(TORCH, "amd-torch-device-gfx1151", "amd-torch-device-gfx1151 0.0.1.dev0"))
    assert line.endswith("amd-torch-device-gfx1151 0.0.1.dev0 does not belong to torch 2.13.0+rocm10.0.0")
    lines = said(stack, ROCM, [TORCH[2]])
    assert lines[0].endswith(
        "amd-torch-device-gfx1151 2.13.0+rocm10.0.0 is of no use without torch, which is not locked"
    )


def test_placeholders_of_the_index_of_python_packages(stack: Stack) -> None:
    text = f"amd-torch-device-gfx1151==0.0.1.dev0 --hash=sha256:{'a' * 64}\npeft==1.0 --hash=sha256:{'b' * 64}\n"
    lock = Lock("amd", "gfx1151", AptLock("sid", {}), pip={"app": PipLock("3.14", text, "d" * 64)})
    [problem] = version_problems(stack, lock)
    assert "'app' has amd-torch-device-gfx1151 0.0.1.dev0 from the index of Python packages, where it is empty; " in (
        str(problem)
    )
