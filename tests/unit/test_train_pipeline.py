"""The cost model of a pipeline: hand-computed steps, what a cut holds and sends, and the page's table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench import cluster_tables, pipeline_tables

from strix_train.estimate import configs, links, machines, memory, pipeline, shapes, speed
from strix_train.estimate.links import Link
from strix_train.estimate.memory import Wish

EIGHT = shapes.of_config(configs.known()["unsloth/Meta-Llama-3.1-8B"])
HALO = machines.named("strix-halo")
WIRE = Link("8 Gbit/s", 8, 0)


def test_a_step_by_hand() -> None:
    # 4 stages of 3 s: 7 slots of 4 microbatches, 3 of which are the bubble
    assert pipeline.seconds([3.0] * 4, 4, 0) == pytest.approx(7 * 3)
    assert pipeline.bubble(4, 4) == pytest.approx(3 / 7)
    # each slot waits for both directions
    assert pipeline.seconds([3.0] * 4, 4, 0.5) == pytest.approx(7 * (3 + 1))
    # the slowest sets the pace
    assert pipeline.seconds([1.0, 2.0], 3, 0) == pytest.approx(1 + 2 + 2 * 2)
    assert pipeline.seconds([3.0], 4, 0) == pytest.approx(12)


def test_what_is_sent_is_activations_there_and_gradients_back() -> None:
    wish = Wish(EIGHT, rows=2, length=2048)
    assert pipeline.border(wish) == 2 * 2048 * 4096 * 2
    found = pipeline.of(wish, HALO, 4, WIRE, microbatches=16)
    assert found.sent == 2 * 16 * pipeline.border(wish)
    assert pipeline.of(wish, HALO, 2, WIRE, microbatches=16).sent == 16 * pipeline.border(wish)
    assert found.step
    # 16 times there and back at 1 GB/s, and what starting each takes
    assert found.step.sending == pytest.approx(32 * pipeline.border(wish) / 1e9, rel=0.01)


def test_stages_have_all_weights_once_and_all_work() -> None:
    wish = Wish(EIGHT)
    found = pipeline.of(wish, HALO, 4, WIRE)
    parts = pipeline._parts(wish, found.cut)
    assert sum(found.cut) == EIGHT.layers
    # the norm at the end is counted with every stage
    assert sum(part.shape.weights for part in parts) == EIGHT.weights + 3 * EIGHT.hidden
    assert sum(part.trainable for part in parts) == wish.trainable
    times = [speed.of(part, HALO) for part in parts]
    whole = speed.of(replace(wish, accumulation=1), HALO)
    assert whole
    assert sum(each.seconds for each in times if each) == pytest.approx(whole.seconds, rel=0.02)


def test_the_output_layer_costs_its_stage_layers() -> None:
    cut = pipeline.cut(Wish(EIGHT), HALO, 4)
    assert cut[-1] < min(cut[:-1])
    times = [pipeline._pass(part, HALO) for part in pipeline._parts(Wish(EIGHT), cut)]
    even = [pipeline._pass(part, HALO) for part in pipeline._parts(Wish(EIGHT), (8, 8, 8, 8))]
    assert max(times) <= max(even)
    # nothing is known about how quick it is: layers alone are counted
    assert sorted(pipeline.cut(Wish(EIGHT), machines.named("24GiB"), 5)) == [6, 6, 6, 7, 7]
    assert pipeline.of(Wish(EIGHT), machines.named("24GiB"), 4, WIRE).step is None


def test_the_first_machine_keeps_as_many_microbatches_as_there_are_stages() -> None:
    wish = Wish(EIGHT)
    one, several = (pipeline.of(wish, HALO, 4, WIRE, microbatches=count).needed for count in (1, 64))
    [first, *_] = pipeline._parts(wish, pipeline.cut(wish, HALO, 4))
    assert several - one == pytest.approx(3 * memory.kept(first), rel=0.2)
    assert pipeline.of(wish, HALO, 8, WIRE).needed < several


def test_more_microbatches_are_nearer_to_the_ideal_and_no_step_beats_it() -> None:
    shares = []
    for count in (4, 8, 16, 64):
        step = pipeline.of(Wish(EIGHT), HALO, 4, links.named("2.5gbe"), microbatches=count).step
        assert step
        assert step.efficiency < 1 - pipeline.bubble(4, count)
        shares.append(step.efficiency)
    assert shares == sorted(shares)


@pytest.mark.parametrize("stages", [0, 33])
def test_layers_that_cannot_be_cut(stages: int) -> None:
    with pytest.raises(ValueError, match=f"32 layers of 1 kinds cannot be cut for {stages} machines"):
        pipeline.cut(Wish(EIGHT), HALO, stages)


def test_the_page_has_the_table_of_now() -> None:
    """Where this fails, run `python -m bench pipeline-tables`."""
    page = cluster_tables.PAGE.read_text(encoding="utf-8")
    assert pipeline_tables.text() in page
    assert cluster_tables.written(page, pipeline_tables.BEGIN, pipeline_tables.text()) == page
