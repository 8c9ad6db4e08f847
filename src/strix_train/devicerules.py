"""What a GPU, its ROCm and a model must not do together: each rule with its reason, which the run prints. Pure.

Sources: public reports of 2025 and 2026 on RDNA (Gemma 3 and bf16, AOTriton's head widths, bitsandbytes' ROCm 6.4
library, grouped matrix products, memory shared with the system). None was found out on such a GPU by this project.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from strix_train.errors import InputError, Problem
from strix_train.modelfacts import ModelFacts

Compile = Literal["full", "partial", "off"]
RDNA = ("gfx10", "gfx11", "gfx12")
UNIFIED = ("gfx90c", "gfx1033", "gfx1035", "gfx1036", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153")
# What the system and its programs need beside the GPU where both live in the same memory: a fifth, and 8 GiB at least.
_SYSTEM_SHARE, _SYSTEM_LEAST = 0.2, 8 * 2**30


@dataclass(frozen=True, slots=True)
class Facts:
    """What is computed on what. Versions are numbers: ROCm 6.4.2 is (6, 4). Sizes in bytes.

    `arch`: AMD's name of the GPU, empty elsewhere. `system_memory`: what the system sees; `carved_out`: what the
    firmware took from it for the GPU. `bits`: 4, 8 or 16 of the frozen weights. `avx512`: the CPU's bf16 kernels.
    """

    kind: Literal["cpu", "rocm", "cuda"]
    model: ModelFacts = field(default_factory=ModelFacts)
    arch: str = ""
    rocm: tuple[int, int] = (0, 0)
    torch: tuple[int, int] = (0, 0)
    bits: int = 16
    unified: bool = False
    gpu_memory: int = 0
    system_memory: int = 0
    carved_out: int = 0
    avx512: bool = False

    @property
    def rdna(self) -> bool:
        """Whether this is a Radeon of the RDNA line."""
        return self.kind == "rocm" and self.arch.startswith(RDNA)


@dataclass(frozen=True, slots=True)
class Rules:
    """How to compute. `attention`: None leaves it to the backend. `memory`: share of the GPU's memory that may be used.

    `experts`: None, or the way that expert layers multiply. `flash`: whether SDPA's fused kernels may be used.
    `reasons`: one sentence for each thing that is not as usual.
    """

    attention: str | None = None
    compile: Compile = "full"
    flash: bool = True
    experts: str | None = None
    memory: float | None = None
    plain_4bit: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


def rules(facts: Facts) -> Rules:
    """Return the rules for these facts. Raises InputError for what can only give wrong numbers."""
    _refuse(facts)
    attention: str | None = None
    how: Compile = "full"
    flash, plain, experts, share = True, False, None, None
    environment: dict[str, str] = {}
    reasons: list[str] = []
    if facts.rdna:
        # what Unsloth does for itself, for the other backend as well
        environment |= {"TORCH_BLAS_PREFER_HIPBLASLT": "0", "DISABLE_ADDMM_HIP_LT": "1"}
        if facts.model.is_of("gemma3"):
            attention, how = "eager", "partial"
            reasons.append(f"eager attention and no compiled forward pass: on {facts.arch} they make Gemma 3 NaN")
        elif facts.model.is_of("qwen3_5") and facts.arch.startswith("gfx115"):
            attention = "eager"
            reasons.append(f"eager attention: fused attention crashes Qwen 3.5 on {facts.arch}")
        if facts.arch.startswith("gfx11") and facts.model.head_width > 256:
            flash = False
            reasons.append(
                f"no fused attention: on {facts.arch} it is silently wrong for heads of {facts.model.head_width}, "
                "more than 256"
            )
        elif attention is None:
            environment["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"] = "1"
        if facts.model.experts and facts.arch.startswith("gfx115") and facts.torch < (2, 11):
            experts = "eager"
            reasons.append(f"experts one by one: grouped products crash torch before 2.11 on {facts.arch}")
    if facts.kind == "rocm" and facts.arch == "gfx906":
        how = "off"
        reasons.append("nothing is compiled: gfx906 has no kernels for it")
    if facts.kind == "cpu" and facts.bits == 4 and facts.avx512:
        plain = True
        reasons.append("4-bit weights are not repacked for AVX512: after an evaluation, gradients would be wrong")
    if facts.kind != "cpu" and facts.unified:
        share = memory_share(facts.gpu_memory, facts.system_memory, facts.carved_out)
        if share is not None:
            reasons.append(
                f"at most {share:.0%} of the GPU's memory: the system lives in the same one, and freezes without any"
            )
    return Rules(attention, how, flash, experts, share, plain, environment, tuple(reasons))


def memory_share(gpu: int, system: int, carved_out: int) -> float | None:
    """Return the share of its memory that a GPU may use where the system lives in the same one, None for all of it.

    Sizes in bytes. What the firmware carved out is the GPU's alone; of the rest, the system keeps its part.
    """
    reserve = max(_SYSTEM_LEAST, int(_SYSTEM_SHARE * system))
    most = carved_out + max(0, system - reserve)
    if gpu <= 0 or system <= 0 or most >= gpu:
        return None
    return round(most / gpu, 3)


def has_bf16(arch: str, reported: bool) -> bool:
    """Whether a GPU multiplies bf16 itself. torch says yes for every ROCm GPU; before RDNA 3 it is emulated."""
    return reported and not arch.startswith(("gfx10", "gfx900", "gfx906", "gfx90c"))


def half_is_too_narrow(model: ModelFacts) -> bool:
    """Whether fp16 overflows in this family's activations, so that training ends in NaN."""
    return model.is_of("gemma2", "gemma3", "gemma4")


def version_pair(text: str | None) -> tuple[int, int]:
    """Return (major, minor) of a version, (0, 0) where there is none."""
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _refuse(facts: Facts) -> None:
    if facts.arch == "gfx1033":
        raise InputError(Problem("gfx1033 (Steam Deck) computes wrong results", cure="hide it: HIP_VISIBLE_DEVICES=-1"))
    if facts.kind == "rocm" and facts.bits == 4:
        if facts.arch.startswith("gfx11") and facts.rocm[0] == 6:
            version = ".".join(str(number) for number in facts.rocm)
            raise InputError(
                Problem(
                    f"4-bit weights are wrong on {facts.arch} with ROCm {version}",
                    cure="use an image with ROCm 7, or adapter: lora",
                )
            )
        if facts.arch == "gfx906":
            raise InputError(Problem("bitsandbytes has no 4-bit kernels for gfx906", cure="write adapter: lora"))
