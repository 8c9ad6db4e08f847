"""Who this process is among those that train together, by what torchrun (or whoever started it) set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from strix_train.errors import InputError, Problem, at

# Seconds until a collective is given up, where STRIX_DIST_TIMEOUT says nothing: process 0 alone asks and saves.
_PATIENCE = 1800.0
# Seconds until all processes must have come.
_JOIN = 600.0


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a process. `timeout`: seconds until a collective is given up; `join`: until all must be there.

    `agent`: torchrun's agent holds the store at address:port; else process 0 does. `ports`: those that may be used
    between nodes, empty for any.
    """

    rank: int = 0
    world: int = 1
    address: str = ""
    port: int = 0
    timeout: float = _PATIENCE
    join: float = _JOIN
    agent: bool = False
    ports: range = range(0)

    @property
    def main(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0


def here(environment: Mapping[str, str] | None = None) -> Seat:
    """Return this process's seat. Raises InputError where the variables contradict each other."""
    found = os.environ if environment is None else environment
    rank, world = _number(found, "RANK", 0), _number(found, "WORLD_SIZE", 1)
    if world < 1 or not 0 <= rank < world:
        raise InputError(Problem(f"RANK is {rank} and WORLD_SIZE is {world}", at("RANK"), "start with torchrun"))
    if world == 1:
        return Seat()
    address, port = found.get("MASTER_ADDR", ""), _number(found, "MASTER_PORT", 0)
    if not address or not 0 < port < 2**16:
        what = f"{world} processes train together, and MASTER_ADDR and MASTER_PORT do not say where they meet"
        raise InputError(
            Problem(what, cure="start with torchrun, or set them to the machine of RANK 0 and a free port")
        )
    asked = found.get("STRIX_DIST_TIMEOUT", "")
    timeout = _number(found, "STRIX_DIST_TIMEOUT", int(_PATIENCE))
    if timeout < 1:
        raise InputError(Problem(f"it is {timeout}", at("STRIX_DIST_TIMEOUT"), "write seconds, 1800 for example"))
    agent = found.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Seat(rank, world, address, port, float(timeout), float(timeout) if asked else _JOIN, agent, _ports(found))


def _number(found: Mapping[str, str], name: str, default: int) -> int:
    text = found.get(name, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise InputError(Problem(f"'{text}' is no whole number", at(name), "torchrun sets it")) from None


def _ports(found: Mapping[str, str]) -> range:
    """Return the ports of STRIX_PORTS (29400-29499)."""
    text = found.get("STRIX_PORTS", "").strip()
    if not text:
        return range(0)
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and 0 < int(first) <= int(last or first) < 2**16):
        raise InputError(Problem(f"'{text}' is no range of ports", at("STRIX_PORTS"), "write 29400-29499, for example"))
    return range(int(first), int(last or first) + 1)
