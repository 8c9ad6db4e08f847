"""Lean layers whose weights are stored in 4 bits: made right, in parts, and once where that is enough."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from leanly import adapted, batch, compare, goes_on

from strix_train.distributed import digests
from strix_train.lean import columns, fourbit, install, layer, plain
from strix_train.lean.arena import Arena, Budget

# What bitsandbytes' 16 values are does not matter here: any will do that are all different.
BLOCK, GROUP = 64, 4


def stored(rows: int, width: int, seed: int, *, nested: bool = True) -> tuple[Any, Any]:
    """Return a weight as bitsandbytes stores it, of random bits, and what it stands for, one number after the other."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (rows * width // 2, 1), generator=chance, dtype=torch.uint8)
    count = rows * width // BLOCK
    code = torch.linspace(-1, 1, 16)
    if nested:
        # scales of a few hundredths, as weights have
        inner = SimpleNamespace(
            code=torch.linspace(-0.02, 0.02, 256),
            absmax=torch.rand(-(-count // GROUP), generator=chance),
            blocksize=GROUP,
        )
        absmax, offset = torch.randint(0, 256, (count,), generator=chance, dtype=torch.uint8), torch.tensor(0.1)
        scales = [float(inner.code[int(b)] * inner.absmax[at // GROUP] + offset) for at, b in enumerate(absmax)]
    else:
        inner, offset, absmax = None, None, 0.2 * torch.rand(count, generator=chance)
        scales = absmax.tolist()
    numbers = [half for byte in data[:, 0].tolist() for half in (byte >> 4, byte & 15)]
    values = [float(code[number]) * scales[at // BLOCK] for at, number in enumerate(numbers)]
    state = SimpleNamespace(
        shape=torch.Size([rows, width]),
        quant_type="nf4",
        blocksize=BLOCK,
        absmax=absmax,
        code=code,
        nested=nested,
        state2=inner,
        offset=offset,
    )
    weight = kind("Params4bit", torch.nn.Parameter)(data, requires_grad=False)
    weight.quant_state = state
    return weight, torch.tensor(values).view(rows, width)


def kind(name: str, base: type) -> Any:
    """Return a class that lean layers know by its name."""
    return type(name, (base,), {})


def pair(keys: dict[str, Any], targets: Any = "all-linear") -> tuple[Any, Any]:
    """Return a model of frozen weights, and the same one with them in 4 bits."""
    import torch

    model, other = (adapted("llama", targets=targets, **keys) for _ in range(2))
    layers = zip(model.base_model.model.model.layers, other.base_model.model.model.layers, strict=True)
    seed = 0
    for mine, theirs in layers:
        for (name, module), wanted in zip(mine.named_modules(), theirs.modules(), strict=True):
            if name.endswith("_proj"):
                plain_linear, base = (getattr(each, "base_layer", each) for each in (module, wanted))
                seed += 1
                weight, dense = stored(*plain_linear.weight.shape, seed)
                plain_linear.weight.data = dense
                base.__class__ = kind("Linear4bit", torch.nn.Linear)
                base.weight = weight
    return model, other


@pytest.mark.parametrize("nested", [True, False])
def test_any_part_of_a_weight_can_be_made(nested: bool) -> None:
    import torch

    weight, wanted = stored(6, 3 * BLOCK, 1, nested=nested)
    packed = fourbit.of(weight)
    assert packed is not None
    for rows, some in ((slice(0, 6), slice(0, 3 * BLOCK)), (slice(1, 5), slice(BLOCK, 2 * BLOCK))):
        part = wanted[rows, some]
        found = plain.unpack(packed, rows, some, torch.zeros(len(part), 200)[:, : part.shape[1]])
        assert torch.allclose(found, part, rtol=1e-6, atol=1e-7)


def test_what_is_stored_otherwise_is_left_to_bitsandbytes() -> None:
    weight, _ = stored(4, 2 * BLOCK, 1)
    assert fourbit.of(weight) is not None
    assert fourbit.of(weight.data) is None
    for change in (
        {"quant_type": "fp4"},
        {"shape": (8, BLOCK // 2)},  # a block goes on in the next row
        {"shape": (2, 2 * BLOCK)},  # and a piece of the weight
        {"blocksize": 2 * BLOCK},
    ):
        weight, _ = stored(4, 2 * BLOCK, 1)
        vars(weight.quant_state).update(change)
        assert fourbit.of(weight) is None, change


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.parametrize("nested", [True, False])
def test_weights_are_what_bitsandbytes_makes_of_them(nested: bool) -> None:
    import torch
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    torch.manual_seed(0)
    data, state = quantize_4bit(torch.randn(96, 256).bfloat16(), quant_type="nf4", compress_statistics=nested)
    packed = fourbit.of(SimpleNamespace(data=data, quant_state=state))
    assert packed is not None
    found = plain.unpack(packed, slice(0, 96), slice(0, 256), torch.empty(96, 256, dtype=torch.bfloat16))
    assert torch.equal(found, dequantize_4bit(data, state))


WIDE = {"hidden_size": 64, "intermediate_size": 320, "head_dim": 32}


@pytest.mark.parametrize("how", ["full", "left", "packed"])
@pytest.mark.parametrize(
    "targets",
    [
        "all-linear",
        ["up_proj"],
        ["gate_proj", "q_proj"],
        ["down_proj"],
        ["o_proj", "v_proj"],
    ],
)
def test_some_columns_at_a_time_are_as_good_as_all(how: str, targets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in three slices, 320 columns in two parts; then rows in one, and three parts, the last one half as wide."""
    monkeypatch.setattr(plain, "UNPACKS", True)
    monkeypatch.setattr(columns, "WIDE", 120)
    monkeypatch.setattr(layer, "ROWS", 64)
    model, other = pair(WIDE, targets)
    assert install.install(other, offload=False)
    wanted: list[tuple[int, int]] = []
    whole = plain.unpack

    def unpack(packed: Any, rows: slice, some: slice, out: Any) -> Any:
        wanted.append((rows.stop - rows.start, some.stop - some.start))
        return whole(packed, rows, some, out)

    monkeypatch.setattr(plain, "unpack", unpack)
    rows = batch(how)
    compare(model, other, rows)
    # three layers, forward and backward: each weight once for all slices, three of them in two parts
    assert len(wanted) == 3 * 2 * (4 + 2 * 3)
    wanted.clear()
    compare(model, other, {name: value[:2] for name, value in rows.items()})
    assert {each for each in wanted if 128 in each or 64 in each} >= {(128, 64), (64, 128), (64, 64)}
    # nothing is kept: attention's four are made once more, but for the three whose gradient the first layer needs not
    assert len(wanted) == 3 * 2 * (4 + 3 * 3) + 3 * 4 - 3


@pytest.mark.parametrize("targets", ["all-linear", ["k_proj", "down_proj"], ["gate_proj"]])
@pytest.mark.parametrize("rows", [5, 2])
def test_what_is_kept_is_not_made_again(targets: Any, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "UNPACKS", True)
    monkeypatch.setattr(layer, "ROWS", 64)
    model, other = pair(WIDE, targets)
    lean = install.install(other, offload=False)
    assert lean is not None
    lean.stash.on, lean.stash.arena = True, Arena(Budget(2**40))
    calls, wanted, whole = goes_on(monkeypatch), [], plain.unpack
    monkeypatch.setattr(plain, "unpack", lambda *parts: wanted.append(1) or whole(*parts))
    compare(model, other, {name: value[:rows] for name, value in batch("full").items()})
    assert len(calls) == 3 * (3 if rows == 5 else 1)
    assert max(calls) < 1e-5
    # three layers, forward and backward, each weight once; of the first layer three have no gradient to give
    assert len(wanted) == 3 * 2 * 7 - 3


def test_a_row_longer_than_a_slice_goes_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "UNPACKS", True)
    monkeypatch.setattr(layer, "ROWS", 12)
    model, other = pair(WIDE)
    assert install.install(other, offload=False)
    compare(model, other, batch("right"))


def test_bits_are_found_where_they_lie_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "UNPACKS", True)
    model, other = pair(WIDE)
    lean = install.install(other, offload=False)
    assert lean is not None
    for part in lean.made[0].projections():
        before = part.weight.data
        part.weight.data = before.clone()
        before.zero_()  # whoever still looks here computes with nothing
    compare(model, other, batch("full"))


def test_processes_compare_the_scales_of_4_bits_as_well() -> None:
    _, model = pair(WIDE)
    before = digests.weights(model)
    scales = model.base_model.model.model.layers[1].mlp.up_proj.base_layer.weight.quant_state.absmax
    scales[-1] += 1
    assert digests.weights(model) != before


def test_a_bias_in_the_gated_part_takes_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "UNPACKS", True)
    model, other = pair(WIDE | {"mlp_bias": True})
    lean = install.install(other, offload=False)
    assert lean is not None
    assert columns.packed(lean.made[0]) is None
    compare(model, other, batch("right"))


@pytest.mark.parametrize(("rows", "made"), [(5, 7 * 2), (1, 7 + 7 + 5)])
def test_weights_of_4_bits_are_made_once_for_all_slices(rows: int, made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for bitsandbytes: what is stored is half of the weight, and is doubled when it is wanted."""
    import torch

    class Params4bit(torch.nn.Parameter):  # type: ignore[misc]
        pass

    class Linear4bit(torch.nn.Linear):  # type: ignore[misc]
        pass

    wanted: list[int] = []

    def doubled(data: Any, state: Any) -> Any:
        wanted.append(data.numel())
        return data * state

    fake = ModuleType("bitsandbytes.functional")
    fake.dequantize_4bit = doubled  # type: ignore[attr-defined]
    model, other = adapted("llama"), adapted("llama")
    for module in [each for each in other.modules() if hasattr(each, "base_layer")]:
        base = module.base_layer
        base.__class__ = Linear4bit
        base.weight = Params4bit(base.weight.data / 2, requires_grad=False)
        base.weight.quant_state = 2.0
    assert install.install(other, offload=False)
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", fake)
    monkeypatch.setattr(layer, "ROWS", 64)
    monkeypatch.setattr(layer, "TOKENS", 30)
    compare(model, other, {name: value[:rows] for name, value in batch("full").items()})
    # all of a layer forward, and backward; one slice makes the five that it needs twice again, and keeps none
    assert len(wanted) == 3 * made


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_compute_what_plain_pytorch_computes() -> None:
    code = """
import torch
from strix_train.lean import kernels, plain, steps
torch.manual_seed(0)
for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 0.04)):
    for width, positions in ((80, 6), (96, 3)):
        x, y, grad = (torch.randn(6, width).to(dtype) for _ in range(3))
        weight, angle = torch.randn(width), torch.randn(positions, 8)
        cos, sin = (each.repeat(1, 2).to(dtype) for each in (angle.cos(), angle.sin()))
        targets = torch.randint(0, width, (6,))
        both = [steps.results(module, x, y, grad, weight, cos, sin, targets) for module in (kernels, plain)]
        for one, other in zip(*both, strict=True):
            assert float((one.float() - other.float()).abs().max()) <= most, (dtype, width)
print("same")
"""
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "same", done.stderr
