"""`plain.unpack` and `unpack_both` as Triton kernels, which `kernels` has beside its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

if TYPE_CHECKING:
    from strix_train.lean.fourbit import Packed

# Blocks of a weight that one program makes.
_BLOCKS = 64


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
    data, code, scales, scale_code, outer, offset, out, first_row, first_block, wanted, blocks, apart, count, group,
    NESTED: tl.constexpr, HALF: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    _unpacked(
        data, code, scales, scale_code, outer, offset, out, first_row, first_block, wanted, blocks, apart, count, group,
        NESTED, HALF, TOGETHER,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _unpack_both(  # type: ignore[no-untyped-def]
    data, code, scales, scale_code, outer, offset, out, data_2, code_2, scales_2, scale_code_2, outer_2, offset_2,
    out_2, first_row, first_block, wanted, blocks, apart, count, group,
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


def unpack(packed: Packed, rows: slice, columns: slice, out: Any) -> Any:
    """See `plain`."""
    # most of what starting a kernel costs are its arguments, and both have twice as many
    _start(_unpack, (packed,), rows, columns, (out,))
    return out


def unpack_both(first: Packed, second: Packed, rows: slice, columns: slice, out: Any) -> None:
    """See `plain`."""
    _start(_unpack_both, (first, second), rows, columns, (out[0], out[1]))


def _start(kernel: Any, packed: tuple[Packed, ...], rows: slice, columns: slice, outs: tuple[Any, ...]) -> None:
    first = packed[0]
    block, nested = first.block, first.nested
    wanted = (columns.stop - columns.start) // block
    count = (rows.stop - rows.start) * wanted
    given = [each for one, out in zip(packed, outs, strict=True) for each in (*_stored(one), out)]
    kernel[(triton.cdiv(count, _BLOCKS), len(packed))](
        *given,
        rows.start,
        columns.start // block,
        wanted,
        first.columns // block,
        outs[0].stride(0),
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
