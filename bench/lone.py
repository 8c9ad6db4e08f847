"""One process as a group of its own: what the machinery of a strategy costs where there is nobody to talk to.

`train` shares nothing among one process, whatever the recipe says. Here it is made to: the strategy is decided as for
two, the process group has one member, and accelerate takes that for several. FSDP2 then gathers weights by copying
them on the device; the rest is what several processes do.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from strix_train.device import Device
from strix_train.distributed import places, strategy
from strix_train.distributed.seats import Seat
from strix_train.distributed.together import Ranks

# As how many processes share a model, so that a group of one does the same.
_LIKE = 2


@contextmanager
def group_of_one() -> Iterator[set[str]]:
    """Let `train`, called inside, share its model with nobody; gives the strategy that its model really has then."""
    seen: set[str] = set()
    decide = strategy.decide

    def decided(plan: Any, device: Any, world: int, *more: Any) -> Any:
        return decide(plan, device, _LIKE, *more)

    with ExitStack() as stack:

        def start(ranks: Ranks, device: Device) -> None:
            # only now: libraries are imported when the rules for the device are known
            from accelerate.state import DistributedType, PartialState
            from transformers import Trainer

            stack.callback(places.leave)
            seat = Seat(0, 1, "127.0.0.1", _free_port())
            places.store(seat)
            places.group(seat, device)
            pass_of = Trainer.training_step

            def looked_at(trainer: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
                if not seen:
                    seen.add(_shown(model))
                return pass_of(trainer, model, *args, **kwargs)

            several = property(lambda state: state.distributed_type != DistributedType.NO)
            stack.enter_context(mock.patch.object(PartialState, "use_distributed", several))
            stack.enter_context(mock.patch.object(Trainer, "training_step", looked_at))

        stack.enter_context(mock.patch.object(strategy, "decide", decided))
        stack.enter_context(mock.patch.object(Ranks, "start", start))
        yield seen


def _shown(model: Any) -> str:
    """Return the strategy that a model in a trainer's hands is wrapped or cut by."""
    from torch.distributed.tensor import DTensor
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        return "ddp"
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    return "fsdp" if learning and all(isinstance(weight, DTensor) for weight in learning) else "none"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
