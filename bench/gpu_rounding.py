"""What of an adapter's first step comes through 16 bits: python -m bench.gpu_rounding.

An adapter begins with nothing and changes a little each step: less than the distance of two neighbours in bfloat16 from
what the frozen weight gives. Where the two are added after each was rounded, most of it is lost. Here the same step, of
1e-4 against the sign of every gradient in 32 bits (Adam's first), is taken in each way to compute, and the loss of each
is told before and after it. Weights are random, those of 4 bits made back into 16 for the ways that do not know them.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from bench import random_model
from bench.gpu_speed import SHAPE
from bench.gpu_trainer import ALPHA, RANK

STEP = 1e-4
LAYERS, ROWS = 8, 2
# Wide enough that neighbours in bfloat16 are apart: of that, a model of no size at all shows little.
TINY = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "vocab_size": 600,
}


def plain(device: str, *, tiny: bool) -> Any:
    """Return a model in bfloat16, its linear layers as they come out of 4 bits where those can be made."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    value = random_model.config(SHAPE, layers=LAYERS) | (TINY if tiny else {})
    keys = {key: each for key, each in value.items() if key not in ("model_type", "same_as")}
    config = AutoConfig.for_model(value["model_type"], **keys, use_cache=False)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if find_spec("bitsandbytes") is not None:
        from bitsandbytes.functional import dequantize_4bit, quantize_4bit

        for _, module in _linear(model):
            module.weight.data = dequantize_4bit(
                *quantize_4bit(module.weight.data, quant_type="nf4", compress_statistics=True)
            )
    return model


def in_bits(model: Any, device: str) -> Any:
    """Return the model with its linear layers in 4 bits."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, module in _linear(model):
        held = Linear4bit(module.in_features, module.out_features, bias=False, quant_type="nf4")
        held.weight = Params4bit(module.weight.data.cpu(), requires_grad=False, quant_type="nf4")
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, held.to(device))
    return model


def adapted(model: Any) -> Any:
    """Return the model with a new adapter in 32 bits, the same one each time."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(7)
    found = get_peft_model(
        model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
    ).train()
    for weight in found.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    return found


def _linear(model: Any) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in model.named_modules() if name.endswith("_proj")]


def measure(*, tiny: bool) -> list[str]:
    """Return the table."""
    import torch

    from strix_train.lean.install import install

    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = plain(device, tiny=tiny)
    ids = torch.randint(3, 400, (ROWS, 64 if tiny else 1024), device=device)

    def loss(model: Any, bits: int) -> Any:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bits == 16):
            return model(input_ids=ids, labels=ids).loss

    def lean(model: Any) -> Any:
        assert install(model, offload=False) is not None
        return model

    ways: dict[str, tuple[int, Callable[[], Any]]] = {
        "32 bits": (32, lambda: adapted(copy.deepcopy(base).float())),
        "peft": (16, lambda: adapted(copy.deepcopy(base))),
        "lean layers": (16, lambda: lean(adapted(copy.deepcopy(base)))),
    }
    if find_spec("bitsandbytes") is not None:
        ways["peft, 4 bits"] = (16, lambda: adapted(in_bits(copy.deepcopy(base), device)))
        ways["lean layers, 4 bits"] = (16, lambda: lean(adapted(in_bits(copy.deepcopy(base), device))))
    signs: list[Any] = []
    whole = 0.0
    lines = [f"{'':<22}{'before':>10}{'after':>10}{'of 32 bits':>12}"]
    for name, (bits, made) in ways.items():
        model = made()
        before = loss(model, bits)
        learns = [weight for weight in model.parameters() if weight.requires_grad]
        if not signs:
            before.backward()
            signs = [weight.grad.sign() for weight in learns]
        for weight, sign in zip(learns, signs, strict=True):
            weight.data.add_(sign, alpha=-STEP)
        with torch.no_grad() if bits == 32 else torch.enable_grad():
            gained = float(before.detach()) - float(loss(model, bits).detach())
        whole = whole or gained
        first = float(before.detach())
        lines.append(f"{name:<22}{first:>10.4f}{first - gained:>10.4f}{gained / whole:>12.0%}")
        del model, before, learns
    return lines


def main(words: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_rounding", description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a model of no size, for a CPU")
    options = parser.parse_args(words)
    print("\n".join(measure(tiny=options.tiny)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
