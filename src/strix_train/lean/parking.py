"""The optimizer's states wait in host memory between its steps: the peak of a step is elsewhere, and has their room.

They are copied as they are, so that training is the same bit for bit; a step waits for one copy of them.
"""

from __future__ import annotations

from typing import Any

from strix_train.lean.stash import Stash, size_of


class Parking:
    """Hooks of one optimizer whose states are as large as what learns, such as Adam's."""

    def __init__(self, optimizer: Any, stash: Stash) -> None:
        self.optimizer, self.stash = optimizer, stash
        self.host: Any = None
        self.kept: list[tuple[dict[str, Any], str, Any]] = []
        self.flat: Any = None
        self.done: Any = None
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
        if self.host is None:
            self._gather()
        if self.host is None:
            return
        flat, self.flat = self.flat, None
        if flat.is_cuda:
            self.done = self.stash.leave(flat, self.host)
        else:
            self.host.copy_(flat)
        self._hand_out(self.host)

    def wait(self) -> None:
        """Wait until the states are on the host."""
        if self.done is not None:
            self.done.synchronize()
            self.done = None

    def forget(self) -> None:
        """Take other states, which were loaded."""
        if self.host is not None:
            self.stash.budget.give(size_of(self.host))
        self.host, self.kept = None, []

    def _gather(self) -> None:
        """Find the states after a first step and put them end to end. Leaves them alone where the host has no room."""
        import torch

        found = []
        for weights in self.optimizer.param_groups:
            for weight in weights["params"]:
                state = self.optimizer.state.get(weight, {})
                found += [(state, name, each) for name, each in state.items() if _moves(each, weight)]
        if not found or len({each.dtype for _, _, each in found}) != 1:
            return
        total = sum(each.numel() for _, _, each in found)
        size = total * found[0][2].element_size()
        if not self.stash.budget.take(size):
            return
        device = found[0][2].device
        try:
            self.host = torch.empty(total, dtype=found[0][2].dtype, pin_memory=device.type == "cuda")
        except RuntimeError:
            self.stash.budget.give(size)
            return
        self.kept = [(state, name, each.shape) for state, name, each in found]
        self.flat = torch.empty_like(self.host, device=device, pin_memory=False)
        at = 0
        for _, _, each in found:
            self.flat[at : at + each.numel()].copy_(each.reshape(-1))
            at += each.numel()

    def _hand_out(self, flat: Any) -> None:
        """Let the optimizer's states be parts of a flat tensor."""
        parts = flat.split([shape.numel() for _, _, shape in self.kept])
        for (state, name, shape), part in zip(self.kept, parts, strict=True):
            state[name] = part.view(shape)


def _moves(value: Any, weight: Any) -> bool:
    """Whether a state is as large as its weight; counters stay where they are."""
    return bool(getattr(value, "shape", None) == weight.shape and value.dim() > 0)
