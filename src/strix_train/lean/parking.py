"""The optimizer's states wait in host memory between its steps: the peak of a step is elsewhere, and has their room.

They are copied as they are, so that training is the same bit for bit; a step waits for one copy of them.
"""

from __future__ import annotations

from typing import Any

from strix_train.lean.arena import pinned, power
from strix_train.lean.stash import Stash, size_of


class Parking:
    """Hooks of one optimizer whose states are as large as what learns, such as Adam's."""

    def __init__(self, optimizer: Any, stash: Stash) -> None:
        self.optimizer, self.stash = optimizer, stash
        self.host: Any = None
        self.kept: list[tuple[dict[str, Any], str, Any]] = []
        self.flat: Any = None
        self.done: Any = None
        # room on the host: before there are states, for two of each weight, or a pass would take it first
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        self.room = 0
        self._take(power(2 * sum(size_of(weight) for weight in weights)))
        optimizer.register_step_pre_hook(lambda *_: self.bring())
        optimizer.register_step_post_hook(lambda *_: self.park())
        optimizer.register_state_dict_pre_hook(lambda *_: self.wait())
        optimizer.register_load_state_dict_post_hook(lambda *_: self.forget())

    def bring(self) -> None:
        """Give the optimizer its states back, on the device of what learns."""
        if self.host is None:
            return
        import torch

        self.wait()
        device = self.optimizer.param_groups[0]["params"][0].device
        flat = torch.empty_like(self.host, device=device, pin_memory=False)
        flat.copy_(self.host, non_blocking=True)
        self._hand_out(flat)
        self.flat = flat

    def park(self) -> None:
        """Put the states away."""
        flat, self.flat = self.flat, None
        if self.host is None:
            self._gather()
        elif flat.is_cuda:
            self.done = self.stash.leave(flat, self.host)
        else:
            self.host.copy_(flat)
        if self.host is not None:
            self._hand_out(self.host)

    def wait(self) -> None:
        """Wait until the states are on the host."""
        if self.done is not None:
            self.done.synchronize()
            self.done = None

    def forget(self) -> None:
        """Take other states, which were loaded."""
        self.host, self.kept = None, []

    def _gather(self) -> None:
        """Find the states after a first step and put them end to end. Leaves them alone where the host has no room."""
        found = []
        for weights in self.optimizer.param_groups:
            for weight in weights["params"]:
                state = self.optimizer.state.get(weight, {})
                found += [(state, name, each) for name, each in state.items() if _moves(each, weight)]
        total = sum(each.numel() for _, _, each in found)
        size = total * found[0][2].element_size() if found else 0
        if len({each.dtype for _, _, each in found}) != 1 or not self._take(power(size)):
            self._take(0)
            return
        memory = pinned(size)
        if memory is None:
            self._take(0)
            return
        self.host = memory.view(found[0][2].dtype)
        self.kept = [(state, name, each.shape) for state, name, each in found]
        # straight to the host: there is no room for all of them twice
        for place, (_, _, each) in zip(self._parts(self.host), found, strict=True):
            place.copy_(each)

    def _take(self, size: int) -> bool:
        """Take `size` bytes of the budget instead of those that are taken now; return whether there are so many."""
        budget = self.stash.arena.budget
        budget.give(self.room)
        self.room = size if budget.take(size) else 0
        return self.room == size

    def _hand_out(self, flat: Any) -> None:
        """Let the optimizer's states be parts of a flat tensor."""
        for (state, name, _), part in zip(self.kept, self._parts(flat), strict=True):
            state[name] = part

    def _parts(self, flat: Any) -> list[Any]:
        """Return the parts of a flat tensor, each in the shape of its state."""
        parts = flat.split([shape.numel() for _, _, shape in self.kept])
        return [part.view(shape) for part, (_, _, shape) in zip(parts, self.kept, strict=True)]


def _moves(value: Any, weight: Any) -> bool:
    """Whether a state is as large as its weight; counters stay where they are."""
    return bool(getattr(value, "shape", None) == weight.shape and value.dim() > 0)
