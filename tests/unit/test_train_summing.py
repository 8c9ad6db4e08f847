"""The number format of several processes on CPUs, whatever gloo this torch has."""

from __future__ import annotations

import pytest

from strix_train.distributed import summing
from strix_train.errors import InputError


@pytest.mark.parametrize(
    ("sends", "precision", "wanted", "taken"),
    [
        (True, "bf16", "auto", "bf16"),
        (True, "bf16", "bf16", "bf16"),
        (False, "bf16", "auto", "fp32"),
        (False, "fp32", "auto", "fp32"),
        (False, "fp32", "fp32", "fp32"),
    ],
)
def test_what_cannot_be_sent_is_not_taken(
    sends: bool, precision: str, wanted: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summing, "sends_narrow", lambda: sends)
    assert summing.by_gloo(precision, wanted) == taken  # type: ignore[arg-type]


def test_who_insists_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summing, "sends_narrow", lambda: False)
    with pytest.raises(InputError, match="sends no bf16 between processes; write precision: auto, or fp32"):
        summing.by_gloo("bf16", "bf16")
