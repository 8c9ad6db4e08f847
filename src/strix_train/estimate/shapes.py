"""How large the parts of a model are, from its config.json: weights, and what a token leaves behind in each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

Config = Mapping[str, Any]
# Types whose text part is counted; others with the same keys as Llama are counted as Llama, and it is said.
KNOWN = ("llama", "mistral", "qwen2", "qwen3", "qwen3_5", "gemma3", "gemma4", "gpt_oss")


class Linear(NamedTuple):
    """A linear layer, by the last word of its name."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class Block:
    """`count` equal decoder layers. Widths in numbers; `linears`: what all-linear reaches.

    `queries`: all query heads together; `values`: one key or value of all its heads. `norms`: norms of the hidden
    width; `head_norms`: whether queries and keys have some. `mlp`: intermediate numbers of one token, of all experts
    that it goes to. `experts`: weights in experts, which no adapter reaches; `active`: those that a token meets.
    `other`: norms, biases, convolutions. `window`: tokens that attention sees, 0 for all, -1 for linear attention.
    """

    count: int
    linears: tuple[Linear, ...]
    heads: int
    queries: int
    values: int
    mlp: int
    norms: int
    head_norms: bool = False
    experts: int = 0
    active: int = 0
    other: int = 0
    window: int = 0
    chosen: int = 1

    @property
    def linear_weights(self) -> int:
        """Weights of the linear layers of one of these."""
        return sum(linear.inputs * linear.outputs for linear in self.linears)

    def adapter(self, rank: int, names: frozenset[str] | None = None) -> int:
        """Weights of a low-rank adapter on one layer. `names`: of which linear layers, all when None."""
        chosen = [linear for linear in self.linears if names is None or linear.name in names]
        return rank * sum(linear.inputs + linear.outputs for linear in chosen)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model. `lookup`: weights of embeddings other than the output layer's own; `head`: of the output layer.

    `tied`: the output layer is the embedding. `pictures`: weights that a text never reaches. `exact`: whether the
    family is one that is counted and not taken for Llama.
    """

    kind: str
    hidden: int
    vocabulary: int
    blocks: tuple[Block, ...]
    tied: bool
    lookup: int
    pictures: int = 0
    exact: bool = True
    experts_quantized: bool = False

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return sum(block.count for block in self.blocks)

    @property
    def head(self) -> int:
        """Weights of the output layer."""
        return self.hidden * self.vocabulary

    @property
    def linear_weights(self) -> int:
        """Weights that quantization reaches."""
        return sum(
            block.count * (block.linear_weights + (block.experts if self.experts_quantized else 0))
            for block in self.blocks
        )

    @property
    def weights(self) -> int:
        """All weights, those for pictures included."""
        inner = sum(block.count * (block.linear_weights + block.experts + block.other) for block in self.blocks)
        return inner + self.lookup + (0 if self.tied else self.head) + self.hidden + self.pictures

    @property
    def active(self) -> int:
        """Weights that one token is multiplied with, the output layer left out."""
        return sum(block.count * (block.linear_weights + block.active) for block in self.blocks)

    def adapter(self, rank: int, names: frozenset[str] | None = None) -> int:
        """Weights of a low-rank adapter on all layers."""
        return sum(block.count * block.adapter(rank, names) for block in self.blocks)


class UnknownShape(ValueError):
    """A config.json that does not say how large the model is."""


def of_config(config: Config) -> Shape:
    """Return the shape of a configuration. Raises UnknownShape, whose text says which key is missing."""
    inner = config.get("text_config")
    text: Config = inner if isinstance(inner, Mapping) else config
    kind = str(text.get("model_type") or config.get("model_type") or "")
    family = kind.removesuffix("_text")
    hidden, vocabulary = _number(text, "hidden_size"), _number(text, "vocab_size")
    layers = _number(text, "num_hidden_layers")
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", family.startswith("gemma"))))
    lookup = vocabulary * hidden
    per_layer = int(text.get("hidden_size_per_layer_input") or 0) if family == "gemma4" else 0
    if per_layer:
        # a second embedding, of which every layer takes its part, and the projection that makes the other half of it
        table = int(text.get("vocab_size_per_layer_input") or vocabulary)
        lookup += layers * per_layer * (table + hidden) + per_layer
    quantized = config.get("quantization_config")
    by = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
    return Shape(
        kind=kind or "unknown",
        hidden=hidden,
        vocabulary=vocabulary,
        blocks=tuple(_blocks(text, family, hidden, layers, per_layer)),
        tied=tied,
        lookup=lookup,
        pictures=0 if family == "qwen3_5" else _pictures(config, hidden),
        exact=family in KNOWN,
        experts_quantized=by == "bitsandbytes",
    )


def _number(config: Config, key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnknownShape(f"config.json has no {key}")
    return value


def _kinds(text: Config, family: str, layers: int) -> list[str]:
    """Return what attention each layer has."""
    written = text.get("layer_types")
    if isinstance(written, Sequence) and not isinstance(written, str) and len(written) == layers:
        return [str(each) for each in written]
    if family in ("gemma3", "gemma4"):
        every = int(text.get("sliding_window_pattern") or text.get("_sliding_window_pattern") or 6)
        kinds = ["full_attention" if (at + 1) % every == 0 else "sliding_attention" for at in range(layers)]
        return [*kinds[:-1], "full_attention"] if family == "gemma4" else kinds
    if family == "gpt_oss":
        return ["full_attention" if at % 2 else "sliding_attention" for at in range(layers)]
    if family == "qwen3_5":
        every = int(text.get("full_attention_interval") or 4)
        return ["full_attention" if (at + 1) % every == 0 else "linear_attention" for at in range(layers)]
    return ["full_attention"] * layers


def _blocks(text: Config, family: str, hidden: int, layers: int, per_layer: int) -> list[Block]:
    shared = int(text.get("num_kv_shared_layers") or 0) if family == "gemma4" else 0
    found: dict[Block, int] = {}
    # newer files say what differs layer by layer, older ones name the widths of global layers
    apart = text.get("per_layer_config")
    for at, kind in enumerate(_kinds(text, family, layers)):
        own = text
        if isinstance(apart, Mapping):
            other = apart.get(str(at)) or {}
            width, groups = other.get("head_dim", text.get("head_dim")), other.get("num_key_value_heads")
            own = {**text, **other, "global_head_dim": width, "num_global_key_value_heads": groups}
        block = _block(own, family, hidden, kind, per_layer, keys=at < layers - shared)
        found[block] = found.get(block, 0) + 1
    return [replace(block, count=count) for block, count in found.items()]


def _block(text: Config, family: str, hidden: int, kind: str, per_layer: int, *, keys: bool) -> Block:
    """Return one layer. `keys`: whether it has keys and values of its own."""
    heads = _number(text, "num_attention_heads")
    groups = int(text.get("num_key_value_heads") or heads)
    width = int(text.get("head_dim") or hidden // heads)
    whole = kind == "full_attention"
    if family == "gemma4" and whole:
        width = int(text.get("global_head_dim") or 512)
        groups = int(text.get("num_global_key_value_heads") or groups)
    queries, values = heads * width, groups * width
    norms, head_norms = (4, True) if family.startswith("gemma") else (2, family in ("qwen3", "qwen3_5"))
    linears: list[Linear]
    other = norms * hidden
    if kind == "linear_attention":
        linears, queries, values, extra = _delta(text, hidden)
        other += extra
    else:
        double = 2 if family == "qwen3_5" else 1  # half of the queries' projection is a gate
        linears = [Linear("q_proj", hidden, double * queries)]
        if keys:
            same = family == "gemma4" and whole and bool(text.get("attention_k_eq_v"))
            linears += [Linear(name, hidden, values) for name in (("k_proj",) if same else ("k_proj", "v_proj"))]
        linears += [Linear("o_proj", queries, hidden)]
        if text.get("attention_bias") or family in ("gpt_oss", "qwen2"):
            other += queries + 2 * values + (hidden if family == "gpt_oss" else 0)
        if head_norms:
            other += width + (width if keys else 0)
        other += heads if family == "gpt_oss" else 0
    other += hidden if per_layer else 0
    if per_layer:
        linears += [
            Linear("per_layer_input_gate", hidden, per_layer),
            Linear("per_layer_projection", per_layer, hidden),
        ]
    mlp, experts, active, chosen = _experts(text, family, hidden)
    if experts:
        count = int(text.get("num_local_experts") or text.get("num_experts") or 1)
        other += (hidden + 1) * count
    else:
        mlp = int(text.get("intermediate_size") or 0) or _number(text, "intermediate_size")
        if family == "gemma4" and text.get("use_double_wide_mlp") and not keys:
            mlp *= 2
        linears += [Linear("gate_proj", hidden, mlp), Linear("up_proj", hidden, mlp), Linear("down_proj", mlp, hidden)]
    window = -1 if kind == "linear_attention" else 0 if whole else int(text.get("sliding_window") or 0)
    return Block(
        1,
        tuple(linears),
        heads,
        queries,
        values,
        mlp,
        norms + (1 if per_layer else 0),
        head_norms,
        experts,
        active,
        other,
        window,
        chosen,
    )


def _delta(text: Config, hidden: int) -> tuple[list[Linear], int, int, int]:
    """Return the linear layers of a gated delta rule, its widths of queries and values, and its other weights."""
    key_heads, value_heads = _number(text, "linear_num_key_heads"), _number(text, "linear_num_value_heads")
    value_width = _number(text, "linear_value_head_dim")
    keys, values = key_heads * _number(text, "linear_key_head_dim"), value_heads * value_width
    mixed = 2 * keys + values
    linears = [
        Linear("in_proj_qkv", hidden, mixed),
        Linear("in_proj_z", hidden, values),
        Linear("in_proj_b", hidden, value_heads),
        Linear("in_proj_a", hidden, value_heads),
        Linear("out_proj", values, hidden),
    ]
    kernel = int(text.get("linear_conv_kernel_dim") or 4)
    return linears, mixed, values, mixed * kernel + 2 * value_heads + value_width


def _experts(text: Config, family: str, hidden: int) -> tuple[int, int, int, int]:
    """Return (intermediate numbers of a token, weights of all experts, of those that it meets, how many those are)."""
    count = int(text.get("num_local_experts") or text.get("num_experts") or 0)
    if count < 2 or family == "gemma4":
        return 0, 0, 0, 1
    inner = int(text.get("moe_intermediate_size") or 0) or _number(text, "intermediate_size")
    chosen = int(text.get("num_experts_per_tok") or text.get("top_k_experts") or 2)
    bias = 2 * inner + hidden if family == "gpt_oss" else 0
    one = 3 * hidden * inner + bias
    return chosen * inner, count * one, chosen * one, chosen


def _pictures(config: Config, hidden: int) -> int:
    """Return the weights of the parts for pictures and sound, by their own configurations; they never learn."""
    total = int(config.get("other_parameters") or 0)
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping) or total:
        return total
    width, inner = int(vision.get("hidden_size") or 0), int(vision.get("intermediate_size") or 0)
    layers, patch = (
        int(vision.get("num_hidden_layers") or vision.get("depth") or 0),
        int(vision.get("patch_size") or 14),
    )
    if not (width and inner and layers):
        return 0
    layer = 4 * width * width + 2 * width * inner + 4 * width + inner + width + 4 * width
    places = (int(vision.get("image_size") or 896) // patch) ** 2
    rest = 3 * patch * patch * width + width + places * width + 2 * width
    pooling = 4 * width * width + 2 * width * inner + inner + 8 * width
    return layers * layer + rest + pooling + width * hidden + width
