"""Lean layers: the loss and the gradients of the model as it is, in less memory, whatever rows look like."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from leanly import adapted, batch, compare, goes_on
from live import Live

from strix_train.lean import arena, attend, install, keep, layer, stash
from strix_train.lean.arena import Arena, Budget, power
from strix_train.lean.keep import Keep
from strix_train.lean.parking import Parking
from strix_train.lean.stash import Stash, host_budget


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several slices of rows and of tokens, the last ones not full."""
    monkeypatch.setattr(layer, "ROWS", 64)
    monkeypatch.setattr(layer, "TOKENS", 24)


@pytest.mark.parametrize("how", ["full", "right", "left", "packed"])
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_loss_and_gradients_are_those_of_the_model_as_it_is(
    kind: str, keys: dict[str, Any], how: str, small_slices: None
) -> None:
    other = adapted(kind, **keys)
    assert install.install(other, offload=False)
    compare(adapted(kind, **keys), other, batch(how))


@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], ["up_proj"], ["k_proj", "o_proj", "gate_proj"]])
def test_some_layers_may_have_no_adapter(targets: list[str], small_slices: None) -> None:
    other = adapted("llama", targets=targets)
    assert install.install(other, offload=False)
    compare(adapted("llama", targets=targets), other, batch("right"))


def test_gradients_add_up_over_passes_and_in_16_bits(small_slices: None) -> None:
    import torch

    model, other = adapted("llama", dtype="bfloat16"), adapted("llama", dtype="bfloat16")
    assert install.install(other, offload=False)
    sums = []
    for each in (model, other):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for how in ("full", "packed"):
                each(**batch(how)).loss.backward()
        sums.append({name: weight.grad for name, weight in each.named_parameters() if weight.requires_grad})
    for name, grad in sums[0].items():
        assert sums[1][name].dtype == torch.float32
        assert float((sums[1][name] - grad).norm()) <= 0.03 * float(grad.norm()), name


@pytest.mark.parametrize("kept", list(Keep))
@pytest.mark.parametrize(("kind", "how"), [("qwen3", "full"), ("llama", "right"), ("qwen2", "full")])
def test_what_is_kept_need_not_be_computed_twice(
    kind: str, how: str, kept: Keep, small_slices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = adapted(kind), adapted(kind)
    lean = install.install(other, offload=False)
    assert lean is not None
    plain, calls, heads = attend.again, goes_on(monkeypatch), []
    whole = layer.Work.heads
    monkeypatch.setattr(layer.Work, "heads", lambda *parts: heads.append(1) or whole(*parts))
    lean.stash.on, lean.stash.arena = True, Arena(Budget(2**40))
    # what leaves while a layer is computed is enough for that and for no more
    wanted = keep.numbers(lean.made[0], 64)
    lean.hurry = sum(4 * sum(each) for each in wanted[: kept + 1])
    compare(model, other, batch(how))
    passes = 3 * 3  # layers, slices of rows
    assert len(calls) == (0 if kept is Keep.INPUT else passes)
    assert max(calls, default=0) < 1e-5
    assert len(heads) == (passes if kept is Keep.HEADS else 2 * passes)
    lean.stash.arena = Arena(Budget(1000))  # no room on the host: all is computed again
    monkeypatch.setattr(attend, "again", plain)
    heads.clear()
    compare(model, other, batch(how))
    assert len(heads) == 2 * passes


@pytest.mark.parametrize(
    ("room", "leaves", "wanted"),
    [
        (10**9, 10**9, Keep.HEADS),
        # 2 layers, 3 slices of 4 tokens, numbers of 2 bytes: what goes away takes 80, 144, and 64
        (6 * (80 + 144 + 64), 10**9, Keep.HEADS),
        (6 * (80 + 144 + 64) - 1, 10**9, Keep.ATTENTION),
        (6 * (80 + 144) - 1, 10**9, Keep.INPUT),
        (0, 0, Keep.INPUT),
        (10**9, 2 * 36, Keep.HEADS),
        (10**9, 2 * 36 - 1, Keep.ATTENTION),
        (10**9, 2 * 28 - 1, Keep.INPUT),
    ],
)
def test_as_much_is_kept_as_finds_room_and_leaves_in_time(room: int, leaves: float, wanted: Keep) -> None:
    numbers = ((10,), (6, 12), (6, 1, 1))
    largest = []

    def left(most: int) -> int:
        largest.append(most)
        return room

    assert keep.choose(numbers, layers=2, slices=3, tokens=4, size=2, room=left, leaves=leaves) is wanted
    assert largest == [80, 96, 96]


@pytest.mark.parametrize("how", ["mask", "starts", "neither"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_that_share_keys_never_meet_a_mask(how: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel but the one that holds all scores takes both; results and gradients are those of that one."""
    import torch

    torch.manual_seed(3)
    rows, tokens, heads, groups, width = 2, 12, 6, 2, 8
    q, grad = (torch.randn(rows, tokens, heads, width, dtype=getattr(torch, dtype)) for _ in range(2))
    k, v = (torch.randn(rows, tokens, groups, width, dtype=getattr(torch, dtype)) for _ in range(2))
    own, causal = torch.arange(tokens), torch.ones(tokens, tokens, dtype=torch.bool).tril()
    seen, allowed = attend.Seen(), causal.expand(rows, 1, -1, -1)
    if how == "mask":
        allowed = torch.stack([causal, causal & (own >= 4)[None] | torch.eye(tokens, dtype=torch.bool)])[:, None]
        seen = attend.Seen(mask=allowed)
    if how == "starts":
        seen = attend.Seen(starts=torch.tensor([0, 5, 12, 15, 24], dtype=torch.int32), longest=9)
        text = torch.tensor([[0] * 5 + [1] * 7, [2] * 3 + [3] * 9])
        allowed = (causal & (text[:, :, None] == text[:, None, :]))[:, None]
    usual, calls = torch.nn.functional.scaled_dot_product_attention, []

    def asked(*parts: Any, attn_mask: Any = None, enable_gqa: bool = False, **keys: Any) -> Any:
        calls.append((attn_mask is not None, enable_gqa))
        return usual(*parts, attn_mask=attn_mask, enable_gqa=enable_gqa, **keys)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", asked)
    ahead, _ = attend.ahead(q, k, v, seen, 0.4, attend.ANY)
    out, back = attend.again(q, k, v, seen, 0.4, attend.ANY)
    assert calls == 2 * [(how != "neither", how == "neither" and dtype == "bfloat16")]
    # heads one by one, in 32 bits
    parts = [each.float().requires_grad_() for each in (q, k, v)]
    wide = [parts[1][:, :, head * groups // heads] for head in range(heads)]
    tall = [parts[2][:, :, head * groups // heads] for head in range(heads)]
    made = []
    for head in range(heads):
        scores = (parts[0][:, :, head] @ wide[head].transpose(1, 2) * 0.4).masked_fill(~allowed[:, 0], -torch.inf)
        made.append(scores.softmax(-1) @ tall[head])
    wanted = torch.stack(made, 2)
    theirs = torch.autograd.grad(wanted, parts, grad.float())
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 0.05, "atol": 0.1}
    assert torch.allclose(ahead.float(), wanted, **close)
    for found, right in zip([out, *back(grad)], [wanted, *theirs], strict=True):
        assert found.shape == right.shape
        assert torch.allclose(found.float(), right, **close)


@pytest.mark.parametrize(
    ("dtype", "seen", "whole", "wanted"),
    [
        ("torch.bfloat16", attend.Seen(), "cudnn", "cudnn"),
        ("torch.bfloat16", attend.Seen(starts=1), "cudnn", "any"),  # flash was not proven
        ("torch.float16", attend.Seen(starts=1), "flash", "flash"),
        ("torch.bfloat16", attend.Seen(mask=1), "flash", "any"),
        ("torch.float32", attend.Seen(), "flash", "any"),
    ],
)
def test_only_kernels_that_were_proven_are_used(dtype: str, seen: Any, whole: Any, wanted: str) -> None:
    query = SimpleNamespace(is_cuda=True, dtype=dtype)
    assert attend.kernel(query, seen, attend.Choice(whole, "flash" if whole == "flash" else "any")) == wanted


@pytest.mark.parametrize("packed", [False, True])
def test_kernels_are_proven_on_whole_and_on_packed_rows(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three kernels the first is not there, the second gives a wrong gradient where rows are packed."""
    import torch

    torch.manual_seed(4)
    q, k, v, grad = (torch.randn(2, 8, heads, 4) for heads in (4, 2, 2, 4))
    seen = attend.Seen(starts=torch.tensor([0, 3, 8, 16], dtype=torch.int32), longest=8) if packed else attend.Seen()
    plain, tried = attend.again, []

    def ahead(*parts: Any) -> Any:
        tried.append(parts[-1].whole)
        if tried[-1] == "cudnn":
            raise AttributeError("no such operator")
        return "kept"

    def again(*parts: Any) -> Any:
        out, back = plain(*parts[:6])
        wrong = packed and len(parts) == 7
        return out, (lambda grad: [each * (1.1 if wrong else 1) for each in back(grad)])

    monkeypatch.setattr(attend, "ahead", ahead)
    monkeypatch.setattr(attend, "again", again)
    assert attend.first_right(("cudnn", "flash"), (q, k, v), grad, seen) == ("any" if packed else "flash")
    assert tried == ["cudnn", "flash"]


@pytest.mark.parametrize(("most", "calls"), [(16, 3), (5, 5), (100, 1)])
def test_gradients_of_attention_are_those_of_all_rows_at_once(most: int, calls: int) -> None:
    import torch

    torch.manual_seed(5)
    rows, tokens = 5, 7
    grad, q = (torch.randn(rows, tokens, 4, 8) for _ in range(2))
    k, v = (torch.randn(rows, tokens, 2, 8) for _ in range(2))
    _, whole = attend.again(q, k, v, attend.Seen(), 0.3, attend.ANY)
    seen = []

    def one(grad: Any, *some: Any) -> Any:
        seen.append(len(grad))
        return attend.again(*some, attend.Seen(), 0.3, attend.ANY)[1](grad)

    for found, wanted in zip(attend.by_rows(one, most, grad, q, k, v), whole(grad), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert len(seen) == calls
    assert sum(seen) == rows


@pytest.mark.parametrize("how", ["full", "left", "packed"])
def test_attention_of_few_rows_at_a_time_sees_what_it_should(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of the five at a time, whose masks differ; packed rows are told by one mask, and stay together."""
    assert [some.stop - some.start for some in attend.few_rows(5, 30, 60)] == [2, 2, 1]
    other = adapted("llama")
    lean = install.install(other, offload=False)
    assert lean is not None
    lean.kernels = attend.Choice(back=60)
    compare(adapted("llama"), other, batch(how))


def test_adapters_may_share_a_weight_at_different_scales() -> None:
    def tied(**scales: float) -> Any:
        model = adapted("llama")
        for each in model.base_model.model.model.layers:
            keys, values = each.self_attn.k_proj, each.self_attn.v_proj
            values.lora_B["default"].weight = keys.lora_B["default"].weight
            for name, scale in scales.items():
                getattr(each.self_attn, name).scaling["default"] = scale
        return model

    scales = {"k_proj": 1.5, "v_proj": 3.0}
    other = tied(**scales)
    assert install.install(other, offload=False)
    compare(tied(**scales), other, batch("right"))


def test_in_32_bits_pytorch_chooses_the_kernel() -> None:
    import torch

    # a GPU that is not there: nothing is computed on it, since there is nothing to compare
    gpu = SimpleNamespace(type="cuda")
    assert attend.choose(gpu, torch.float32, 4, 2, 16) == attend.Choice("any", "any")
    lean = install.install(adapted("llama"), offload=False)
    assert lean is not None
    assert "PyTorch's choice of attention" in lean.told


@pytest.mark.parametrize("adapter", ["lora", "rslora", "lora8bit"])
def test_the_backend_recomputes_one_way_or_the_other(adapter: str) -> None:
    from dataclasses import replace

    from strix_train.backends.base import Load
    from strix_train.backends.hf import PlainBackend
    from strix_train.device import Device
    from strix_train.names import ModelName
    from strix_train.recipe.adapter import LowRank

    device = Device("cpu", "cpu", "", "", 0, False, False)
    learns = LowRank(kind=adapter, r=4)  # type: ignore[arg-type]
    wish = Load(ModelName("model", "/model", True), device, "fp32", 64, True, 3, adapter=learns)
    for each, lean in ((wish, True), (replace(wish, recompute=False), False), (replace(wish, whole=False), False)):
        backend = PlainBackend()
        model = backend.adapt(adapted("llama").unload(), learns, each)
        assert (backend.lean is not None) == lean
        found = backend.recomputation(each)
        assert found["gradient_checkpointing"] == (each.recompute and not lean)
        if found["gradient_checkpointing"]:
            assert found["gradient_checkpointing_kwargs"] == {"use_reentrant": adapter == "lora8bit"}
        assert model.active_peft_config.use_rslora == (adapter == "rslora")


def test_parked_states_change_no_bit() -> None:
    import torch

    def train(*, parked: bool, resumed: bool) -> list[Any]:
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(4, 5)), torch.nn.Parameter(torch.randn(7))]
        optimizer = torch.optim.AdamW(weights, lr=0.1, fused=True)
        if parked:
            stash = Stash(on=False, arena=Arena(Budget(power(2 * 27 * 4))))
            Parking(optimizer, stash)
        for step in range(6):
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            optimizer.step()
            if resumed and step == 2:
                optimizer.load_state_dict(optimizer.state_dict())
        if parked:
            kept = [optimizer.state[weight]["exp_avg_sq"] for weight in weights]
            assert len({each.untyped_storage().data_ptr() for each in kept}) == 1
            assert stash.arena.budget.left == 0  # loaded states took the room of those before them
        return weights

    usual = train(parked=False, resumed=False)
    for resumed in (False, True):
        assert all(torch.equal(a, b) for a, b in zip(train(parked=True, resumed=resumed), usual, strict=True))


def test_states_stay_where_the_host_has_no_room() -> None:
    import torch

    weights = [torch.nn.Parameter(torch.randn(4, 5)), torch.nn.Parameter(torch.randn(7))]
    optimizer = torch.optim.AdamW(weights, lr=0.1, fused=True)
    stash = Stash(on=True, arena=Arena(Budget(power(2 * 27 * 4) - 1)))
    parking = Parking(optimizer, stash)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    kept = [optimizer.state[weight][name] for weight in weights for name in ("exp_avg", "exp_avg_sq")]
    assert len({each.untyped_storage().data_ptr() for each in kept}) == 4
    assert (parking.host, stash.arena.budget.taken) == (None, 0)


def test_a_budget_is_never_exceeded() -> None:
    budget = Budget(100)
    assert (budget.take(60), budget.take(41), budget.take(40), budget.take(1)) == (True, False, True, False)
    assert (budget.taken, budget.left) == (100, 0)
    budget.give(60)
    assert (budget.taken, budget.left) == (40, 60)
    assert not Budget(0).take(1)
    assert (Budget(10, 12).left, Budget(10, 12).take(1)) == (0, False)


def test_what_finds_no_room_stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class OnGpu:
        """A stand-in for a tensor of so many MiB."""

        is_cuda, dtype = True, torch.bfloat16

        def __init__(self, size: int) -> None:
            self.size = size * 2**20
            self.shape = (self.size // 2,)

        def numel(self) -> int:
            return self.size // 2

        def element_size(self) -> int:
            return 2

    stream = SimpleNamespace(wait_event=lambda event: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(Stash, "_send", lambda self, pairs: "sent")
    monkeypatch.setattr(Stash, "fetch", lambda self, ticket: ticket.here.__setitem__(slice(None), ticket.there))
    monkeypatch.setattr(arena, "_LEAST", 2**20)
    mib, room = 2**20, Arena(Budget(5 * 2**20))
    stash = Stash(on=True, arena=room)

    def there() -> int:
        return sum(each.top for each in room.pieces)

    first, second = stash.put([OnGpu(1), OnGpu(2)], [OnGpu(1)])
    [third] = stash.put([OnGpu(1), OnGpu(1)])
    assert [each.ready for each in (first, second, third)] == ["sent", "sent", None]
    # what stays is passed by on the way to what is wanted next
    assert stash.previous(third) is second
    assert stash.previous(second) is first
    assert stash.previous(first) is None
    assert there() == 4 * mib  # none of the third, of which half would find room
    assert [each.size for each in stash.get(third)] == [mib, mib]
    assert there() == 4 * mib  # it never was away
    assert [each.numel() for each in stash.get(first)] == [mib // 2, mib]
    del second  # a pass that failed, which nobody goes back through
    assert there() == 0
    del first  # its room was given back once
    assert there() == 0
    assert [each.ready for each in stash.put([OnGpu(1)], [OnGpu(2)], stay=True)] == ["sent", None]
    assert room.budget.taken <= 5 * mib
    monkeypatch.setattr(arena, "pinned", lambda size: None)
    taken = room.budget.taken
    assert stash.put([OnGpu(3), OnGpu(3)])[0].ready is None
    assert (room.budget.taken, there()) == (taken, 0)


def test_memory_of_the_host_is_used_again_whatever_the_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(arena, "_LEAST", 2**12)
    monkeypatch.setattr(arena, "_MOST", 2**14)
    most = 2**19
    room, taken = Arena(Budget(most)), []
    for size in (300, 1000, 77, 2500, 1024, 3):
        held = []
        for number in range(20):
            found = room.take(torch.empty(size, 2, dtype=torch.bfloat16))
            assert found is not None
            found[1].fill_(number)
            held.append(found)
        assert all(bool((tensor == at).all()) for at, (_, tensor) in enumerate(held))  # none lies over another
        assert room.left(4 * size) <= most - 20 * 4 * size
        for region, _ in reversed(held) if size % 2 else held:  # in any order
            region.give()
        assert all((each.top, each.regions) == (0, []) for each in room.pieces)
        taken.append(room.budget.taken)
    # nothing is taken once more when less is wanted
    assert taken[0] < taken[3] == taken[-1] <= 2 * 20 * 4 * 2500
    assert room.take(torch.empty(most + 1, dtype=torch.uint8)) is None
    assert room.budget.taken == taken[-1]


@pytest.mark.parametrize("seed", range(8))
def test_as_much_finds_room_as_is_said(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of three sizes in any order, the largest often over half of a piece, after others have taken pieces."""
    import torch

    monkeypatch.setattr(arena, "_LEAST", 2**12)
    monkeypatch.setattr(arena, "_MOST", 2**14)
    chance = random.Random(seed)
    room = Arena(Budget(chance.randrange(2**19, 2**21)))
    first = [room.take(torch.empty(chance.randrange(1, 3000), dtype=torch.uint8)) for _ in range(chance.randrange(60))]
    for found in first[:: chance.choice((1, 2))]:
        assert found is not None
        found[0].give()
    sizes = [512 * chance.randrange(1, count) for count in (4, 20, 60)]
    left = room.left(max(sizes))
    assert left > room.budget.most // 2
    while (size := chance.choice(sizes)) <= left:
        assert room.take(torch.empty(size, dtype=torch.uint8)) is not None
        left -= size


def test_states_have_room_whatever_a_pass_took_before() -> None:
    import torch

    weight = torch.nn.Parameter(torch.randn(1000))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    own = Stash(on=True, arena=Arena(Budget(2**15)))
    parking = Parking(optimizer, own)
    taken = []
    while (found := own.arena.take(torch.empty(512))) is not None:
        taken.append(found[0])
    for region in taken:
        region.give()  # the arena keeps what it has taken
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    assert parking.host is not None
    assert parking.host.numel() == 2000
    assert own.arena.budget.left == 0


@pytest.mark.parametrize("kept", list(Keep))
@pytest.mark.parametrize("rows", [1, 5])
def test_what_is_wanted_next_was_fetched_before(rows: int, kept: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors go away and come back as on a GPU, every one of them; nobody waits for one that nobody fetched."""
    import torch

    monkeypatch.setattr(layer, "ROWS", 64)
    model, other = adapted("llama"), adapted("llama")
    lean = install.install(other, offload=False)
    assert lean is not None
    calls, cold, whole = goes_on(monkeypatch), [], Stash.get
    lean.stash.on, lean.stash.arena = True, Arena(Budget(2**40))
    lean.hurry = sum(4 * sum(each) for each in keep.numbers(lean.made[0], 64)[: kept + 1])

    def send(self: Any, pairs: list[Any]) -> str:
        for here, there in pairs:
            there.copy_(here)
        return "sent"

    def fetch(self: Any, *tickets: Any) -> None:
        for ticket in tickets:
            for at, (here, there) in enumerate(ticket.pairs() if ticket is not None else ()):
                if here is None and there is not None:
                    ticket.here[at] = there.clone()

    def get(self: Any, ticket: Any) -> Any:
        cold.append(any(here is None for here, _ in ticket.pairs()))
        return whole(self, ticket)

    for name, part in (("_send", send), ("fetch", fetch), ("get", get)):
        monkeypatch.setattr(Stash, name, part)
    monkeypatch.setattr(arena, "_LEAST", 2**12)
    monkeypatch.setattr(stash, "goes", lambda tensor: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(wait_event=lambda event: None))
    compare(model, other, {name: value[:rows] for name, value in batch("full").items()})
    slices = 3 * (3 if rows == 5 else 1)
    assert len(calls) == (0 if kept is Keep.INPUT else slices)
    assert len(cold) == slices * (1 if kept is Keep.INPUT else 3)
    # the last layer's input goes, and is wanted first where it is all that is kept
    assert cold.count(True) == (1 if kept is Keep.INPUT else 0)
    assert all((each.top, each.regions) == (0, []) for each in lean.stash.arena.pieces)


def test_nothing_waits_between_what_was_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    own, left = Stash(on=False), []
    monkeypatch.setattr(Stash, "settle", lambda self: left.append(1))
    one = torch.ones(2)
    rest, middle = own.put([one], [one])
    [last] = own.put([one], stay=True)
    assert len(left) == 2
    # each knows the one before it, so that it can be fetched ahead
    assert last.before() is middle
    assert middle.before() is rest
    own.get(last)
    assert len(left) == 3


def test_the_processes_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, **_: {"meminfo": "MemAvailable: 8000 kB"}.get(self.name, "max"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = host_budget()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert (alone, host_budget()) == (8000 * 1024 // 2, 8000 * 1024 // 16)


def test_without_host_memory_nothing_is_put_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, on in ((0, False), (2**20, True)):
        monkeypatch.setattr(install, "host_budget", lambda free=free: free)
        lean = install.install(adapted("llama"), offload=True)
        assert lean is not None
        assert lean.stash.on == on
        assert ("waits" in lean.told) == on


def test_without_learning_the_model_is_as_it_was() -> None:
    import torch

    model, other = adapted("llama"), adapted("llama")
    assert install.install(other, offload=False)
    rows = batch("right") | {"labels": None}
    for each in (model, other):
        each.eval()
    with torch.no_grad():
        assert torch.equal(model(**rows).logits, other(**rows).logits)
    one = batch("full")["input_ids"][:1, :5]
    wish = {"max_new_tokens": 6, "do_sample": False, "use_cache": True}
    assert torch.equal(model.generate(input_ids=one, **wish), other.generate(input_ids=one, **wish))
    other.train()
    with other.disable_adapter(), torch.no_grad():
        plain = other(**rows).logits
    with model.disable_adapter(), torch.no_grad():
        assert torch.equal(model.train()(**rows).logits, plain)


def test_what_is_not_as_usual_is_left_alone() -> None:
    from peft import LoraConfig, get_peft_model

    assert not install.install(adapted("gemma3_text"), offload=False)
    assert not install.install(adapted("mistral", sliding_window=8), offload=False)
    assert not install.install(adapted("llama", hidden_act="gelu"), offload=False)
    base = adapted("llama").unload()
    for more in ({"lora_dropout": 0.1}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}):
        other = get_peft_model(adapted("llama").unload(), LoraConfig(r=4, target_modules="all-linear", **more))
        assert bool(install.install(other, offload=False)) == ("modules_to_save" in more), more
    assert not install.install(base, offload=False)


def test_the_workspace_does_not_grow_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(layer, "ROWS", 128)
    monkeypatch.setattr(layer, "TOKENS", 64)
    keys = {"intermediate_size": 512}

    def peak(rows: int, *, lean: bool) -> int:
        model = adapted("llama", **keys)
        if lean:
            assert install.install(model, offload=False)
        else:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": False})
        ids = torch.ones(rows, 64, dtype=torch.long)
        with Live([*model.parameters(), *model.buffers()]) as live:
            model.get_base_model().model(input_ids=ids)[0].sum().backward()
        return live.peak

    hidden = 64 * 64 * 4  # bytes of one row's hidden states
    lean, usual = (peak(16, lean=lean) - peak(4, lean=lean) for lean in (True, False))
    # three layers' inputs, the gradient on its way, and the norm's
    assert lean <= 12 * hidden * 9
    assert usual >= 2.5 * lean


@pytest.mark.parametrize(
    ("hip", "facts", "unified"),
    [
        (None, {"name": "NVIDIA GB10", "is_integrated": 1}, True),
        (None, {"name": "NVIDIA H200", "is_integrated": 0}, False),
        ("7.2", {"name": "Radeon 8060S", "is_integrated": 0, "gcnArchName": "gfx1151"}, True),
        ("7.2", {"name": "AMD Instinct", "is_integrated": 0, "gcnArchName": "gfx942:sramecc+"}, False),
    ],
)
def test_memory_that_the_gpu_and_the_system_share_is_known_on_any_make(
    hip: str | None, facts: dict[str, Any], unified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from strix_train import device

    gpu = SimpleNamespace(total_memory=2**37, **facts)
    monkeypatch.setattr(torch.version, "hip", hip)
    for name, value in (("is_available", True), ("device_count", 1), ("set_device", None), ("is_bf16_supported", True)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    found = device.find()
    assert (found.kind, found.unified) == ("rocm" if hip else "cuda", unified)
