"""Links between machines: what a wire really carries in one direction, and how long a word takes there and back.

The figures are what others measured between two machines of this kind; each says where and when. Where a link was
measured itself (`strix-finetune cluster check` hands on STRIX_LINK_GBIT and STRIX_LINK_US), that is taken instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from strix_train.errors import InputError, Problem, nearest


@dataclass(frozen=True, slots=True)
class Link:
    """`gbit`: Gbit/s in one direction. `round_trip`: microseconds there and back. `source`: whose figure it is."""

    name: str
    gbit: float
    round_trip: float
    source: str = ""

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second in one direction."""
        return self.gbit * 1e9 / 8


_IBVERBS = "hellas-ai, thunderbolt-ibverbs, 2026-07-01, two Strix Halo"
_KYUZ0 = "kyuz0's guide to two Strix Halo with Intel E810 cards, kernel 6.18, 2026"
_RAW = "94 % of the wire, what TCP carries at best; not measured here"
NAMED: dict[str, Link] = {
    each.name: each
    for each in (
        Link("1gbe", 0.94, 74, _KYUZ0),
        Link("2.5gbe", 2.3, 56, f"{_IBVERBS}: 28 us one way"),
        Link("10gbe", 9.4, 60, _RAW),
        Link("25gbe", 23.5, 60, _RAW),
        Link("100gbe", 55.7, 68, f"{_KYUZ0}: TCP, the card in a slot of four PCIe 4 lanes"),
        Link("roce", 50.6, 10.4, f"{_KYUZ0}: RoCE on the same card, 5.2 us one way"),
        Link("thunderbolt", 9.5, 450, "reports of one cable with thunderbolt-net, 2026: 9 to 10, 240 to 700 us"),
        Link("thunderbolt-ibverbs", 48, 14, f"{_IBVERBS}: two cables, 7 us one way"),
        Link("thunderbolt-ibverbs-1", 10.8, 14, f"{_IBVERBS}: one rail"),
    )
}
GBIT, MICROSECONDS = "STRIX_LINK_GBIT", "STRIX_LINK_US"


def named(word: str) -> Link:
    """Return a link by its name in the table, or as measured: `GBIT:US`, `9.4:60`. Raises InputError."""
    low = word.strip().lower()
    if low in NAMED:
        return NAMED[low]
    found = re.fullmatch(r"([0-9]*\.?[0-9]+):([0-9]*\.?[0-9]+)", low)
    if found and float(found[1]) > 0:
        return Link(f"{float(found[1]):g} Gbit/s", float(found[1]), float(found[2]), "as given")
    what = f"there is no link '{word}'; known: {', '.join(NAMED)}, or GBIT:US as 9.4:60"
    raise InputError(Problem(what, cure=nearest(low, list(NAMED))))


def measured(environment: Mapping[str, str]) -> Link | None:
    """Return the link that `cluster check` measured, None where nothing usable is told."""
    try:
        gbit, round_trip = float(environment[GBIT]), float(environment.get(MICROSECONDS) or 100.0)
    except (KeyError, ValueError):
        return None
    if not (0 < gbit < float("inf") and 0 <= round_trip < float("inf")):
        return None
    return Link(f"{gbit:g} Gbit/s", gbit, round_trip, "measured by cluster check")
