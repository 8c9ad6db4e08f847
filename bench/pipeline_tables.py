"""The estimated table of docs/clusters.md that has a pipeline beside the ways to share that `train` offers.

Every way has the same rows in a step: eight of 2048 tokens for each machine, at the speed that is assumed for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from bench import cluster_tables
from bench.cluster_tables import MACHINE, MODELS
from strix_train.estimate import advice, links, pipeline, shapes, sharing, steps
from strix_train.estimate.links import Link
from strix_train.estimate.memory import GIB, Wish
from strix_train.estimate.sharing import Sharing

BEGIN = "<!-- python -m bench pipeline-tables -->\n"
COUNTS = (4, 8)
LINKS = ("2.5gbe", "10gbe", "thunderbolt")
# The sizes of Llama 3 70B: no recipe here is for a model that fits on no machine.
LARGE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Way:
    """A column. `rows`: of a pass or of a microbatch, of the eight that each machine has in a step."""

    title: str
    sharing: Sharing | None
    rows: int
    adapter: str = "lora"


ALL = 8
WAYS = (
    Way("ddp", "ddp", 2),
    Way("ddp, 4 bits", "ddp", 2, "qlora"),
    Way("fsdp, 2 rows a pass", "fsdp", 2),
    Way("fsdp, 8 rows a pass", "fsdp", ALL),
    Way("pipeline, 2 rows", None, 2),
    Way("pipeline, 1 row", None, 1),
)


def text() -> str:
    """Return the table."""
    large = replace(MODELS[0].wish, shape=shapes.of_config(LARGE))
    return "\n".join([*_table("Llama 3.1 8B, LoRA", MODELS[0].wish), "", *_table("Llama 3 70B, LoRA", large)]) + "\n"


def _table(title: str, wish: Wish) -> Iterator[str]:
    yield f"{title}: seconds a step, share of the ideal, GB that each sends in it:"
    yield ""
    yield "| machines | link | " + " | ".join(way.title for way in WAYS) + " |"
    yield "|" + "---|" * (2 + len(WAYS))
    for count in COUNTS:
        for name in LINKS:
            cells = (_cell(_wish(wish, way), way, count, links.NAMED[name]) for way in WAYS)
            yield f"| {count} | {name} | " + " | ".join(cells) + " |"
        yield (
            f"| {count} | GiB of each | " + " | ".join(f"{_needed(wish, way, count) / GIB:.0f}" for way in WAYS) + " |"
        )


def _wish(wish: Wish, way: Way) -> Wish:
    return replace(wish, adapter=way.adapter, rows=way.rows, accumulation=ALL // way.rows)


def _needed(wish: Wish, way: Way, count: int) -> int:
    mine = _wish(wish, way)
    if way.sharing is None:
        return pipeline.of(mine, MACHINE, count, links.NAMED[LINKS[0]]).needed
    return advice.needed(sharing.parts(mine, way.sharing, count), MACHINE)


def _cell(wish: Wish, way: Way, count: int, link: Link) -> str:
    if _needed(wish, way, count) > MACHINE.usable:
        return "no room"
    if way.sharing is None:
        found = pipeline.of(wish, MACHINE, count, link)
        step, sent = found.step, found.sent
    else:
        step = steps.of(wish, MACHINE, way.sharing, count, link)
        sent = sharing.traffic(wish, way.sharing, count).step(wish.accumulation)
    assert step
    return f"{step.seconds:.0f} s, {step.efficiency:.0%}, {sent / 1e9:.{1 if sent < 1e10 else 0}f}"


def main() -> None:
    """Show the table of now."""
    cluster_tables.show(BEGIN, text())
