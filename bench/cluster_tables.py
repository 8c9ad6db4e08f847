"""The tables of docs/clusters.md that are estimated: memory of each machine, and what a link leaves of the ideal.

Everything is for Strix Halo with 128 GB and plain transformers, whose speed is that of public step times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from strix_train.estimate import advice, configs, links, machines, nodes, shapes, sharing, steps, strategy
from strix_train.estimate.links import Link
from strix_train.estimate.memory import GIB, Wish
from strix_train.estimate.sharing import Sharing

PAGE = Path(__file__).resolve().parents[1] / "docs/clusters.md"
BEGIN, END = "<!-- python -m bench cluster-tables -->\n", "<!-- end -->\n"
MACHINE = machines.named("strix-halo")
COUNTS = (2, 3, 4, 6, 8)
# Gradients of an adapter are few: beyond these links there is nothing to see.
SHOWN = {
    "ddp": ("1gbe", "2.5gbe", "thunderbolt"),
    "fsdp": ("2.5gbe", "10gbe", "thunderbolt", "25gbe", "thunderbolt-ibverbs", "roce", "100gbe"),
    "kept": ("2.5gbe", "10gbe", "thunderbolt", "25gbe", "roce"),
}


@dataclass(frozen=True)
class Model:
    """A row's model and what is trained of it."""

    title: str
    name: str
    adapter: str

    @property
    def wish(self) -> Wish:
        """The shipped recipes' schedule: two rows of 2048 tokens, four passes a step."""
        shape = shapes.of_config(configs.known()[self.name])
        return Wish(shape, adapter=self.adapter, rank=0 if self.adapter == "full" else 16, rows=2, length=2048)


MODELS = (
    Model("Llama 3.1 8B, LoRA", "unsloth/Meta-Llama-3.1-8B", "lora"),
    Model("Gemma 3 27B, LoRA", "unsloth/gemma-3-27b-it", "lora"),
    Model("Llama 3.1 8B, full", "unsloth/Meta-Llama-3.1-8B", "full"),
)


# hellas-ai, thunderbolt-ibverbs, 2026-07-01: seconds of a step of Gemma 3 27B with LoRA under FSDP, two Strix Halo of
# 128 GB. How many passes of how many tokens a step had is not told.
PUBLISHED = {"2.5gbe": 1359.0, "thunderbolt-ibverbs": 126.0}
PASSES, TOKENS = 7, 512
PASS_ROWS = (1, 4)


def text() -> str:
    """Return the tables."""
    return "\n".join([*_memory(), "", *_links(), "", *_shares(), *_published()]) + "\n"


def published(rows: int) -> dict[str, float]:
    """Return the seconds of the published step by link, for passes of so many rows."""
    model = replace(MODELS[1].wish, rows=rows, length=TOKENS, accumulation=PASSES, eager=True, chunked=False)
    found = {name: steps.of(model, MACHINE, "fsdp", 2, links.NAMED[name]) for name in PUBLISHED}
    return {name: step.seconds for name, step in found.items() if step}


def _published() -> Iterator[str]:
    yield "A step of Gemma 3 27B, LoRA, under FSDP on two machines, beside the published one:"
    yield ""
    yield "| seconds | " + " | ".join(PUBLISHED) + " |"
    yield "|---|" + "---|" * len(PUBLISHED)
    yield "| published | " + " | ".join(f"{seconds:.0f}" for seconds in PUBLISHED.values()) + " |"
    for rows in PASS_ROWS:
        cells = " | ".join(f"{seconds:.0f}" for seconds in published(rows).values())
        yield f"| estimated, {PASSES} passes of {rows * TOKENS} tokens | {cells} |"


def _memory() -> Iterator[str]:
    yield "GiB of each machine, by machines, of " + f"{MACHINE.usable / GIB:.0f} that training may take; bold: more:"
    yield ""
    yield "| | shared by | 1 | " + " | ".join(map(str, COUNTS)) + " | `auto` takes, for 2 |"
    yield "|" + "---|" * (len(COUNTS) + 4)
    for model in MODELS:
        choice = strategy.choose(model.wish, MACHINE, 2)
        chosen = nodes.TITLES.get(nodes.taken(choice), nodes.taken(choice))
        for how in nodes.WAYS:
            cells = (_gib(model.wish, how, count) for count in (1, *COUNTS))
            title, last = (model.title, chosen) if how == "ddp" else ("", "")
            yield f"| {title} | {nodes.TITLES.get(how, how)} | " + " | ".join(cells) + f" | {last} |"


def _gib(wish: Wish, how: Sharing, count: int) -> str:
    needed = advice.needed(sharing.parts(wish, how if count > 1 else "none", count), MACHINE)
    return f"{needed / GIB:.0f}" if needed <= MACHINE.usable else f"**{needed / GIB:.0f}**"


def _links() -> Iterator[str]:
    yield "| link | Gbit/s | us there and back | figure from |"
    yield "|---|---|---|---|"
    for link in links.NAMED.values():
        yield f"| `{link.name}` | {link.gbit:g} | {link.round_trip:g} | {link.source} |"


def _shares() -> Iterator[str]:
    for model in MODELS:
        wish = model.wish
        ways: tuple[Sharing, ...] = ("ddp", "kept", "fsdp")
        for how in ways:
            # what an adapter's weights are kept for is ddp
            if not any(_fits(wish, how, count) for count in COUNTS) or (how == "kept" and model.adapter != "full"):
                continue
            alone = steps.of(wish, MACHINE, how, 1, links.NAMED["10gbe"])
            assert alone
            sent = sharing.traffic(wish, how, 2).step(wish.accumulation)
            title = f"{model.title}, {nodes.TITLES.get(how, how)}"
            yield f"{title}: {alone.compute:.0f} s a step alone, {sent / 1e9:.1f} GB sent by each of two in it."
            yield "Share of the ideal by number of machines:"
            yield ""
            yield "| link | " + " | ".join(map(str, COUNTS)) + " | step of 2 | 90 % with 2 needs |"
            yield "|" + "---|" * (len(COUNTS) + 3)
            for name in SHOWN[how]:
                yield _row(wish, how, links.NAMED[name])
            yield ""


def _fits(wish: Wish, how: Sharing, count: int) -> bool:
    return advice.needed(sharing.parts(wish, how, count), MACHINE) <= MACHINE.usable


def _row(wish: Wish, how: Sharing, link: Link) -> str:
    found = {count: steps.of(wish, MACHINE, how, count, link) for count in COUNTS if _fits(wish, how, count)}
    digits = 1 if how == "ddp" else 0
    cells = [f"{step.efficiency:.{digits}%}" if (step := found.get(count)) else "no room" for count in COUNTS]
    two = found.get(2)
    return (
        f"| {link.name} | "
        + " | ".join(cells)
        + f" | {f'{two.seconds:.0f} s' if two else ''} | {_need(wish, how, link)} |"
    )


def _need(wish: Wish, how: Sharing, link: Link) -> str:
    step = steps.of(wish, MACHINE, how, 2, link)
    if not _fits(wish, how, 2) or (step and step.efficiency >= steps.GOOD):
        return ""
    more = steps.enough(wish, MACHINE, how, 2, link)
    if more:
        return f"accumulation {more}"
    batch = strategy.enough_rows(wish, MACHINE, how, 2, link, batch=wish.rows, room=MACHINE.usable)
    return f"batch {batch}" if batch else "a faster link"


def written(page: str, begin: str, tables: str) -> str:
    """Return the page with these tables behind the line `begin`."""
    before, _, rest = page.partition(begin)
    return before + begin + "\n" + tables + "\n" + END + rest.partition(END)[2]


def show(begin: str, tables: str) -> None:
    """Print the tables, and write them into the page where they are others than it has."""
    print(tables)
    page = PAGE.read_text(encoding="utf-8")
    new = written(page, begin, tables)
    if new != page:
        PAGE.write_text(new, encoding="utf-8")
        print(f"{PAGE.name} was written")


def main() -> None:
    """Show the tables of now."""
    show(BEGIN, text())
