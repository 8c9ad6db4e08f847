"""What a decoder layer is made of, found in the model: frozen weights, low-rank adapters, norms, heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from strix_train.lean import fourbit
from strix_train.lean.fourbit import Packed

# Decoder layers whose computation is the one of `layer`, by their module in transformers.
LAYERS = {
    "transformers.models.llama.modeling_llama": "LlamaDecoderLayer",
    "transformers.models.mistral.modeling_mistral": "MistralDecoderLayer",
    "transformers.models.qwen2.modeling_qwen2": "Qwen2DecoderLayer",
    "transformers.models.qwen3.modeling_qwen3": "Qwen3DecoderLayer",
}

# The linear layers of one, in the order of their gradients.
_LINEAR = ("queries", "keys", "values", "output", "gate", "up", "down")


@dataclass(frozen=True, slots=True)
class Projection:
    """A frozen linear layer (outputs, inputs) with its adapter: `down` (rank, inputs), `up` (outputs, rank) or None.

    `adapter`: its name, empty where there is none; `scale`: of its part. `weight` is a tensor, or bitsandbytes' 4 bits;
    `packed`: those, where any part of the weight can be made of them.
    """

    weight: Any
    bias: Any
    down: Any = None
    up: Any = None
    adapter: str = ""
    scale: float = 1.0
    packed: Packed | None = None

    @property
    def quantized(self) -> bool:
        """Whether the weight has to be made before it is multiplied with."""
        return getattr(self.weight, "quant_state", None) is not None

    def stored(self) -> Packed | None:
        """Return the bits of a weight of 4 bits that can be made in parts, where they lie now."""
        if self.packed is None or self.packed.data.data_ptr() == self.weight.data_ptr():
            return self.packed
        return fourbit.of(self.weight)

    def dense(self, dtype: Any, small: ModuleType) -> Any:
        """Return the weight (outputs, inputs) as it is multiplied with; `small`: the module of the small steps."""
        state = getattr(self.weight, "quant_state", None)
        if state is None:
            return self.weight if self.weight.dtype == dtype else self.weight.to(dtype)
        packed = self.stored() if small.UNPACKS else None
        if packed is not None:
            out = packed.data.new_empty(packed.rows, packed.columns, dtype=dtype)
            return small.unpack(packed, slice(0, packed.rows), slice(0, packed.columns), out)
        from bitsandbytes.functional import dequantize_4bit

        return dequantize_4bit(self.weight.data, state).to(dtype)


@dataclass(frozen=True, slots=True)
class Parts:
    """One decoder layer. `heads` of queries, `groups` of keys and values, `width` of each in numbers.

    `head_norms`: the weights of the norms of queries and keys, or None. `owner`: the module itself.
    """

    owner: Any
    queries: Projection
    keys: Projection
    values: Projection
    output: Projection
    gate: Projection
    up: Projection
    down: Projection
    first_norm: Any
    second_norm: Any
    head_norms: tuple[Any, Any] | None
    eps: float
    heads: int
    groups: int
    width: int
    scale: float

    def projections(self) -> Iterator[Projection]:
        """Yield the linear layers, in the order of their gradients."""
        for name in _LINEAR:
            yield getattr(self, name)

    def learns(self) -> list[Any]:
        """Return the adapters' weights, in the order of their gradients."""
        found = []
        for each in self.projections():
            if each.down is not None:
                found += [each.down, each.up]
        return found


def of_layer(layer: Any) -> Parts | None:
    """Return the parts of a decoder layer, or None where anything about it is not as usual."""
    kind = type(layer)
    if LAYERS.get(kind.__module__) != kind.__name__:
        return None
    attention, mlp = layer.self_attn, layer.mlp
    if attention.attention_dropout or _window(attention):
        return None
    if type(mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        return None
    found = {
        name: _projection(module)
        for name, module in (
            ("queries", attention.q_proj),
            ("keys", attention.k_proj),
            ("values", attention.v_proj),
            ("output", attention.o_proj),
            ("gate", mlp.gate_proj),
            ("up", mlp.up_proj),
            ("down", mlp.down_proj),
        )
    }
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    heads = [attention.q_norm, attention.k_norm] if hasattr(attention, "q_norm") else []
    if any(part is None for part in found.values()) or any(not _plain_norm(norm) for norm in norms + heads):
        return None
    eps = {norm.variance_epsilon for norm in norms + heads}
    if len(eps) != 1:
        return None
    config = attention.config
    return Parts(
        owner=layer,
        **found,  # type: ignore[arg-type]
        first_norm=norms[0].weight,
        second_norm=norms[1].weight,
        head_norms=(heads[0].weight, heads[1].weight) if heads else None,
        eps=eps.pop(),
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        width=attention.head_dim,
        scale=attention.scaling,
    )


def hollow(own: Parts) -> Parts:
    """Return the parts without any weight, so that those that modules let go of are gone."""
    empty = {
        name: replace(part, weight=None, bias=None, down=None, up=None, packed=None)
        for name, part in ((name, getattr(own, name)) for name in _LINEAR)
    }
    heads = (None, None) if own.head_norms is not None else None
    return replace(own, **empty, first_norm=None, second_norm=None, head_norms=heads)


def renewed(own: Parts) -> Parts:
    """Return the parts of the same layer with the weights that its modules hold now."""
    owner = own.owner
    attention, mlp = owner.self_attn, owner.mlp
    heads = (attention.q_norm.weight, attention.k_norm.weight) if own.head_norms is not None else None
    return replace(
        own,
        queries=_again(own.queries, attention.q_proj),
        keys=_again(own.keys, attention.k_proj),
        values=_again(own.values, attention.v_proj),
        output=_again(own.output, attention.o_proj),
        gate=_again(own.gate, mlp.gate_proj),
        up=_again(own.up, mlp.up_proj),
        down=_again(own.down, mlp.down_proj),
        first_norm=owner.input_layernorm.weight,
        second_norm=owner.post_attention_layernorm.weight,
        head_norms=heads,
    )


def _again(known: Projection, module: Any) -> Projection:
    base = getattr(module, "base_layer", module)
    now = replace(known, weight=base.weight, bias=base.bias, packed=fourbit.of(base.weight))
    if not known.adapter:
        return now
    return replace(now, down=module.lora_A[known.adapter].weight, up=module.lora_B[known.adapter].weight)


def _window(attention: Any) -> int | None:
    """Return how many tokens attention sees where that is not all; some families say it in their configuration only."""
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window  # type: ignore[no-any-return]
    return getattr(attention.config, "sliding_window", None)


def _plain_norm(norm: Any) -> bool:
    return type(norm).__name__.endswith("RMSNorm") and not norm.weight.requires_grad


def _projection(module: Any) -> Projection | None:
    """Return a linear layer that `layer` can compute, or None: another adapter, dropout, a weight that learns."""
    import torch

    base = getattr(module, "base_layer", module)
    if type(base) is not torch.nn.Linear and type(base).__name__ != "Linear4bit":
        return None
    weight, bias = base.weight, base.bias
    if weight.requires_grad or (bias is not None and bias.requires_grad) or hasattr(weight, "ds_id"):
        return None
    if type(weight).__name__ not in ("Parameter", "Params4bit"):
        return None
    packed = fourbit.of(weight)
    if base is module:
        return Projection(weight, bias, packed=packed)
    names = list(module.active_adapters)
    if len(names) != 1 or module.merged_adapters or names[0] not in module.lora_A:
        return None
    name = names[0]
    down, up = module.lora_A[name], module.lora_B[name]
    usual = type(down) is torch.nn.Linear and type(up) is torch.nn.Linear and up.bias is None
    variants = getattr(module, "lora_variant", None) or {}
    if not usual or name in variants or type(module.lora_dropout[name]) is not torch.nn.Identity:
        return None
    if getattr(module, "fan_in_fan_out", False):
        return None
    return Projection(weight, bias, down.weight, up.weight, name, float(module.scaling[name]), packed)
