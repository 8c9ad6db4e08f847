"""Which module computes the small steps on a device: kernels where Triton runs, else plain PyTorch."""

from __future__ import annotations

import functools
import shutil
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strix_train.lean.fourbit import Packed


def of(device: Any) -> ModuleType:
    """Return `kernels` or `plain`, for a torch device."""
    from strix_train.lean import plain

    return _proven() or plain if device.type == "cuda" else plain


@functools.cache
def _proven() -> ModuleType | None:
    """Return the kernels where they compile and compute what `plain` computes, else None."""
    if find_spec("triton") is None or not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return None
    import torch

    from strix_train.lean import plain

    try:
        kernels = import_module("strix_train.lean.kernels")
        made = torch.Generator(device="cuda").manual_seed(1)

        def some(*shape: int) -> Any:
            return torch.randn(*shape, device="cuda", generator=made)

        x, y, grad, weight = some(3, 80), some(3, 80), some(3, 80), some(80)
        angle = some(3, 20)
        cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
        targets = torch.arange(3, device="cuda")
        both = [results(module, x, y, grad, weight, cos, sin, targets) for module in (kernels, plain)]
        if not all(torch.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in zip(*both, strict=True)):
            return None
    except Exception:  # noqa: BLE001 - a compiler that fails, in any way that it can
        return None
    return kernels


def _packed(numbers: Any) -> Packed:
    """Return a weight (2, 128) whose 256 numbers stand in every half of a byte, its scales in bytes as well."""
    import torch

    from strix_train.lean.fourbit import Nested, Packed

    data = torch.arange(128, device=numbers.device, dtype=torch.uint8) * 7
    scales = torch.tensor([3, 250, 77, 0], dtype=torch.uint8, device=numbers.device)
    spread = torch.linspace(-1, 1, 256, device=numbers.device)
    nested = Nested(spread, numbers[0, :2].contiguous(), numbers[0, 2], 2)
    return Packed(data, 2, 128, 64, spread[::16].contiguous(), scales, nested)


def results(module: ModuleType, x: Any, y: Any, grad: Any, weight: Any, cos: Any, sin: Any, targets: Any) -> list[Any]:
    """Return what every step of a module makes of a few rows; heads are as wide as `cos`."""
    import torch

    sums, gated, logits = y.clone(), x.clone(), x.clone()
    first, second, third = x.clone(), y.clone(), grad.clone()
    found = [module.norm(x, weight, 1e-5), module.add_norm(x, sums, weight, 1e-5), sums]
    found += [module.norm_back(grad.clone(), x, weight, 1e-5, y), module.norm_back(grad.clone(), x, weight, 1e-5)]
    over = x.clone()
    found.append(module.norm_back(grad.clone(), over, weight, 1e-5, y, out=over))
    for back in (False, True):
        turned = x.clone().view(len(x), -1, cos.shape[1])
        module.rotate(turned, cos, sin, back=back)
        apart = x.new_zeros(len(x), turned.shape[1] + 1, cos.shape[1])[:, 1:]
        module.rotate(turned, cos, sin, back=not back, out=apart)
        found += [turned, apart]
    module.gate_back(first, second, third)
    packed, wide = _packed(x.float()), x.new_zeros(2, 130)
    found.append(module.unpack(packed, slice(0, 2), slice(0, 128), wide[:, :128]))
    found.append(module.unpack(packed, slice(1, 2), slice(64, 128), x.new_zeros(1, 64)))
    pair = x.new_zeros(2, 1, 130)
    module.unpack_both(packed, replace(packed, data=packed.data * 3), slice(1, 2), slice(0, 128), pair[:, :, :128])
    found.append(pair)
    plain_scales = replace(packed, scales=packed.code[: len(packed.scales)], nested=None)
    found.append(module.unpack(plain_scales, slice(0, 2), slice(64, 128), x.new_zeros(2, 64)))
    # halves of a row, and a norm whose rows stand apart
    halves = torch.cat((x, y), -1)
    found.append(module.norm(x, weight, 1e-5, out=x.new_zeros(len(x), 2 * x.shape[1])[:, : x.shape[1]]))
    last, wide_grad = grad.clone(), torch.cat((grad, y), -1)
    other = torch.empty_like(x)
    found.append(module.norm_back(wide_grad[:, : x.shape[1]], x, weight, 1e-5, y, out=other))
    found.append(module.norm_back(wide_grad[:, : x.shape[1]], x, weight, 1e-5))
    module.gate_back(halves[:, : x.shape[1]], halves[:, x.shape[1] :], last)
    found += [halves, last]
    again = torch.cat((x, y), -1)
    found.append(module.gate(again[:, : x.shape[1]], again[:, x.shape[1] :]))
    return [*found, module.gate(gated, y), first, second, third, module.cross_entropy(logits, targets), logits]
