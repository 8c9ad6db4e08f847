"""Import what a training run imports, so that just these modules get byte code."""

import importlib
import os

os.environ["UNSLOTH_FORCE_CPU"] = "1"

import unsloth  # noqa: F401  must come before transformers

MODULES = [
    "accelerate",
    "accelerate.commands.launch",
    "bitsandbytes",
    "datasets",
    "datasets.packaged_modules.json.json",
    "gguf",
    "matplotlib.backends.backend_agg",
    "matplotlib.pyplot",
    "peft",
    "safetensors.torch",
    "sentencepiece",
    "torch.distributed.run",
    "trl",
]
FAMILIES = ["gemma", "gemma2", "gemma3", "gpt_oss", "llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_moe"]
CLASSES = {"trl": ("SFTTrainer", "SFTConfig", "DPOTrainer", "GRPOTrainer"), "transformers": ("Trainer", "pipeline")}

for name in MODULES:
    importlib.import_module(name)
for name in FAMILIES:
    for part in ("configuration", "modeling"):
        importlib.import_module(f"transformers.models.{name}.{part}_{name}")
for module, names in CLASSES.items():
    for name in names:
        getattr(importlib.import_module(module), name)
