"""Tensors that wait in host memory between the forward and the backward pass, copied while the GPU computes.

Only where the GPU has memory of its own: an APU would copy to where the tensor is already.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Smaller tensors stay where they are, in bytes: a copy takes some microseconds to start.
_LEAST = 2**20


@dataclass(slots=True)
class Budget:
    """Bytes of host memory that may be taken, and those that are."""

    most: int
    taken: int = 0

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return max(0, self.most - self.taken)

    def take(self, size: int) -> bool:
        """Take `size` bytes, all of them or, where there are fewer, none; return whether they were taken."""
        if size > self.left:
            return False
        self.taken += size
        return True

    def give(self, size: int) -> None:
        """Give bytes back that were taken."""
        self.taken -= size


@dataclass(slots=True, eq=False, weakref_slot=True)
class Ticket:
    """Tensors that were put away together. `here`: on the GPU, or None; `there`: those on the host, or None.

    `ready`: when they are where they are copied to. `before`: the ticket given out before this one, wanted after it.
    `free`: gives back what the host's part takes of the budget, once; also called when nobody has the ticket any more.
    """

    here: list[Any]
    there: list[Any]
    ready: Any = None
    before: Any = None
    free: Any = None


@dataclass(slots=True)
class Stash:
    """Last in, first out: the ticket before can be fetched while the present one is used.

    `on`: whether anything is copied. `budget`: of host memory; what finds no room in it stays where it is.
    """

    on: bool
    budget: Budget = field(default_factory=lambda: Budget(0))
    _out: Any = None
    _back: Any = None
    _last: Any = None
    _leaving: list[tuple[Any, Any]] = field(default_factory=list)

    def put(self, tensors: list[Any], *, stay: bool = False, along: bool = False) -> Ticket:
        """Put tensors away and return their ticket.

        `stay`: they are wanted again at once. `along`: what was put away just before them was made with them, so that
        there is nothing to compute while it leaves, and nobody waits for it.
        """
        ticket = Ticket(list(tensors), [None] * len(tensors), before=self._last)
        self._last = weakref.ref(ticket)
        if not along:
            self._left()
        if not self.on or stay:
            return ticket
        large = [at for at, each in enumerate(tensors) if each.is_cuda and size_of(each) >= _LEAST]
        size = sum(size_of(tensors[at]) for at in large)
        if not large or not self.budget.take(size):
            return ticket
        rooms = {at: self._room(tensors[at]) for at in large}
        if any(room is None for room in rooms.values()):
            self.budget.give(size)
            return ticket
        ticket.free = weakref.finalize(ticket, self.budget.give, size)
        ticket.free.atexit = False
        ticket.ready = self._send([(tensors[at], rooms[at]) for at in large])
        for at in large:
            ticket.here[at], ticket.there[at] = None, rooms[at]
        return ticket

    def get(self, ticket: Ticket) -> list[Any]:
        """Return the tensors, which are the caller's from now on."""
        self._left()
        if ticket.ready is None:
            found, ticket.here = ticket.here, []
            return found
        import torch

        self._fetch(ticket)
        torch.cuda.current_stream().wait_event(ticket.ready)
        found, ticket.here, ticket.there = ticket.here, [], []
        ticket.free()
        return found

    def before(self, ticket: Ticket) -> None:
        """Begin to fetch what was put away before a ticket, which is wanted next."""
        found = ticket.before() if ticket.before is not None else None
        if found is not None:
            self._fetch(found)

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

    def _left(self) -> None:
        """Let go of what is on its way to the host: the GPU waits until it is there, so that its memory is free."""
        if self._leaving:
            import torch

            for _, done in self._leaving:
                torch.cuda.current_stream().wait_event(done)
            self._leaving.clear()

    def _fetch(self, ticket: Ticket) -> None:
        """Begin to copy a ticket's tensors back, where that was not done."""
        missing = [at for at, room in enumerate(ticket.there) if room is not None and ticket.here[at] is None]
        if not missing:
            return
        import torch

        for at in missing:
            ticket.here[at] = torch.empty_like(ticket.there[at], device="cuda", pin_memory=False)
        self._back.wait_event(ticket.ready)
        self._back.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._back):
            for at in missing:
                ticket.here[at].copy_(ticket.there[at], non_blocking=True)
            ticket.ready = self._back.record_event()

    def _room(self, tensor: Any) -> Any:
        """Return pinned memory of a tensor's shape, None where the host has none; PyTorch keeps what was freed."""
        import torch

        try:
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        except RuntimeError:
            self.on = False  # what is away comes back; what comes from now on stays
            return None


def size_of(tensor: Any) -> int:
    """Return a tensor's bytes."""
    return int(tensor.numel() * tensor.element_size())


def host_budget() -> int:
    """Return the bytes of host memory that tensors may wait in: a quarter of what is free, of this container's at most.

    The processes of one machine (LOCAL_WORLD_SIZE of them) share it. PyTorch rounds pinned memory up to powers of two,
    so that it can become twice as much.
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
    return min(free) // 4 // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
