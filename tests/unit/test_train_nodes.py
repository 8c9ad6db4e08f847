"""`train estimate --nodes --link`: time of a step on several machines, held against what others measured."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from bench import cluster_tables

from strix_train.__main__ import main
from strix_train.estimate import configs, links, machines, nodes, shapes, sharing, steps
from strix_train.estimate.links import Link
from strix_train.estimate.memory import Wish
from strix_train.estimate.sharing import Traffic
from strix_train.recipe.load import load
from strix_train.recipe.schema import Strategy

ROOT = Path(__file__).resolve().parents[2]
EIGHT = shapes.of_config(configs.known()["unsloth/Meta-Llama-3.1-8B"])
HALO, H200 = machines.named("strix-halo"), machines.named("h200")
WIRE = Link("8 Gbit/s", 8, 0)


def told(capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, str]:
    code = main(["estimate", *shlex.split(words)])
    found = capsys.readouterr()
    return code, found.out + found.err


def test_what_is_sent_once_hides_beside_the_last_backward_pass() -> None:
    # 1 GB at 1 GB/s; each of two passes computes 3 s, of which 2 s are backward
    found = steps.step(6, 1 / 3, 2, Traffic(once=1e9), 2, WIRE, overlap=1)
    assert found.sending == pytest.approx(1)
    assert found.seconds == pytest.approx(6)
    assert steps.step(6, 1 / 3, 2, Traffic(once=3e9), 2, WIRE, overlap=1).seconds == pytest.approx(7)
    assert steps.step(6, 1 / 3, 2, Traffic(once=1e9), 2, WIRE, overlap=0).seconds == pytest.approx(7)


def test_what_is_sent_in_each_pass_is_waited_for_in_each() -> None:
    sent = Traffic(forward=2e9, backward=3e9)
    found = steps.step(6, 1 / 3, 2, sent, 2, WIRE, overlap=1)
    assert found.seconds == pytest.approx(2 * (2 + 3))
    assert found.efficiency == pytest.approx(0.6)
    assert steps.step(6, 1 / 3, 2, sent, 2, WIRE, overlap=0).seconds == pytest.approx(2 * (3 + 5))


def test_round_trips_are_paid_by_message_and_hop() -> None:
    slow = Link("slow", 8, 1000)
    found = steps.step(1, 0.5, 1, Traffic(once=0, messages=(0, 0, 10)), 5, slow, overlap=0)
    assert found.sending == pytest.approx(10 * (4 * 0.0005 + 30e-6))


def test_more_accumulation_hides_ddp_and_cannot_hide_fsdp() -> None:
    wish, link = Wish(EIGHT, accumulation=1), links.named("2.5gbe")
    few = steps.enough(wish, H200, "ddp", 2, link)
    assert few
    assert few > 1
    found = steps.of(replace(wish, accumulation=few), H200, "ddp", 2, link)
    less = steps.of(replace(wish, accumulation=few - 1), H200, "ddp", 2, link)
    assert found
    assert less
    assert less.efficiency < steps.GOOD <= found.efficiency
    assert steps.enough(wish, H200, "fsdp", 2, link) is None
    assert steps.of(wish, machines.named("24GiB"), "ddp", 2, link) is None


@pytest.mark.parametrize("how", ["ddp", "fsdp", "zero2", "zero3"])
def test_a_faster_link_is_never_slower_and_no_step_beats_the_ideal(how: sharing.Sharing) -> None:
    wish = Wish(EIGHT, adapter="full", rank=0)
    seconds = []
    for gbit in (1, 2.5, 10, 25, 100):
        found = steps.of(wish, HALO, how, 4, Link("", gbit, 60))
        assert found
        assert 0 < found.efficiency <= 1
        seconds.append(found.seconds)
    assert seconds == sorted(seconds, reverse=True)


def test_the_command_shows_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "llama3.1-8b-lora --device strix-halo --nodes 2 --link 10gbe")
    assert code == 0
    assert "2 machines with one device each over 10gbe (9.4 Gbit/s, 60 us" in text
    assert "ddp *" in text
    assert "strategy   ddp: all fits on each device" in text
    code, text = told(capsys, "llama3.1-8b-lora --device strix-halo --nodes 2")
    assert code == 0
    assert "of the ideal" not in text
    assert "sent a step" in text


def test_nodes_make_fit_what_one_machine_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    words = "llama3.1-8b-lora --device strix-halo --set adapter=full"
    assert told(capsys, words)[0] == 1
    code, text = told(capsys, f"{words} --nodes 2 --link 48:14 --json")
    assert code == 0
    found = json.loads(text)["nodes"]
    assert found["strategy"] == "fsdp"
    assert found["link"]["gbit"] == 48
    assert found["ways"]["fsdp"]["fits"]
    assert not found["ways"]["ddp"]["fits"]
    assert found["ways"]["fsdp"]["seconds"] > found["ways"]["fsdp"]["sending"] > 0
    code, text = told(capsys, "llama3.1-8b-lora --device strix-halo-64 --set adapter=full --nodes 2 --link roce")
    assert code == 1
    assert "even when all that can be shared is" in text
    assert "it would fit with" in text


def test_a_link_needs_two_ends(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "llama3.1-8b-lora --device strix-halo --link 10gbe")
    assert code == 2
    assert "a link is between machines, and there is one; give --nodes 2 as well" in text
    code, text = told(capsys, "llama3.1-8b-lora --device strix-halo --nodes 2 --link 10gb")
    assert code == 2
    assert "there is no link '10gb'" in text


def test_the_published_step_is_met() -> None:
    """Over Ethernet sending decides, whatever is computed; 126 s lie between passes of 512 and of 2048 tokens."""
    few, many = (cluster_tables.published(rows) for rows in cluster_tables.PASS_ROWS)
    slow, fast = cluster_tables.PUBLISHED.values()
    for found in (few, many):
        assert found["2.5gbe"] == pytest.approx(slow, rel=0.1)
    assert few["thunderbolt-ibverbs"] < fast < many["thunderbolt-ibverbs"]
    assert few["2.5gbe"] / few["thunderbolt-ibverbs"] > slow / fast > many["2.5gbe"] / many["thunderbolt-ibverbs"]


def test_the_page_has_the_tables_of_now() -> None:
    """Where this fails, run `python -m bench cluster-tables`."""
    page = cluster_tables.PAGE.read_text(encoding="utf-8")
    assert cluster_tables.text() in page
    assert cluster_tables.written(page, cluster_tables.BEGIN, cluster_tables.text()) == page


def test_a_run_of_several_processes_tells_what_each_takes() -> None:
    recipe = load(ROOT / "recipes/llama3.1-8b-lora.yaml", ["backend=hf"]).recipe
    link = links.named("10gbe")
    fits, text = nodes.before(recipe, EIGHT, HALO, 2, room=HALO.usable, link=link, backend="hf", longest=None)
    assert fits
    assert "for each of 2 processes (ddp), about " in text
    shared = recipe.model_copy(update={"strategy": Strategy(kind="deepspeed", stage=2)})
    fits, text = nodes.before(shared, EIGHT, HALO, 2, room=HALO.usable, link=None, backend="hf", longest=None)
    assert fits
    assert text.endswith("for each of 2 processes (zero2)")
    asked = recipe.model_copy(update={"strategy": Strategy(kind="fsdp")})
    fits, text = nodes.before(asked, EIGHT, HALO, 2, room=HALO.usable, link=None, backend="hf", longest=None)
    assert fits
    assert "for each of 2 processes (fsdp" in text
    fits, text = nodes.before(recipe, EIGHT, HALO, 2, room=8 * 2**30, link=link, backend="hf", longest=None)
    assert not fits
    assert "it would fit with " in text
