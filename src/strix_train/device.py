"""What torch computes on, asked of torch itself. `torch.cuda` is the API on ROCm and on CUDA alike."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strix_train.devicerules import UNIFIED, half_is_too_narrow, has_bf16
from strix_train.errors import InputError, Problem
from strix_train.modelfacts import ModelFacts

Precision = Literal["bf16", "fp16", "fp32"]


@dataclass(frozen=True, slots=True)
class Device:
    """The device of this process. `torch`: torch's name of it. `kind`: cpu, rocm or cuda. `memory` in bytes.

    `arch`: AMD's name of the GPU. `unified`: the system lives in the GPU's memory.
    """

    torch: str
    kind: Literal["cpu", "rocm", "cuda"]
    name: str
    build: str
    memory: int
    has_bf16: bool
    has_fp16: bool
    arch: str = ""
    unified: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether this is a GPU of either make."""
        return self.kind != "cpu"


def find(*, use_gpu: bool = True) -> Device:
    """Return the device that this process computes on. Imports torch."""
    import torch

    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if use_gpu and torch.cuda.is_available():
        index = rank % torch.cuda.device_count()
        torch.cuda.set_device(index)
        found = torch.cuda.get_device_properties(index)
        kind: Literal["rocm", "cuda"] = "rocm" if torch.version.hip else "cuda"
        build = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        name = found.name
        arch = str(getattr(found, "gcnArchName", "")).partition(":")[0]
        if kind == "rocm" and arch and arch not in name:
            name = f"{name} ({arch})"
        bf16 = has_bf16(arch, bool(torch.cuda.is_bf16_supported()))
        unified = arch in UNIFIED or bool(getattr(found, "is_integrated", False))
        return Device(f"cuda:{index}", kind, name, build, int(found.total_memory), bf16, True, arch, unified)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device("cpu", "cpu", _cpu_name(), _cpu_build(), memory, _cpu_has_bf16(), False)


def precision(wanted: str, device: Device, model: ModelFacts | None = None) -> Precision:
    """Return the number format to train in. Raises InputError for one that the device lacks or the model leaves."""
    narrow = model is not None and half_is_too_narrow(model)
    if wanted == "auto":
        if device.has_bf16:
            return "bf16"
        return "fp16" if device.has_fp16 and not narrow else "fp32"
    if wanted == "fp16" and narrow:
        kind = model.kinds[0] if model else ""
        raise InputError(Problem(f"fp16 is too narrow for {kind}: it ends in NaN", cure="write precision: auto"))
    if wanted == "fp16" and not device.has_fp16:
        raise InputError(Problem("fp16 cannot be trained on a CPU", cure="write precision: auto, bf16 or fp32"))
    if wanted == "bf16":
        return "bf16"
    return "fp16" if wanted == "fp16" else "fp32"


def banner(device: Device | None) -> str:
    """Return the first line of a run: versions, device, and what the image says about itself."""
    from strix_train import __version__

    notice = os.environ.get("STRIX_CHANNEL_NOTICE", "").strip()
    if device is None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            torch_version = f"torch {version('torch')}"
        except PackageNotFoundError:
            torch_version = "torch is not installed"
        parts = [f"strix-train {__version__}", torch_version + (f" ({notice})" if notice else "")]
        return " · ".join(parts)
    import torch

    where = f"{device.name}, {device.build}" if device.is_gpu else "CPU"
    if not device.is_gpu and not notice:
        threads = torch.get_num_threads()
        where = f"CPU ({device.name}, {threads} thread{'s' * (threads != 1)}: {device.build}, no GPU will be used)"
    elif notice:
        where += f" ({notice})"
    return f"strix-train {__version__} · torch {torch.__version__} · {where}"


def _cpu_build() -> str:
    import torch

    if torch.version.hip:
        return f"torch for ROCm {torch.version.hip} sees no GPU"
    if torch.version.cuda:
        return f"torch for CUDA {torch.version.cuda} sees no GPU"
    return "a CPU build of torch"


def _cpu_facts() -> dict[str, str]:
    facts: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return facts


def _cpu_name() -> str:
    import platform

    return _cpu_facts().get("model name") or platform.machine()


def _cpu_has_bf16() -> bool:
    """Whether the CPU multiplies bf16 itself; emulated, it is slower than fp32."""
    facts = _cpu_facts()
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})
