"""The steps of `plain` as Triton kernels: each goes over its memory once, or twice where a row must be summed first.

Same names, same arguments and the same results up to rounding. Imported only where Triton runs (see `steps`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from strix_train.lean.fourbit import Packed

# See `plain`.
UNPACKS = True
# Widest row that one program holds, in numbers; how many numbers of a row one program takes; and how many blocks.
WIDEST = 2**15
_FLAT = 1024
_COLUMNS = 8192
_BLOCKS = 64


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
    x, cos, sin, heads, positions, HALF: tl.constexpr, HEADS: tl.constexpr, WIDE: tl.constexpr, BACK: tl.constexpr
):
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
    tl.store(place, (first * turn - second * lift).to(x.dtype.element_ty), mask=inside)
    tl.store(place + HALF, (second * turn + first * lift).to(x.dtype.element_ty), mask=inside)


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
def _unpacked(  # type: ignore[no-untyped-def]
    data, code, scales, scale_code, outer, offset, out, first_row, first_block, wanted, blocks, apart, count, group,
    NESTED: tl.constexpr, HALF: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)
    inside = number < count
    row, block = number // wanted, number % wanted
    place = (first_row + row).to(tl.int64) * blocks + first_block + block
    some = tl.load(data + place[:, None] * HALF + tl.arange(0, HALF)[None, :], mask=inside[:, None], other=0)
    scale = tl.load(scales + place, mask=inside, other=0)
    if NESTED:
        scale = tl.load(scale_code + scale.to(tl.int32)) * tl.load(outer + place // group, mask=inside, other=0.0)
        scale += tl.load(offset)
    numbers = some.to(tl.int32)
    first = tl.load(code + (numbers >> 4)) * scale[:, None]
    second = tl.load(code + (numbers & 15)) * scale[:, None]
    to = row.to(tl.int64)[:, None] * apart + block[:, None] * (2 * HALF) + tl.arange(0, 2 * HALF)[None, :]
    tl.store(out + to, tl.interleave(first, second).to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _unpack(  # type: ignore[no-untyped-def]
    data, code, scales, scale_code, outer, offset, data_2, code_2, scales_2, scale_code_2, outer_2, offset_2,
    out, out_2, first_row, first_block, wanted, blocks, apart, count, group,
    NESTED: tl.constexpr, HALF: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    if tl.program_id(1) == 0:
        _unpacked(
            data, code, scales, scale_code, outer, offset, out, first_row, first_block, wanted, blocks, apart, count,
            group, NESTED, HALF, TOGETHER,
        )  # fmt: skip
    else:
        _unpacked(
            data_2, code_2, scales_2, scale_code_2, outer_2, offset_2, out_2, first_row, first_block, wanted, blocks,
            apart, count, group, NESTED, HALF, TOGETHER,
        )  # fmt: skip


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


def norm_back(grad: Any, x: Any, weight: Any, eps: float, more: Any = None, *, over: bool = False) -> Any:
    """See `plain`."""
    x = x if over else x.contiguous()
    width = x.shape[-1]
    other, out = x if more is None else more.contiguous(), x if over else grad
    apart, out_apart = _apart(grad), _apart(out)
    _norm_back[(x.numel() // width,)](
        grad, x, weight, other, out, width, apart, out_apart, eps, ADD=more is not None, **_block(width)
    )
    return out


def rotate(x: Any, cos: Any, sin: Any, *, back: bool = False) -> None:
    """See `plain`."""
    tokens, heads, width = x.shape
    together = min(16, int(triton.next_power_of_2(heads)))
    _rotate[(tokens, triton.cdiv(heads, together))](
        x,
        cos,
        sin,
        heads,
        cos.shape[0],
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


def unpack(packed: Packed, rows: slice, columns: slice, out: Any) -> Any:
    """See `plain`."""
    _start(1, packed, packed, rows, columns, out, out)
    return out


def unpack_both(first: Packed, second: Packed, rows: slice, columns: slice, out: Any) -> None:
    """See `plain`."""
    _start(2, first, second, rows, columns, out[0], out[1])


def _start(which: int, first: Packed, second: Packed, rows: slice, columns: slice, out: Any, out_2: Any) -> None:
    block, nested = first.block, first.nested
    wanted = (columns.stop - columns.start) // block
    count = (rows.stop - rows.start) * wanted
    _unpack[(triton.cdiv(count, _BLOCKS), which)](
        *_stored(first),
        *_stored(second),
        out,
        out_2,
        rows.start,
        columns.start // block,
        wanted,
        first.columns // block,
        out.stride(0),
        count,
        nested.group if nested else 1,
        NESTED=nested is not None,
        HALF=block // 2,
        TOGETHER=_BLOCKS,
        num_warps=4,
    )


def _stored(packed: Packed) -> tuple[Any, ...]:
    """Return the tensors of a weight; where its scales are in 32 bits, others that nobody reads."""
    inner = packed.nested
    more = (packed.code,) * 3 if inner is None else (inner.code, inner.outer, inner.offset)
    return packed.data, packed.code, packed.scales, *more


def cross_entropy(logits: Any, targets: Any) -> Any:
    """See `plain`."""
    rows, width = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _cross_entropy[(rows,)](logits, targets, losses, width, BLOCK=_COLUMNS, num_warps=16)
    return losses
