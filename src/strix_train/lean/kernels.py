"""The steps of `plain` as Triton kernels: each goes over its memory once, or twice where a row must be summed first.

Same names, same arguments and the same results up to rounding. Imported only where Triton runs (see `steps`).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from strix_train.lean.bitkernels import unpack as unpack
from strix_train.lean.bitkernels import unpack_both as unpack_both

# See `plain`.
UNPACKS = True
# Widest row that one program holds, in numbers; how many numbers of a row one program takes.
WIDEST = 2**15
_FLAT = 1024
_COLUMNS = 8192


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _norm(x, more, weight, out, width, apart, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    number = tl.program_id(0).to(tl.int64)
    row = number * width
    at = tl.arange(0, BLOCK)
    inside = at < width
    wide = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        wide += tl.load(more + row + at, mask=inside, other=0.0).to(tl.float32)
        kept = wide.to(more.dtype.element_ty)
        tl.store(more + row + at, kept, mask=inside)
        wide = kept.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
    by = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + number * apart + at, (wide * scale * by).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _norm_back(  # type: ignore[no-untyped-def]
    grad, x, weight, more, out, width, apart, out_apart, eps, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    number = tl.program_id(0).to(tl.int64)
    row = number * width
    at = tl.arange(0, BLOCK)
    inside = at < width
    wide = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    outer = tl.load(grad + number * apart + at, mask=inside, other=0.0).to(tl.float32)
    outer *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
    unit = wide * scale
    found = scale * (outer - unit * (tl.sum(outer * unit, 0) / width))
    if ADD:
        found += tl.load(more + row + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + number * out_apart + at, found.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _rotate(  # type: ignore[no-untyped-def]
    x, cos, sin, out, heads, positions, apart,
    HALF: tl.constexpr, HEADS: tl.constexpr, WIDE: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, WIDE)
    inside = (head[:, None] < heads) & (at[None, :] < HALF)
    row = (token % positions) * (2 * HALF) + at
    turn = tl.load(cos + row, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
    lift = tl.load(sin + row, mask=at < HALF, other=0.0).to(tl.float32)[None, :]
    if BACK:
        lift = -lift
    place = x + (token * heads + head[:, None]) * (2 * HALF) + at[None, :]
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=inside, other=0.0).to(tl.float32)
    to = out + token * apart + head[:, None] * (2 * HALF) + at[None, :]
    tl.store(to, (first * turn - second * lift).to(out.dtype.element_ty), mask=inside)
    tl.store(to + HALF, (second * turn + first * lift).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gate(x, y, width, apart, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    at += tl.program_id(0).to(tl.int64) * apart
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + at, (wide / (1.0 + tl.exp(-wide)) * other).to(x.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gate_back(x, y, grad, width, apart, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    row = tl.program_id(0).to(tl.int64)
    at, own = row * apart + column, row * width + column
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    outer = tl.load(grad + own, mask=inside, other=0.0).to(tl.float32)
    chance = 1.0 / (1.0 + tl.exp(-wide))
    bent = wide * chance
    tl.store(x + at, (outer * other * chance * (1.0 + wide * (1.0 - chance))).to(x.dtype.element_ty), mask=inside)
    tl.store(y + at, (outer * bent).to(y.dtype.element_ty), mask=inside)
    tl.store(grad + own, (bent * other).to(grad.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _cross_entropy(logits, targets, losses, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    number = tl.program_id(0).to(tl.int64)
    row = logits + number * width
    target = tl.load(targets + number)
    most = -float("inf")
    total = 0.0
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        some = tl.load(row + at, mask=at < width, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(some, 0))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(some - higher), 0)
        most = higher
    norm = most + tl.log(total)
    tl.store(losses + number, norm - tl.load(row + target).to(tl.float32))
    tl.debug_barrier()
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        some = tl.load(row + at, mask=at < width, other=-float("inf")).to(tl.float32)
        grad = tl.exp(some - norm) - tl.where(at == target, 1.0, 0.0)
        tl.store(row + at, grad.to(logits.dtype.element_ty), mask=at < width)


def _block(width: int) -> dict[str, int]:
    block = int(triton.next_power_of_2(width))
    return {"BLOCK": block, "num_warps": 4 if block <= 2048 else 8 if block <= 8192 else 16}


def _apart(x: Any) -> int:
    """Return how far rows stand apart: of a tensor of any shape that is contiguous, or of a part of a wider one."""
    return int(x.shape[-1] if x.is_contiguous() else x.stride(0))


def norm(x: Any, weight: Any, eps: float, out: Any = None) -> Any:
    """See `plain`."""
    x = x.contiguous()
    out = torch.empty_like(x) if out is None else out
    width = x.shape[-1]
    _norm[(x.numel() // width,)](x, x, weight, out, width, _apart(out), eps, ADD=False, **_block(width))
    return out


def add_norm(x: Any, more: Any, weight: Any, eps: float) -> Any:
    """See `plain`."""
    x = x.contiguous()
    out = torch.empty_like(more)
    width = x.shape[-1]
    _norm[(x.numel() // width,)](x, more, weight, out, width, width, eps, ADD=True, **_block(width))
    return out


def norm_back(grad: Any, x: Any, weight: Any, eps: float, more: Any = None, *, out: Any = None) -> Any:
    """See `plain`."""
    out = grad if out is None else out
    x = x if out is x else x.contiguous()
    width = x.shape[-1]
    other = x if more is None else more.contiguous()
    apart, out_apart = _apart(grad), _apart(out)
    _norm_back[(x.numel() // width,)](
        grad, x, weight, other, out, width, apart, out_apart, eps, ADD=more is not None, **_block(width)
    )
    return out


def rotate(x: Any, cos: Any, sin: Any, *, back: bool = False, out: Any = None) -> None:
    """See `plain`."""
    tokens, heads, width = x.shape
    out = x if out is None else out
    together = min(16, int(triton.next_power_of_2(heads)))
    _rotate[(tokens, triton.cdiv(heads, together))](
        x,
        cos,
        sin,
        out,
        heads,
        cos.shape[0],
        out.stride(0),
        HALF=width // 2,
        HEADS=together,
        WIDE=int(triton.next_power_of_2(width // 2)),
        BACK=back,
        num_warps=2,
    )


def gate(x: Any, y: Any) -> Any:
    """See `plain`."""
    rows, width = x.shape
    _gate[(rows, triton.cdiv(width, _FLAT))](x, y, width, x.stride(0), BLOCK=_FLAT, num_warps=4)
    return x


def gate_back(x: Any, y: Any, grad: Any) -> None:
    """See `plain`."""
    rows, width = x.shape
    _gate_back[(rows, triton.cdiv(width, _FLAT))](x, y, grad, width, x.stride(0), BLOCK=_FLAT, num_warps=4)


def cross_entropy(logits: Any, targets: Any) -> Any:
    """See `plain`."""
    rows, width = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _cross_entropy[(rows,)](logits, targets, losses, width, BLOCK=_COLUMNS, num_warps=16)
    return losses
