"""Tensors that wait in host memory between the forward and the backward pass, copied while the GPU computes.

Only where the GPU has memory of its own: an APU would copy to where the tensor is already.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

# Smaller tensors stay where they are, in bytes: a copy takes some microseconds to start.
_LEAST = 2**20


@dataclass(slots=True, eq=False, weakref_slot=True)
class Ticket:
    """What was put away. `here`: on the GPU; `there`: on the host; `ready`: when it is where it is copied to.

    `before`: the ticket that was given out before this one, and is wanted after it.
    """

    shape: Any
    here: Any = None
    there: Any = None
    ready: Any = None
    before: Any = None


@dataclass(slots=True)
class Stash:
    """Last in, first out: the one before is fetched while the present one is used. `on`: whether anything is copied."""

    on: bool
    _out: Any = None
    _back: Any = None
    _last: Any = None
    _leaving: list[tuple[Any, Any]] = field(default_factory=list)
    _free: dict[Any, list[Any]] = field(default_factory=dict)

    def put(self, tensor: Any, *, stay: bool = False) -> Ticket:
        """Put a tensor away and return its ticket; `stay`: it is wanted again at once."""
        ticket = Ticket(tensor.shape, here=tensor)
        if not self.on or not tensor.is_cuda:
            return ticket
        import torch

        self._left()
        ticket.before, self._last = self._last, weakref.ref(ticket)
        if stay or tensor.numel() * tensor.element_size() < _LEAST:
            return ticket
        there = self._room(tensor)
        if there is None:
            return ticket
        if self._out is None:
            self._out, self._back = torch.cuda.Stream(), torch.cuda.Stream()
        self._out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._out):
            there.copy_(tensor, non_blocking=True)
            ticket.ready = self._out.record_event()
        self._leaving.append((tensor, ticket.ready))
        ticket.here, ticket.there = None, there
        return ticket

    def get(self, ticket: Ticket) -> Any:
        """Return the tensor, which is the caller's own from now on, and begin to fetch the one put away before it."""
        if self.on:
            self._left()
            self._fetch(ticket)
        found = ticket.here
        if ticket.there is not None:
            import torch

            torch.cuda.current_stream().wait_event(ticket.ready)
            self._free.setdefault((tuple(ticket.shape), found.dtype), []).append(ticket.there)
        ticket.here = ticket.there = None
        before = ticket.before() if ticket.before is not None else None
        if before is not None:
            self._fetch(before)
        return found

    def _left(self) -> None:
        """Let go of what is on its way to the host: the GPU waits until it is there, so that its memory is free."""
        if self._leaving:
            import torch

            for _, done in self._leaving:
                torch.cuda.current_stream().wait_event(done)
            self._leaving.clear()

    def _fetch(self, ticket: Ticket) -> None:
        """Begin to copy a tensor back, where that was not done."""
        if ticket.here is not None or ticket.there is None:
            return
        import torch

        ticket.here = torch.empty(ticket.shape, dtype=ticket.there.dtype, device="cuda")
        self._back.wait_event(ticket.ready)
        self._back.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._back):
            ticket.here.copy_(ticket.there, non_blocking=True)
            ticket.ready = self._back.record_event()

    def _room(self, tensor: Any) -> Any:
        """Return pinned memory of a tensor's shape, used before where there is some; None where the host has none."""
        import torch

        free = self._free.get((tuple(tensor.shape), tensor.dtype))
        if free:
            return free.pop()
        try:
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        except RuntimeError:
            self.on = False  # what is away comes back; what comes from now on stays
            return None
