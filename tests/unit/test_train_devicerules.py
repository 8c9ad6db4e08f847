"""The rules for devices: what each GPU, ROCm and model must not do together, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strix_train import modelfacts
from strix_train.devicerules import Facts, Rules, half_is_too_narrow, has_bf16, memory_share, rules, version_pair
from strix_train.errors import InputError
from strix_train.modelfacts import ModelFacts, of_config

GIB = 2**30
LLAMA = of_config({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32})
GEMMA3 = of_config({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "head_dim": 256}})
GEMMA4 = of_config({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "head_dim": 256}})
QWEN35 = of_config({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text", "head_dim": 256}})
GPT_OSS = of_config({"model_type": "gpt_oss", "head_dim": 64, "num_local_experts": 32})


def on(arch: str, model: ModelFacts = LLAMA, **more: Any) -> Rules:
    return rules(Facts("rocm", model, arch, **{"rocm": (7, 2), "torch": (2, 11), **more}))


def test_facts_of_configurations(tmp_path: Path) -> None:
    assert ModelFacts(("llama",), 128, False) == LLAMA
    assert ModelFacts(("gemma3", "gemma3_text"), 256, False) == GEMMA3
    assert GEMMA4.head_width == 512
    assert of_config({"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 384}).head_width == 384
    assert GPT_OSS.experts
    assert not of_config({"model_type": "x", "num_shared_experts": None, "shared_experts": 1}).is_of("y")
    assert modelfacts.read(tmp_path) == ModelFacts()
    (tmp_path / "config.json").write_text("[]")
    assert modelfacts.read(tmp_path) == ModelFacts()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "head_dim": 80}))
    assert modelfacts.read(tmp_path) == ModelFacts(("llama",), 80, False)


def test_a_cpu_and_nvidia_are_left_alone() -> None:
    for facts in (Facts("cpu", GEMMA3), Facts("cuda", GEMMA4, gpu_memory=141 * GIB), Facts("cuda", GPT_OSS, bits=4)):
        assert rules(facts) == Rules()


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1151", "gfx1201", "gfx1030"])
def test_gemma3_on_rdna(arch: str) -> None:
    found = on(arch, GEMMA3)
    assert (found.attention, found.compile) == ("eager", "partial")
    assert found.reasons == (f"eager attention and no compiled forward pass: on {arch} they make Gemma 3 NaN",)


def test_gemma3_on_an_instinct_is_as_usual() -> None:
    assert on("gfx942", GEMMA3) == Rules()


def test_wide_heads_and_fused_attention() -> None:
    for arch in ("gfx1100", "gfx1151"):
        found = on(arch, GEMMA4)
        assert not found.flash
        assert "heads of 512, more than 256" in found.reasons[0]
        assert "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL" not in found.environment
    assert on("gfx1201", GEMMA4).flash
    assert on("gfx1151", LLAMA).flash
    assert on("gfx1151", LLAMA).environment["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"] == "1"


def test_qwen35_and_experts_on_strix_halo() -> None:
    assert on("gfx1151", QWEN35).attention == "eager"
    assert on("gfx1100", QWEN35).attention is None
    assert on("gfx1151", GPT_OSS, torch=(2, 10)).experts == "eager"
    assert on("gfx1151", GPT_OSS).experts is None


@pytest.mark.parametrize(("arch", "rocm"), [("gfx1151", (6, 4)), ("gfx1100", (6, 4)), ("gfx906", (7, 2))])
def test_4_bits_where_they_are_wrong(arch: str, rocm: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"4-bit .*adapter: lora"):
        on(arch, bits=4, rocm=rocm)
    assert on(arch, bits=16, rocm=rocm) is not None


def test_4_bits_where_they_are_right() -> None:
    assert on("gfx1151", bits=4).reasons == ()
    assert on("gfx942", bits=4, rocm=(6, 4)).reasons == ()


def test_a_steam_deck_is_refused_and_gfx906_compiles_nothing() -> None:
    with pytest.raises(InputError, match="gfx1033"):
        on("gfx1033")
    assert on("gfx906").compile == "off"


def test_4_bits_on_a_cpu_with_avx512() -> None:
    assert rules(Facts("cpu", LLAMA, bits=4, avx512=True)).plain_4bit
    assert not rules(Facts("cpu", LLAMA, bits=8, avx512=True)).plain_4bit
    assert not rules(Facts("cpu", LLAMA, bits=4)).plain_4bit


@pytest.mark.parametrize(
    ("gpu", "system", "carved_out", "share"),
    [
        (128, 128, 0, 0.8),  # all of the memory lent to the GPU: a fifth stays with the system
        (120, 125, 1, 0.842),
        (62, 125, 1, None),  # half of it lent, as Linux does by default: enough is left
        (96, 31, 96, None),  # the firmware gave 96 of 128 GiB to the GPU alone
        (104, 31, 96, None),
        (30, 32, 0, 0.8),
        (15, 16, 0, 0.533),  # a small machine keeps 8 GiB
        (8, 0, 0, None),
        (0, 16, 0, None),
    ],
)
def test_memory_that_is_shared(gpu: int, system: int, carved_out: int, share: float | None) -> None:
    assert memory_share(gpu * GIB, system * GIB, carved_out * GIB) == share


def test_the_share_is_told_on_unified_memory_only() -> None:
    memory = {"gpu_memory": 128 * GIB, "system_memory": 128 * GIB}
    assert on("gfx1151", unified=True, **memory).memory == 0.8
    assert "at most 80% of the GPU's memory" in on("gfx1151", unified=True, **memory).reasons[0]
    assert on("gfx1100", **memory).memory is None


def test_number_formats() -> None:
    assert has_bf16("gfx1151", True)
    assert has_bf16("gfx942", True)
    assert has_bf16("", True)
    assert not has_bf16("", False)
    assert not has_bf16("gfx1030", True)
    assert not has_bf16("gfx906", True)
    assert half_is_too_narrow(GEMMA3)
    assert half_is_too_narrow(GEMMA4)
    assert not half_is_too_narrow(LLAMA)


def test_versions() -> None:
    assert version_pair("7.2.53211-671d39a") == (7, 2)
    assert version_pair("2.13.0+cpu") == (2, 13)
    assert version_pair(None) == (0, 0)
