"""What follows from the link between the machines: how much DDP sends at once. Pure."""

from __future__ import annotations

from strix_train.estimate.links import Link

# torch's own, for one machine or an unknown link.
USUAL = 25
# A message that takes so many times longer than a word there and back wastes little on it.
_TIMES = 50
_LEAST, _MOST = 1, 64


def bucket(learning: int, link: Link | None) -> int:
    """Return the MiB of gradients that DDP sends at once. `learning`: bytes of all gradients of a process.

    Large enough for the link's latency not to count, and small enough for the first buckets to be under way while the
    backward pass computes the others: at most a quarter of them all.
    """
    if link is None:
        return USUAL
    worth = _TIMES * link.round_trip * 1e-6 * link.bytes_per_s
    wanted = min(max(worth, 2**20), max(learning / 4, 2**20))
    return max(_LEAST, min(_MOST, round(wanted / 2**20)))
