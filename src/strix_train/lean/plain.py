"""The small steps between the matrix products in plain PyTorch: what the kernels compute, where there is no Triton.

`x` and the like are (tokens, width). Sums are taken in 32 bits, results have the type of what comes in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strix_train.lean.fourbit import Packed

# Whether weights of 4 bits are made faster here than bitsandbytes does it.
UNPACKS = False


def norm(x: Any, weight: Any, eps: float, out: Any = None) -> Any:
    """Return the RMS norm of each row, times `weight` (width), written into `out` where that is given."""
    wide = x.float()
    found = (wide * (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()).mul_(weight.float())
    return found.to(x.dtype) if out is None else out.copy_(found)


def add_norm(x: Any, more: Any, weight: Any, eps: float) -> Any:
    """Add `x` to `more` in place and return the norm of the sum."""
    more.add_(x)
    return norm(more, weight, eps)


def norm_back(grad: Any, x: Any, weight: Any, eps: float, more: Any = None, *, out: Any = None) -> Any:
    """Turn the gradient of `norm`'s result into that of `x`, in its own place or that of `out`; `more` is added to it.

    `out` may be x.
    """
    wide = x.float()
    scale = (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    unit = wide * scale
    weighed = grad.float() * weight.float()
    found = scale * (weighed - unit * (weighed * unit).mean(-1, keepdim=True))
    if more is not None:
        found += more.float()
    return (grad if out is None else out).copy_(found)


def rotate(x: Any, cos: Any, sin: Any, *, back: bool = False, out: Any = None) -> None:
    """Turn heads (tokens, heads, width) by their positions; `back` turns them back. In place, or in that of `out`.

    Tokens of `out` may stand apart. `cos`, `sin`: (positions, width); token t stands at row t modulo positions. Both
    halves of a row are equal.
    """
    half = x.shape[-1] // 2
    times = x.shape[0] // cos.shape[0]
    turn, lift = (each[:, None, :half].float().repeat(times, 1, 1) for each in (cos, sin))
    if back:
        lift = -lift
    first, second = x[..., :half].float(), x[..., half:].float()
    made = (first * turn - second * lift, second * turn + first * lift)
    out = x if out is None else out
    out[..., :half], out[..., half:] = made


def gate(x: Any, y: Any) -> Any:
    """Return silu(x) * y, in the place of x; rows of both may stand equally far apart."""
    wide = x.float()
    return x.copy_(wide * wide.sigmoid() * y.float())


def gate_back(x: Any, y: Any, grad: Any) -> None:
    """Of x, y and the gradient of silu(x) * y make, in place: the gradients of x and of y, and silu(x) * y."""
    wide, other, outer = x.float(), y.float(), grad.float()
    chance = wide.sigmoid()
    bent = wide * chance
    made = (outer * other * chance * (1 + wide * (1 - chance)), outer * bent, bent * other)
    for place, value in zip((x, y, grad), made, strict=True):
        place.copy_(value)


def unpack(packed: Packed, rows: slice, columns: slice, out: Any) -> Any:
    """Write a part of a weight of 4 bits into `out` (rows, columns); columns begin and end with blocks."""
    import torch

    first, end = columns.start // packed.block, columns.stop // packed.block
    some = packed.data.view(packed.rows, packed.columns // packed.block, -1)[rows, first:end]
    numbers = torch.stack((some >> 4, some & 15), -1).flatten(-2).long()
    scales = packed.scales.view(packed.rows, -1)[rows, first:end]
    if packed.nested is not None:
        nested = packed.nested
        places = torch.arange(packed.scales.numel(), device=scales.device).view(packed.rows, -1)[rows, first:end]
        scales = nested.code[scales.long()] * nested.outer[places // nested.group] + nested.offset
    return out.copy_((packed.code[numbers] * scales[..., None]).flatten(-2))


def unpack_both(first: Packed, second: Packed, rows: slice, columns: slice, out: Any) -> None:
    """Write the same part of two weights that are stored alike into `out` (2, rows, columns)."""
    for packed, half in zip((first, second), out, strict=True):
        unpack(packed, rows, columns, half)


def cross_entropy(logits: Any, targets: Any) -> Any:
    """Return each row's cross entropy in 32 bits; `logits` (rows, vocabulary) become its gradient, in place."""
    scores = logits.float()
    norms = scores.logsumexp(-1, keepdim=True)
    found = (norms - scores.gather(1, targets[:, None]))[:, 0]
    grad = scores.sub_(norms).exp_()
    grad.scatter_add_(1, targets[:, None], grad.new_full((len(targets), 1), -1.0))
    logits.copy_(grad)
    return found
