"""The random numbers' states of all processes, in the one checkpoint that process 0 writes."""

from __future__ import annotations

import base64
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from strix_train.distributed.together import Ranks


def save(ranks: Ranks, write: Callable[[str], None], folder: Path) -> None:
    """Let every process `write` its states aside, and process 0 put all of them into `folder` (rng_state_RANK.pth)."""
    with tempfile.TemporaryDirectory(prefix="strix-random-") as aside:
        write(aside)
        [mine] = Path(aside).iterdir()
        raw = mine.read_bytes()
    states = ranks.exchange("random", {"state": base64.b64encode(raw).decode()})
    if ranks.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, state in enumerate(states):
            (folder / f"rng_state_{rank}.pth").write_bytes(base64.b64decode(state["state"]))


@contextmanager
def kept() -> Iterator[None]:
    """What is drawn within leaves no trace: every generator goes on from where it stood."""
    import numpy as np
    import torch

    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def fresh(ranks: Ranks, seed: int, step: int) -> None:
    """Draw from a state that follows from seed, step and process: there is no state of so many processes."""
    from transformers import set_seed

    set_seed((seed + 1_000_003 * step + 7919 * ranks.rank) % 2**32)
