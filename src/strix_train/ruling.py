"""The rules for devices, gathered and applied: before the libraries are imported, and after."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from strix_train import modelfacts
from strix_train.device import Device
from strix_train.devicerules import Facts, Rules, rules, version_pair
from strix_train.modelfacts import ModelFacts
from strix_train.names import ModelName

_COMPILE = {"partial": "partial", "off": "1"}


def model_facts(model: ModelName) -> ModelFacts:
    """Return what the model's config.json says, asking the hub for that one file where the model is there."""
    if model.local:
        return modelfacts.read(Path(model.source))
    try:
        from huggingface_hub import hf_hub_download

        return modelfacts.of_config(json.loads(Path(hf_hub_download(model.source, "config.json")).read_bytes()))
    except Exception:  # noqa: BLE001 - the loader asks for the same file, and says what is wrong with it
        return ModelFacts()


def find(device: Device, model: ModelFacts, bits: int) -> Rules:
    """Return the rules for a model on a device. `bits` of its frozen weights. Raises InputError."""
    import torch

    return rules(
        Facts(
            kind=device.kind,
            model=model,
            arch=device.arch,
            rocm=version_pair(torch.version.hip),
            torch=version_pair(torch.__version__),
            bits=bits,
            unified=device.unified,
            gpu_memory=device.memory if device.is_gpu else 0,
            system_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            carved_out=carved_out(),
            avx512=device.kind == "cpu" and device.has_bf16,
        )
    )


def carved_out(root: Path = Path("/sys/class/drm")) -> int:
    """Return the bytes that the firmware gave to AMD's GPUs alone, the most of all cards; 0 where nothing says."""
    found = [0]
    for path in root.glob("card[0-9]*/device/mem_info_vram_total"):
        try:
            found.append(int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return max(found)


def before_import(found: Rules) -> None:
    """Set what the libraries read when they are imported. A variable that the user set is left alone."""
    for name, value in found.environment.items():
        os.environ.setdefault(name, value)
    if found.compile in _COMPILE:
        os.environ.setdefault("UNSLOTH_COMPILE_DISABLE", _COMPILE[found.compile])


def after_import(found: Rules, device: Device) -> None:
    """Set torch's own switches, for this process's GPU."""
    if not device.is_gpu:
        return
    import torch

    if not found.flash:
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(True)
    if found.environment.get("TORCH_BLAS_PREFER_HIPBLASLT") == "0" == os.environ.get("TORCH_BLAS_PREFER_HIPBLASLT"):
        torch.backends.cuda.preferred_blas_library("cublas")  # rocBLAS, which has kernels for every shape
    if found.memory is not None:
        torch.cuda.set_per_process_memory_fraction(found.memory, torch.device(device.torch))


def on_model(found: Rules, model: Any) -> None:
    """Apply what concerns a loaded model's modules."""
    if found.plain_4bit:
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False


def loading(found: Rules) -> dict[str, Any]:
    """Return what transformers' from_pretrained needs to be told."""
    more: dict[str, Any] = {}
    if found.attention:
        more["attn_implementation"] = found.attention
    if found.experts:
        more["experts_implementation"] = found.experts
    return more
