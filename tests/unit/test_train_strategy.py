"""`strategy: auto`: what fits decides, then what is sent; and every cure that is named has been estimated."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from strix_train.errors import InputError
from strix_train.estimate import advice, configs, links, machines, memory, shapes, sharing, strategy
from strix_train.estimate.memory import GIB, Wish
from strix_train.recipe.load import load

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
EIGHT = shapes.of_config(configs.known()["unsloth/Meta-Llama-3.1-8B"])
TWENTY_SEVEN = shapes.of_config(configs.known()["unsloth/gemma-3-27b-it"])
HALO, SMALL = machines.named("strix-halo"), machines.named("strix-halo-64")
TEN = links.named("10gbe")


def test_what_fits_whole_is_not_shared() -> None:
    found = strategy.choose(Wish(EIGHT), HALO, 2, link=TEN)
    assert found.strategy == "ddp"
    assert "a step sends only 168 MB, the adapter's gradients" in found.reason
    assert found.needed <= HALO.usable
    assert not found.cure


def test_what_does_not_is_shared_where_that_is_enough() -> None:
    wish = Wish(TWENTY_SEVEN, rows=1)
    assert advice.estimate(wish, SMALL).needed > SMALL.usable
    found = strategy.choose(wish, SMALL, 2, link=TEN)
    assert found.strategy == "fsdp"
    assert found.needed <= SMALL.usable
    assert "gathered twice" in found.reason


def test_a_smaller_batch_under_ddp_is_better_than_sharing_and_is_told() -> None:
    wish = Wish(EIGHT, rows=4, accumulation=1)
    small = replace(wish, rows=2, accumulation=2)
    room = advice.needed(sharing.parts(small, "ddp", 2), HALO)
    found = strategy.choose(wish, HALO, 2, memory=room)
    assert found.strategy == "fsdp"
    assert (
        found.cure == "with schedule.batch=2 schedule.accumulation=2 all would fit on each device, and ddp sends less"
    )
    assert strategy.choose(small, HALO, 2, memory=room).strategy == "ddp"


def test_nothing_fits_and_each_cure_does() -> None:
    wish = Wish(EIGHT, adapter="full", rank=0)
    found = strategy.choose(wish, SMALL, 2)
    assert found.strategy is None
    named = re.search(r"it would fit with (\d+) devices, or adapter=lora", found.cure)
    assert named
    enough = int(named[1])
    assert strategy.choose(wish, SMALL, enough).strategy == "fsdp"
    assert strategy.choose(wish, SMALL, enough - 1).strategy is None
    assert strategy.choose(replace(wish, adapter="lora", rank=16), SMALL, 2).strategy == "ddp"


def test_weights_are_kept_where_only_the_optimizer_has_no_room() -> None:
    wish = Wish(EIGHT, adapter="full", rank=0)
    needs = {how: advice.needed(sharing.parts(wish, how, 2), HALO) for how in sharing.FSDP}
    assert needs["fsdp"] < needs["kept"] < needs["quiet"] < advice.needed(sharing.parts(wish, "ddp", 2), HALO)
    sent = [sharing.traffic(wish, how, 2).step(4) for how in sharing.FSDP]
    assert sent == sorted(sent, reverse=True)
    found = [strategy.choose(wish, HALO, 2, memory=int(need * 1.06), link=TEN) for need in needs.values()]
    assert [each.strategy for each in found] == ["fsdp"] * 3
    assert [(each.keep_weights, each.keep_gradients) for each in found] == [(False, False), (True, False), (True, True)]
    assert [each.needed for each in found] == [*needs.values()]
    without = strategy.choose(wish, HALO, 2, barred={"kept": "not here"})
    assert (without.strategy, without.keep_weights) == ("fsdp", False)
    once = strategy.choose(replace(wish, accumulation=1), HALO, 2, memory=int(needs["quiet"] * 1.06))
    assert (once.keep_weights, once.keep_gradients) == (True, False)


def test_what_cannot_be_taken_is_not_taken() -> None:
    barred = {"fsdp": "4-bit weights are not shared by this backend"}
    found = strategy.choose(Wish(EIGHT, adapter="full", rank=0), HALO, 2, barred=barred)
    assert found.strategy is None
    assert found.reason.endswith("and it cannot be shared: 4-bit weights are not shared by this backend")
    other = strategy.choose(Wish(EIGHT), HALO, 2, barred={"ddp": "ddp was switched off"})
    assert other.strategy == "fsdp"
    assert other.reason.startswith("fsdp: ddp was switched off, shared among 2")


def test_one_process_is_none_and_a_slow_link_wants_accumulation() -> None:
    assert strategy.choose(Wish(EIGHT), HALO, 1).strategy == "none"
    found = strategy.choose(Wish(EIGHT), machines.named("h200"), 2, link=links.named("1gbe"))
    assert found.strategy == "ddp"
    number = int(found.cure.split("=")[1].split()[0])
    assert number > 4
    again = strategy.choose(Wish(EIGHT, accumulation=number), machines.named("h200"), 2, link=links.named("1gbe"))
    assert not again.cure


def test_a_recipe_is_chosen_for() -> None:
    recipe = load(RECIPES / "llama3.1-8b-lora.yaml").recipe
    assert strategy.for_recipe(recipe, EIGHT, HALO, 2, link=TEN).strategy == "ddp"
    assert strategy.for_recipe(recipe, EIGHT, HALO, 2, memory=14 * GIB).strategy == "fsdp"


def test_what_needs_whole_weights_is_not_shared_in_pieces() -> None:
    for name, room in (("llama3.1-8b-dpo", 14), ("llama3.1-8b-lora", 14)):
        recipe = load(RECIPES / f"{name}.yaml", ["backend=unsloth"] if name.endswith("lora") else []).recipe
        found = strategy.for_recipe(recipe, EIGHT, HALO, 2, memory=room * GIB)
        assert found.strategy is None
        assert "and it cannot be shared: " in found.reason
    wish = Wish(EIGHT, backend="unsloth", offload=True)
    assert sharing.parts(wish, "fsdp", 2) == sharing.parts(replace(wish, backend="hf", offload=False), "fsdp", 2)


def test_with_fsdp_what_lean_layers_keep_moves_away_and_the_optimizer_stays() -> None:
    wish = Wish(EIGHT, backend="hf", offload=True, lean=True)
    assert sharing.shared(wish, "kept") == replace(wish, parks=False)
    assert not sharing.shared(wish, "zero3").offload
    states = 2 * wish.trainable * 4
    alone, pieces = memory.parts(wish), memory.parts(replace(wish, parks=False))
    assert alone.offloaded - pieces.offloaded == states
    assert 0 < pieces.total - alone.total <= states


def test_buckets_of_ddp_take_room_once() -> None:
    for accumulation in (1, 4):
        wish = Wish(EIGHT, accumulation=accumulation)
        alone, shared = memory.parts(wish), sharing.parts(wish, "ddp", 2)
        learns = wish.trainable * 4
        beside = learns if accumulation > 1 else learns - alone.gradients
        assert shared.total - alone.total == beside


@pytest.mark.parametrize("adapter", ["lora", "full", "qlora"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_shares_get_smaller_with_every_rank(adapter: str, accumulation: int) -> None:
    wish = Wish(EIGHT, adapter=adapter, rank=0 if adapter == "full" else 16, accumulation=accumulation)
    totals = [sharing.parts(wish, "fsdp", ranks).total for ranks in (2, 4, 8)]
    assert totals == sorted(totals, reverse=True)
    assert sharing.parts(wish, "ddp", 2).total >= memory.parts(wish).total
    four = sharing.parts(wish, "fsdp", 4)
    assert four.weights == -(-memory.parts(wish).weights // 4)
    assert four.activations >= memory.parts(wish).activations * 0.99 or adapter == "full"


def test_deepspeed_holds_a_copy_in_32_bits_among_the_ranks() -> None:
    wish = Wish(EIGHT, adapter="full", rank=0)
    two, three = sharing.parts(wish, "zero2", 4), sharing.parts(wish, "zero3", 4)
    assert two.weights == EIGHT.weights * 2
    assert three.weights == EIGHT.weights * 2 // 4
    assert two.optimizer == three.optimizer == EIGHT.weights * 12 // 4


def test_bytes_are_those_of_a_ring() -> None:
    wish = Wish(EIGHT)
    learns = wish.trainable * 4
    assert sharing.traffic(wish, "ddp", 2).step(4) == learns
    assert sharing.traffic(wish, "ddp", 4).step(4) == pytest.approx(1.5 * learns)
    found = sharing.traffic(wish, "fsdp", 2)
    # half of the weights in 16 bits, and of what is outside of layers only once
    outer = 2 * EIGHT.head * 2
    assert found.forward == pytest.approx((EIGHT.weights * 2 + wish.trainable * 4) / 2, rel=1e-4)
    assert found.backward == pytest.approx(found.forward - outer / 2 + learns / 2, rel=1e-4)
    assert sharing.traffic(wish, "none", 1).step(4) == 0


def test_links_by_name_as_given_and_as_measured() -> None:
    assert links.named("Thunderbolt").gbit == 9.5
    assert links.named("9.4:60") == links.Link("9.4 Gbit/s", 9.4, 60.0, "as given")
    with pytest.raises(InputError, match="there is no link '10gb'"):
        links.named("10gb")
    found = links.measured({"STRIX_LINK_GBIT": "9.1", "STRIX_LINK_US": "71"})
    assert found
    assert (found.gbit, found.round_trip) == (9.1, 71)
    assert links.measured({}) is None
    assert links.measured({"STRIX_LINK_GBIT": "inf"}) is None
    assert links.measured({"STRIX_LINK_GBIT": "fast"}) is None


def test_the_choice_loads_no_torch() -> None:
    program = (
        "import sys, strix_train.estimate.strategy; sys.exit(any(m in sys.modules for m in ('torch', 'datasets')))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
