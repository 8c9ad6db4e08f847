"""The machines of a cluster, as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strix_finetune.engine.base import EngineKind
from strix_finetune.errors import Place

Link = Literal["auto", "ethernet", "rdma", "thunderbolt"]


@dataclass(frozen=True, slots=True)
class Ports:
    """A range of TCP ports, both ends included; the first one is the rendezvous of torchrun."""

    first: int
    last: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. `rank` 0 is the head.

    `ssh`: an OpenSSH destination, empty: not by ssh. `engine`: "docker" or "podman", or the address of its engine as
    seen from that machine (from this one without ssh), empty: found. `address`: what peers reach it by, empty: the one
    that ssh reached. `interface`: the network interface of that machine, empty: the one that holds the address.
    `processes`: training processes, 0: one a GPU. `place`: its lines in cluster.toml.
    """

    name: str
    rank: int
    ssh: str = ""
    engine: str = ""
    address: str = ""
    interface: str = ""
    processes: int = 0
    place: Place | None = None

    @property
    def wanted(self) -> EngineKind | Literal["auto"]:
        """The kind of engine that is looked for, where no address says it."""
        return self.engine if self.engine in ("docker", "podman") else "auto"  # type: ignore[return-value]

    @property
    def url(self) -> str:
        """The address of its engine, where cluster.toml says it."""
        return self.engine if "://" in self.engine else ""

    @property
    def local(self) -> bool:
        """Whether it is this machine."""
        return not self.ssh and (not self.url or self.url.startswith("unix://"))


@dataclass(frozen=True, slots=True)
class Cluster:
    """What cluster.toml says. `image` is empty where the target's final one is meant; `workdir` as on each node."""

    path: Path
    nodes: tuple[Node, ...]
    image: str = ""
    link: Link = "auto"
    ports: Ports = Ports(29400, 29499)
    workdir: str = "strix-finetune"

    @property
    def head(self) -> Node:
        return self.nodes[0]
