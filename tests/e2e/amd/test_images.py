"""From the lock to the images."""

from __future__ import annotations

from pathlib import Path

import pytest

from strix_finetune.engine.base import Engine, RunRequest
from tests.e2e.amd.images import FIRST, OTHERS, moving, offline_build
from tests.standin.command import PREFIX
from tests.standin.place import Place, Said

# what only real packages can show, and what only a GPU can
COMPUTES = {"rocm/runtime.py", "pytorch/torch_cpu.py", "unsloth/lora_step.py", "export/converts.py"}
ON_A_GPU = {
    "rocm/hip_device.py",
    "pytorch/torch_device.py",
    "pytorch/collectives_device.py",
    "unsloth/four_bits_device.py",
}


def test_the_whole_chain_is_built_from_the_folder(built: Said, docker: Engine) -> None:
    done = {event["layer"]: event["outcome"] for event in built.events if event["event"] == "layer-done"}
    planned = [event["layer"] for event in built.events if event.get("action") == "build"]
    assert {"base", "rocm", "pytorch", "unsloth", "finetune"} <= set(planned)
    assert done == dict.fromkeys(planned, "built")
    assert f"{PREFIX}:{FIRST}" in moving(docker)


def test_every_smoke_test_has_passed_or_says_why_not(built: Said) -> None:
    states: dict[str, set[str]] = {}
    for (_, test), (state, _) in built.smoke.items():
        states.setdefault(test, set()).add(state)
    not_shown = {test for test, found in states.items() if found == {"not-run"}}
    assert not_shown == COMPUTES | ON_A_GPU
    assert {test for test, found in states.items() if found == {"passed"}} == states.keys() - not_shown
    for (_, test), (_, detail) in built.smoke.items():
        if test in COMPUTES:
            assert "is a stub that" in detail
        if test in ON_A_GPU:
            assert "no AMD GPU on this machine" in detail


def test_the_guards_have_looked_at_each_layer(built: Said) -> None:
    """Device code is read in the layer that brings it; who came later must not have touched it."""
    details = {(layer, test): detail for (layer, test), (_, detail) in built.smoke.items()}
    for layer in ("pytorch", "unsloth", "finetune"):
        assert "torch 2.13.0+rocm10.0.0 (HIP 7.15.26333" in details[layer, "pytorch/rocm_build.py"]
        assert "_rocm_sdk_libraries/lib/librccl.so.1, the only one" in details[layer, "pytorch/one_rccl.py"]
        assert "5 packages are the locked ones and whole" in details[layer, "rocm/packages.py"]
    assert "all for gfx1151 alone" in details["rocm", "rocm/packages.py"]
    assert "code for gfx1151 alone" in details["pytorch", "pytorch/rocm_build.py"]
    assert "libbitsandbytes_rocm715.so" in details["unsloth", "unsloth/bitsandbytes_library.py"]


@pytest.mark.parametrize("target", OTHERS)
def test_another_target_is_built_from_the_folder(locked: Place, vendored: Path, built: Said, target: str) -> None:
    said = offline_build(locked, vendored, target, "pytorch")
    details = {(layer, test): detail for (layer, test), (_, detail) in said.smoke.items()}
    assert {state for _, (state, _) in said.smoke.items()} == {"passed", "not-run"}
    assert f"code for {target} alone" in details["pytorch", "pytorch/rocm_build.py"]
    assert f"all for {target} alone" in details["rocm", "rocm/packages.py"]


def test_nothing_is_left_to_do(locked: Place, vendored: Path, built: Said) -> None:
    said = offline_build(locked, vendored, FIRST)
    # the workbench is built when it is asked for
    plan = {event["layer"]: event["action"] for event in said.events if event["event"] == "layer-planned"}
    assert plan == {**dict.fromkeys(plan, "reuse"), "workbench": "not-needed"}


def test_the_image_holds_one_rocm_and_says_what_it_is(docker: Engine, built: Said) -> None:
    program = (
        "import os, torch; from importlib.metadata import version as v;"
        "print(torch.version.hip, v('torch'), v('triton'), os.environ['STRIX_CHANNEL_NOTICE'].split(';')[0])"
    )
    said: list[bytes] = []
    request = RunRequest(f"{PREFIX}:{FIRST}", ("/opt/venv/bin/python", "-c", program), network="none")
    assert docker.run(request, said.append).exit_code == 0, b"".join(said)
    assert b"".join(said).decode().strip() == (
        "7.15.26333 2.13.0+rocm10.0.0 3.8.0+git4cff872c.rocm10.0.0 Channel amd: ROCm 10.0.0 with PyTorch 2.13"
    )
