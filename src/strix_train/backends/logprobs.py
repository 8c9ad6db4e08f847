"""Log-probabilities in plain PyTorch, for TRL where its own kernel cannot run: no Triton, or no GPU."""

from __future__ import annotations

from typing import Any

# Tokens whose logits exist at the same time.
_TOKENS = 256


def install(*, gpu: bool) -> None:
    """Give TRL a kernel that runs here. One that runs already, such as Unsloth's, stays."""
    from trl.trainer import utils

    kernel = getattr(utils, "_ChunkedLogProbFunction", None)
    if kernel is None or (not gpu and getattr(kernel, "__module__", "").startswith("trl.")):
        utils._ChunkedLogProbFunction = PlainLogProbs


class PlainLogProbs:
    """Stands where TRL calls its kernel. All results are of shape (tokens,)."""

    @staticmethod
    def apply(
        hidden: Any,
        weight: Any,
        bias: Any,
        targets: Any,
        temperature: float,
        chunk_size: int,
        softcap: float | None = None,
        scale: float = 1.0,
        outputs: tuple[str, ...] = (),
    ) -> tuple[Any, ...]:
        """Return log-probabilities, entropy, log of the sum of squares, mean logit and whether the target is first.

        Those that `outputs` does not name are None, but for the first. Logits are made again in the backward pass.
        """
        import torch
        from torch.utils.checkpoint import checkpoint

        def some(hidden: Any, targets: Any) -> Any:
            logits = torch.nn.functional.linear(hidden.to(weight.dtype), weight, bias).float() * scale
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            logits = logits / temperature
            every = logits.log_softmax(-1)
            chosen = every.gather(-1, targets[:, None])[:, 0]
            found = [chosen, None, None, None, None]
            if "entropy" in outputs:
                found[1] = -(every.exp() * every).sum(-1)
            with torch.no_grad():
                if "log_sum_sq_probs" in outputs:
                    found[2] = (2 * every).logsumexp(-1)
                if "mean_logits" in outputs:
                    found[3] = logits.mean(-1)
                if "is_top1" in outputs:
                    found[4] = logits.argmax(-1) == targets
            return tuple(found)

        pieces = [
            checkpoint(some, hidden[at : at + _TOKENS], targets[at : at + _TOKENS], use_reentrant=False)
            for at in range(0, max(1, len(targets)), _TOKENS)
        ]
        return tuple(None if parts[0] is None else torch.cat(parts) for parts in zip(*pieces, strict=True))
