"""The guard: what stops a run, and what does not."""

from __future__ import annotations

import math
import random

import pytest

from strix_train.guard import Guard, Verdict


def run(guard: Guard, losses: list[float], norm: float = 1.0) -> Verdict | None:
    """Feed losses from step 1 on, up to a verdict."""
    for step, loss in enumerate(losses, start=1):
        verdict = guard.look(step, loss, norm)
        if verdict:
            return verdict
    return None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_at_once(value: float) -> None:
    verdict = run(Guard(), [2.0, 1.9, value])
    assert verdict == Verdict(3, f"the loss became {value} at step 3", 2)
    assert run(Guard(factor=0), [value]) == Verdict(1, f"the loss became {value} at step 1", 0)


def test_so_does_a_gradient() -> None:
    verdict = Guard().look(7, 2.0, math.nan)
    assert verdict == Verdict(7, "the gradient became nan at step 7", 6)


def test_fp16_may_leave_steps_out_but_not_for_ever() -> None:
    guard = Guard()
    for step in range(1, 20):
        assert guard.look(step, 2.0, math.inf, left_out=True) is None
    assert guard.look(20, 2.0, 1.0) is None
    for step in range(21, 40):
        assert guard.look(step, 2.0, math.inf, left_out=True) is None
    verdict = guard.look(40, 2.0, math.inf, left_out=True)
    assert verdict == Verdict(40, "the gradient did not fit into fp16 for 20 steps up to step 40", 20)


def test_a_run_that_diverges_stops_before_the_spike() -> None:
    verdict = run(Guard(), [2.0] * 30 + [3.0, 9.0, 9.5, 8.0, 9.0, 8.5])
    assert verdict is not None
    assert (verdict.step, verdict.good) == (36, 31)
    assert verdict.what == ("the loss has been above 4.00 since step 32: it is 8.5 at step 36, and 2 was usual before")


def test_a_hard_batch_is_no_spike() -> None:
    assert run(Guard(), ([2.0] * 20 + [9.0] * 4) * 5) is None


def test_near_zero_a_multiple_means_nothing() -> None:
    assert run(Guard(), [0.01] * 30 + [0.9] * 20) is None
    assert run(Guard(), [0.01] * 30 + [1.1] * 20) is not None


def test_of_a_high_loss_four_more_are_enough() -> None:
    assert run(Guard(factor=3.0), [3.5] * 30 + [7.4] * 5) is None
    assert run(Guard(factor=3.0), [3.5] * 30 + [7.6] * 5) is not None


def test_a_loss_that_falls_or_is_noisy_goes_on() -> None:
    chance = random.Random(5)
    assert run(Guard(), [8 * math.exp(-step / 30) + chance.expovariate(2.0) for step in range(1000)]) is None


def test_zero_looks_for_numbers_only() -> None:
    assert run(Guard(factor=0), [1.0] * 50 + [1e6] * 50) is None


def test_what_is_suspicious_is_known_while_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard()
    run(guard, [2.0] * 20)
    assert guard.suspicious_since is None
    guard.look(21, 9.0, 1.0)
    guard.look(22, 9.0, 1.0)
    assert guard.suspicious_since == 21
    assert guard.look(23, math.nan, 1.0) == Verdict(23, "the loss became nan at step 23", 20)
    guard.look(23, 2.0, 1.0)
    assert guard.suspicious_since is None


def test_a_resumed_run_stops_where_the_whole_one_would_have() -> None:
    losses = [2.0] * 30 + [9.0] * 5
    whole = run(Guard(), losses)
    resumed = Guard()
    resumed.remember(list(enumerate(losses, start=1))[:33])
    found = next(
        verdict for step, loss in list(enumerate(losses, start=1))[33:] if (verdict := resumed.look(step, loss, 1.0))
    )
    assert found == whole
