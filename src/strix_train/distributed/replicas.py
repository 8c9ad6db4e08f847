"""DDP: each process has the whole model and the same gradients, which torch sums while the backward pass goes on.

torch would do two things that cost and change nothing: send every weight from process 0 when it wraps a model, also
those that never learn, which each process has loaded and a few numbers of which were compared (`digests`), and copy
summed gradients back out of what was sent.
"""

from __future__ import annotations

from typing import Any


def prepare(model: Any) -> None:
    """Let DDP send no weight that does not learn: each process has loaded its own, and they were compared."""
    from torch.nn.parallel import DistributedDataParallel

    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, frozen)


def with_views(base: Any) -> Any:
    """Return a trainer class whose gradients, once they are summed, are views of DDP's buckets."""

    class Viewed(base):  # type: ignore[misc]
        """The backend's trainer; it has no argument for that."""

        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            self.accelerator.ddp_handler.gradient_as_bucket_view = True

    return Viewed
