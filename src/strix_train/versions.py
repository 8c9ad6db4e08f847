"""What a run was made with: packages, torch build, device, image, and the digests of its inputs."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from strix_train import __version__
from strix_train.device import Device

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "safetensors",
    "numpy",
    "unsloth",
    "unsloth_zoo",
    "bitsandbytes",
    "triton",
)


def collect(device: Device, backend: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the content of versions.json."""
    import torch

    packages: dict[str, str] = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "strix_train": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "image_key": os.environ.get("STRIX_IMAGE_KEY") or None,
        "image_notice": os.environ.get("STRIX_CHANNEL_NOTICE") or None,
        "backend": backend,
        "torch": {
            "version": str(torch.__version__),
            "hip": torch.version.hip,
            "cuda": torch.version.cuda,
            "threads": torch.get_num_threads(),
        },
        "device": asdict(device),
        "packages": packages,
        "inputs": inputs,
    }
