"""Tensors that wait in host memory between the forward and the backward pass, copied while the GPU computes.

Only where the GPU has memory of its own: an APU would copy to where the tensor is already.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strix_train.lean.arena import Arena, Budget, Region

# Smaller tensors stay where they are, in bytes: a copy takes some microseconds to start.
LEAST = 2**18


@dataclass(slots=True, eq=False, weakref_slot=True)
class Ticket:
    """Tensors that were put away together. `here`: on the GPU, or None; `there`: those on the host, or None.

    `ready`: when they are where they are copied to. `before`: the ticket given out before this one, wanted after it.
    `free`: gives the host's memory back, once; also called when nobody has the ticket any more.
    """

    here: list[Any]
    there: list[Any]
    ready: Any = None
    before: Any = None
    free: Any = None

    def pairs(self) -> list[tuple[Any, Any]]:
        """Return each tensor's two places."""
        return list(zip(self.here, self.there, strict=True))


@dataclass(slots=True)
class Stash:
    """Last in, first out: the ticket before can be fetched while the present one is used.

    `on`: whether anything is copied. `arena`: where to; what finds no room there stays where it is.
    """

    on: bool
    arena: Arena = field(default_factory=lambda: Arena(Budget(0)))
    _out: Any = None
    _back: Any = None
    _last: Any = None
    _leaving: list[tuple[Any, Any]] = field(default_factory=list)

    def put(self, *groups: list[Any], stay: bool = False) -> list[Ticket]:
        """Put groups of tensors away, one after the other, and return their tickets.

        `stay`: all but the first group are wanted again at once. The GPU waits for what left before.
        """
        self.settle()
        tickets, leaving = [], []
        for number, tensors in enumerate(groups):
            ticket = Ticket(list(tensors), [None] * len(tensors), before=self._last)
            self._last = weakref.ref(ticket)
            tickets.append(ticket)
            if self.on and not (stay and number) and self._rooms(ticket):
                leaving.append(ticket)
        pairs = [(here, there) for ticket in leaving for here, there in ticket.pairs() if there is not None]
        if pairs:
            ready = self._send(pairs)
            for ticket in leaving:
                ticket.ready = ready
                ticket.here = [None if there is not None else here for here, there in ticket.pairs()]
        return tickets

    def _rooms(self, ticket: Ticket) -> bool:
        """Make room on the host for a ticket's large tensors, for all of them or none; return whether there is any."""
        regions: list[Region] = []
        for at, each in enumerate(ticket.here):
            if not goes(each):
                continue
            room = self.arena.take(each)
            if room is None:
                ticket.there = [None] * len(ticket.here)
                give(regions)
                return False
            regions.append(room[0])
            ticket.there[at] = room[1]
        if not regions:
            return False
        ticket.free = weakref.finalize(ticket, give, regions)
        ticket.free.atexit = False
        return True

    def get(self, ticket: Ticket) -> list[Any]:
        """Return the tensors, which are the caller's from now on."""
        self.settle()
        if ticket.ready is None:
            found, ticket.here = ticket.here, []
            return found
        import torch

        self.fetch(ticket)
        torch.cuda.current_stream().wait_event(ticket.ready)
        found, ticket.here, ticket.there = ticket.here, [], []
        ticket.free()
        return found

    def previous(self, ticket: Ticket) -> Ticket | None:
        """Return what was put away before a ticket and is wanted after it, the nearest that is away."""
        found: Ticket | None = ticket
        while found is not None:
            found = found.before() if found.before is not None else None
            if found is None or found.ready is not None:
                break
        return found

    def leave(self, tensor: Any, there: Any) -> Any:
        """Begin to copy a tensor to the host and let go of it when it is there; return what to wait for."""
        return self._send([(tensor, there)])

    def _send(self, pairs: list[tuple[Any, Any]]) -> Any:
        """Begin to copy to the host, and return the event of its end."""
        import torch

        if self._out is None:
            self._out, self._back = torch.cuda.Stream(), torch.cuda.Stream()
        self._out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._out):
            for tensor, there in pairs:
                there.copy_(tensor, non_blocking=True)
            done = self._out.record_event()
        self._leaving.append(([tensor for tensor, _ in pairs], done))
        return done

    def settle(self) -> None:
        """Let go of what is on its way to the host: the GPU waits until it is there, so that its memory is free."""
        if self._leaving:
            import torch

            for _, done in self._leaving:
                torch.cuda.current_stream().wait_event(done)
            self._leaving.clear()

    def fetch(self, *tickets: Ticket | None) -> None:
        """Begin to copy tickets' tensors back, those that are wanted next, where that was not done."""
        away = [ticket for ticket in tickets if ticket is not None and ticket.ready is not None]
        missing = [
            (ticket, at)
            for ticket in away
            for at, (here, there) in enumerate(ticket.pairs())
            if there is not None and here is None
        ]
        if not missing:
            return
        import torch

        for ticket, at in missing:
            ticket.here[at] = torch.empty_like(ticket.there[at], device="cuda", pin_memory=False)
        for ticket in away:
            self._back.wait_event(ticket.ready)
        self._back.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._back):
            for ticket, at in missing:
                ticket.here[at].copy_(ticket.there[at], non_blocking=True)
            done = self._back.record_event()
        for ticket, _ in missing:
            ticket.ready = done


def goes(tensor: Any) -> bool:
    """Whether it is worth while to put a tensor away."""
    return bool(tensor.is_cuda) and size_of(tensor) >= LEAST


def size_of(tensor: Any) -> int:
    """Return a tensor's bytes."""
    return int(tensor.numel() * tensor.element_size())


def give(regions: list[Region]) -> None:
    """Give back the host's memory of a ticket, the last part first."""
    for region in reversed(regions):
        region.give()


def host_budget() -> int:
    """Return the bytes of host memory that tensors may wait in: half of what is free, of this container's at most.

    The processes of one machine (LOCAL_WORLD_SIZE of them) share it.
    """
    free = []
    try:
        words = Path("/proc/meminfo").read_text(encoding="ascii").split()
        free.append(int(words[words.index("MemAvailable:") + 1]) * 1024)
    except (OSError, ValueError):
        return 0
    try:
        group = Path("/sys/fs/cgroup")
        most, used = ((group / f"memory.{name}").read_text(encoding="ascii").strip() for name in ("max", "current"))
        free.append(max(0, int(most) - int(used)))
    except (OSError, ValueError):
        pass  # no container, or one without a limit
    return min(free) // 2 // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
