"""What transformers' trainer does for each pass is done once, with the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from leanly import adapted, batch

from strix_train.backends.again import counted, remember


def test_weights_are_counted_once_and_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from transformers import PreTrainedModel, Trainer, TrainingArguments

    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    usual, ours = Trainer(model=adapted("llama"), args=args), counted(Trainer)(model=adapted("llama"), args=args)
    asked, plain = [], PreTrainedModel.num_parameters

    def num_parameters(*parts: Any, **keys: Any) -> Any:
        asked.append(keys)
        return plain(*parts, **keys)

    wanted = [usual.floating_point_ops(batch(how)) for how in ("full", "right")]
    assert min(wanted) > 6 * 150 * 1000
    monkeypatch.setattr(PreTrainedModel, "num_parameters", num_parameters)
    found = [ours.floating_point_ops(batch(how)) for how in ("full", "right")]
    assert found == wanted
    assert len(asked) == 1
    assert ours.floating_point_ops({"pixels": 1}) == usual.floating_point_ops({"pixels": 1})


def test_a_model_that_trains_already_is_left_alone() -> None:
    model = adapted("llama")
    text = model.get_base_model().model
    walked, plain = [], type(text).train
    remember(model, model.get_base_model(), text, text.layers[-1])

    def train(mode: bool = True) -> Any:
        walked.append(mode)
        return plain(text, mode)

    text.train = train
    assert model.train() is model
    assert walked == []
    model.eval()
    assert walked == [False]
    assert not any(each.training for each in model.modules())
    model.eval()
    assert walked == [False]
    model.train()
    assert walked == [False, True]
    # a part that was turned by itself is turned back
    text.layers[-1].eval()
    model.train()
    assert all(each.training for each in model.modules())
