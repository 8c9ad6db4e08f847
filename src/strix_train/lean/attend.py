"""Causal attention that gives its gradient by hand, so that its result need not be computed a second time.

Queries, keys and values are (rows, tokens, heads, width), as projections leave them; fewer heads of keys and values are
shared. What a token sees: itself and what stands before it in its row, or in its own text where rows are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kernel = Literal["cudnn", "flash", "any"]
Back = Callable[[Any], tuple[Any, Any, Any]]
_HALF = ("torch.bfloat16", "torch.float16")
# Tokens whose gradients are made at a time, whole rows of them, where that is what takes the most memory: fewer leave a
# part of a large GPU without work.
BACK = 4096


@dataclass(frozen=True, slots=True)
class Seen:
    """What tokens see, beyond the rule above. `mask`: (rows, 1, tokens, tokens), True or 0 where they do.

    `starts`: first tokens of the texts of all rows end to end, and the end of the last one; `longest` of them.
    """

    mask: Any = None
    starts: Any = None
    longest: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel for whole rows, the one for packed rows, and of how many tokens gradients are made at a time."""

    whole: Kernel = "any"
    packed: Kernel = "any"
    back: int = BACK


ANY = Choice()


def kernel(q: Any, seen: Seen, preferred: Choice) -> Kernel:
    """Return the kernel that can do it: a preferred one, or PyTorch's choice, which can do all."""
    if seen.mask is not None or not q.is_cuda or str(q.dtype) not in _HALF:
        return "any"
    return preferred.whole if seen.starts is None else preferred.packed


def ahead(q: Any, k: Any, v: Any, seen: Seen, scale: float, preferred: Choice) -> tuple[Any, Any]:
    """Return the result, (rows, tokens, heads, width), and what `again` needs to do without computing it again."""
    import torch

    how = kernel(q, seen, preferred)
    if how == "flash":
        return _flash(q, k, v, seen, scale)
    if how == "cudnn":
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, True, 0.0, True, False, scale=scale
        )
        return found[0].transpose(1, 2), (found[1], found[6], found[7])
    return _any(q, k, v, seen, scale), None


def again(
    q: Any, k: Any, v: Any, seen: Seen, scale: float, preferred: Choice, kept: tuple[Any, Any] | None = None
) -> tuple[Any, Back]:
    """Return the result and the function that makes the gradients of q, k and v of its gradient.

    `kept`: what `ahead` returned, where that is still there.
    """
    how = kernel(q, seen, preferred)
    if how == "any":
        return _recorded(q, k, v, seen, scale, preferred.back)
    out, saved = kept or ahead(q, k, v, seen, scale, preferred)
    if seen.starts is not None:
        return out, lambda grad: _flash_back(grad, (q, k, v, out, saved[0]), saved[1:], seen, scale)
    sums, one, other = saved

    def part(grad: Any, *some: Any) -> tuple[Any, Any, Any]:
        if how == "flash":
            return _flash_back(grad, some, (one, other), seen, scale)
        return _cudnn_back(grad, some, (one, other), scale)

    return out, lambda grad: by_rows(part, preferred.back, grad, q, k, v, out, sums)


def by_rows(one: Callable[..., tuple[Any, Any, Any]], most: int, *parts: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of q, k and v that `one` makes of parts (rows, ...), of about `most` tokens at a time.

    A kernel works with more than it returns: a gradient in 32 bits, and those of keys and values for each head.
    """
    return _joined(
        [one(*(each[some] for each in parts)) for some in few_rows(parts[0].shape[0], parts[0].shape[1], most)]
    )


def few_rows(rows: int, tokens: int, most: int) -> list[slice]:
    """Return slices of rows whose gradients are made together, about `most` tokens."""
    step = max(1, most // tokens)
    return [slice(at, min(rows, at + step)) for at in range(0, rows, step)]


def _joined(found: list[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    import torch

    if len(found) == 1:
        return found[0]
    first, second, third = (torch.cat(each) for each in zip(*found, strict=True))
    return first, second, third


def _recorded(q: Any, k: Any, v: Any, seen: Seen, scale: float, most: int) -> tuple[Any, Back]:
    """See `again`: with PyTorch's choice of kernel, and the gradient that PyTorch makes of it."""
    import torch

    # packed texts are told by one mask for all rows
    several = few_rows(q.shape[0], q.shape[1], most) if seen.starts is None else [slice(0, len(q))]
    made = []
    for some in several:
        own = seen if seen.mask is None else Seen(mask=seen.mask[some])
        with torch.enable_grad():
            parts = [each[some].detach().requires_grad_() for each in (q, k, v)]
            made.append((some, parts, _any(parts[0], parts[1], parts[2], own, scale)))

    def back(grad: Any) -> tuple[Any, Any, Any]:
        found = []
        while made:
            some, parts, out = made.pop(0)
            first, second, third = torch.autograd.grad(out, parts, grad[some])
            found.append((first, second, third))
        return _joined(found)

    outs = [out.detach() for _, _, out in made]
    return outs[0] if len(outs) == 1 else torch.cat(outs), back


def _any(q: Any, k: Any, v: Any, seen: Seen, scale: float) -> Any:
    """PyTorch's own choice of kernel, among those that hold no scores of all pairs of tokens.

    With a mask, or in 32 bits, none of them shares keys and values among heads: there each head gets its own.
    """
    import torch

    mask = seen.mask
    if mask is None and seen.starts is not None:
        mask = _apart(seen.starts, q.shape[0], q.shape[1])
    shared = q.shape[2] != k.shape[2]
    if shared and (mask is not None or str(q.dtype) not in _HALF):
        k, v = (each.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for each in (k, v))
        shared = False
    found = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=shared,
    )
    return found.transpose(1, 2)


def _apart(starts: Any, rows: int, tokens: int) -> Any:
    """Return the mask (rows, 1, tokens, tokens) of packed texts that begin at `starts`."""
    import torch

    marks = torch.zeros(rows * tokens + 1, dtype=torch.long, device=starts.device)
    marks[starts.long()] = 1
    number = marks[:-1].cumsum(0).view(rows, tokens)
    same = number[:, :, None] == number[:, None, :]
    return (same & torch.ones(tokens, tokens, dtype=torch.bool, device=starts.device).tril())[:, None]


def _flash(q: Any, k: Any, v: Any, seen: Seen, scale: float) -> tuple[Any, Any]:
    import torch

    shape = q.shape
    starts, longest = seen.starts, seen.longest or shape[1]
    if starts is not None:
        q, k, v = (each.reshape(-1, *each.shape[2:]) for each in (q, k, v))
    found = torch.ops.aten._flash_attention_forward(
        q, k, v, starts, starts, longest, longest, 0.0, True, False, scale=scale
    )
    return found[0].view(shape), found[1:4]


def _cudnn_back(grad: Any, parts: tuple[Any, ...], chance: tuple[Any, Any], scale: float) -> tuple[Any, Any, Any]:
    """`parts`: queries, keys, values, what came out, and its sums; `chance`: the state of a generator, unused."""
    import torch

    *several, sums = parts
    length = grad.shape[1]
    tall = [each.transpose(1, 2) for each in (grad, *several)]
    found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *tall, sums, *chance, None, None, None, length, length, 0.0, True, scale=scale
    )
    first, second, third = (each.transpose(1, 2) for each in found)
    return first, second, third


def _flash_back(
    grad: Any, parts: tuple[Any, ...], chance: tuple[Any, Any], seen: Seen, scale: float
) -> tuple[Any, Any, Any]:
    """See `_cudnn_back`."""
    import torch

    *several, sums = parts
    starts, longest = seen.starts, seen.longest or grad.shape[1]
    shapes = [each.shape for each in several[:3]]
    flat = [grad, *several]
    if starts is not None:
        flat = [each.reshape(-1, *each.shape[2:]) for each in flat]
    found = torch.ops.aten._flash_attention_backward(
        *flat, sums, starts, starts, longest, longest, 0.0, True, *chance, scale=scale
    )
    first, second, third = (each.view(shape) for each, shape in zip(found, shapes, strict=True))
    return first, second, third


def choose(device: Any, dtype: Any, heads: int, groups: int, width: int) -> Choice:
    """Return the fastest kernels that are right on this device, each proven on a few numbers, whole and packed."""
    import torch

    if device.type != "cuda" or str(dtype) not in _HALF:
        return ANY
    if torch.version.hip or not torch.backends.cuda.flash_sdp_enabled():
        return ANY
    made = torch.Generator(device=device).manual_seed(1)
    q, k, v, grad = (
        torch.randn(2, 256, count, width, device=device, dtype=dtype, generator=made)
        for count in (heads, groups, groups, heads)
    )
    # four texts in two rows, the longest of 212 tokens
    packed = Seen(starts=torch.tensor([0, 100, 256, 300, 512], dtype=torch.int32, device=device), longest=212)
    whole = first_right(("cudnn", "flash"), (q, k, v), grad, Seen())
    return Choice(whole, first_right(("flash",), (q, k, v), grad, packed))


def first_right(names: Sequence[Kernel], parts: tuple[Any, Any, Any], grad: Any, seen: Seen) -> Kernel:
    """Return the first kernel whose result and gradients are those of PyTorch's choice, or that."""
    scale = parts[0].shape[-1] ** -0.5
    right, back = again(*parts, seen, scale, ANY)
    wanted = [right, *back(grad)]
    for name in names:
        only = Choice(name, name)
        try:
            kept = ahead(*parts, seen, scale, only)
            out, back = again(*parts, seen, scale, only, kept)
            found = [out, *back(grad)]
        except (AttributeError, RuntimeError, TypeError, ValueError):
            continue  # not built for this GPU, or another signature in this version of PyTorch
        if all(bool((a - b).abs().max() <= 0.02 * b.abs().max()) for a, b in zip(found, wanted, strict=True)):
            return name
    return "any"
