"""Parts that need torch and no run: the proof before the first step, padding, a real tokenizer, the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
from workshop import Workshop

from strix_train.errors import InputError, Place, TrainError


def proof(responses_only: bool = True) -> Any:
    from strix_train.batches import Proof

    return Proof(responses_only, lambda ids: " ".join(map(str, ids)))


def batch(ids: list[list[int]], labels: list[list[int]]) -> dict[str, Any]:
    from strix_train.batches import Collator

    return Collator(0)([{"input_ids": row, "labels": mask} for row, mask in zip(ids, labels, strict=True)])


def test_rows_are_padded_where_nothing_is_learned_or_seen() -> None:
    made = batch([[5, 6, 7], [8]], [[-100, 6, 7], [8]])
    assert made["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert made["labels"].tolist() == [[-100, 6, 7], [8, -100, -100]]
    assert made["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_a_right_batch_is_described() -> None:
    seen = proof()
    seen.look(batch([[5, 6, 7], [8, 9]], [[-100, 6, 7], [-100, 9]]))
    assert seen.found == {"rows": 2, "tokens": 5, "learned_tokens": 3, "learned_text_of_row_1": "6 7"}
    seen.look(batch([[1]], [[1]]))
    assert seen.take_tokens() == 6
    assert seen.take_tokens() == 0


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([[-100, -100, -100], [-100, -100]], "every label of the first batch is masked, so nothing would be learned"),
        ([[-100, 6, 7], [-100, -100]], "row 2 of the first batch has no label"),
        ([[5, 6, 7], [-100, 9]], "row 1 of the first batch has no masked prompt although responses_only is on"),
        ([[-100, 7, 7], [-100, 9]], "labels and tokens of the first batch disagree"),
    ],
)
def test_a_wrong_batch_stops_the_run(labels: list[list[int]], sentence: str) -> None:
    with pytest.raises(TrainError, match=sentence):
        proof().look(batch([[5, 6, 7], [8, 9]], labels))


def test_without_labels_nothing_starts() -> None:
    made = batch([[5, 6]], [[-100, 6]])
    del made["labels"]
    with pytest.raises(TrainError, match="without labels"):
        proof().look(made)
    proof(responses_only=False).look(batch([[5, 6]], [[5, 6]]))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_real_tokenizers_mask_all_but_the_answers(workshop: Workshop, family: str) -> None:
    from transformers import AutoTokenizer

    from strix_train.data.rows import Conversation, Turn
    from strix_train.encode import IGNORED, encoder
    from strix_train.tokenizer import Adapted

    tokenizer = AutoTokenizer.from_pretrained(workshop.path / "models" / family)
    end = "<end_of_turn>" if family == "gemma3" else "<|im_end|>"
    encode = encoder(Adapted(tokenizer), template="auto", responses_only=True, max_length=999)
    answers = ("Grün 😀, naïve — ok.", "seven\n\neleven  ", "日本")
    turns = []
    for index, answer in enumerate(answers):
        turns += [Turn("user", f"question {index} 😀?", False), Turn("assistant", answer, True)]
    row = encode(Conversation(tuple(turns), Place("d", 1)))
    parts, current = [], []
    for label in [*row.labels, IGNORED]:
        if label != IGNORED:
            current.append(label)
        elif current:
            parts.append(tokenizer.decode(current))
            current = []
    kept = [answer.strip() if family == "gemma3" else answer for answer in answers]
    assert parts == [answer + end for answer in kept]
    whole = tokenizer.apply_chat_template([{"role": t.role, "content": t.content} for t in turns], tokenize=False)
    assert row.ids == tokenizer(whole, add_special_tokens=False)["input_ids"]


def test_the_device_and_its_number_formats() -> None:
    from strix_train import device as devices

    found = devices.find()
    assert found.kind in ("cpu", "cuda", "rocm")
    line = devices.banner(found)
    assert line.startswith("strix-train ")
    assert "torch 2." in line
    cpu = devices.Device("cpu", "cpu", "x", "y", 1, False, False)
    assert devices.precision("auto", cpu) == "fp32"
    assert devices.precision("bf16", cpu) == "bf16"
    gpu = devices.Device("cuda:0", "rocm", "x", "y", 1, True, True)
    assert devices.precision("auto", gpu) == "bf16"
    assert devices.precision("fp16", gpu) == "fp16"
    with pytest.raises(InputError, match="fp16 cannot be trained on a CPU"):
        devices.precision("fp16", cpu)


def test_the_images_notice_is_in_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from strix_train import device as devices

    monkeypatch.setenv("STRIX_CHANNEL_NOTICE", "Debian's CPU build of torch: no GPU will be used")
    cpu = devices.Device("cpu", "cpu", "x", "y", 1, False, False)
    assert devices.banner(cpu).endswith("· CPU (Debian's CPU build of torch: no GPU will be used)")
    gpu = devices.Device("cuda:0", "rocm", "Radeon 8060S (gfx1151)", "ROCm 10.0", 1, True, True)
    assert "Radeon 8060S (gfx1151), ROCm 10.0" in devices.banner(gpu)


def test_a_curve_is_drawn_of_finite_numbers_only(tmp_path: Path) -> None:
    from strix_train.plot import loss_curve

    metrics = tmp_path / "metrics.jsonl"
    assert not loss_curve(metrics, tmp_path / "loss.png", "t")
    metrics.write_text('{"step": 1, "loss": "nan", "grad_norm": 1.0}\n')
    assert not loss_curve(metrics, tmp_path / "loss.png", "t")
    metrics.write_text('{"step": 1, "loss": 2.0, "grad_norm": 1.0}\n{"step": 2, "loss": 1.0, "grad_norm": "inf"}\n')
    assert loss_curve(metrics, tmp_path / "loss.png", "t")
    assert (tmp_path / "loss.png").stat().st_size > 5000


def test_a_checkpoint_that_is_quantized_already(workshop: Workshop) -> None:
    from dataclasses import replace

    from strix_train.backends.base import Load
    from strix_train.backends.hf import quantization
    from strix_train.device import Device
    from strix_train.names import ModelName
    from strix_train.recipe.adapter import LowRank

    cpu = Device("cpu", "cpu", "x", "y", 1, True, False)
    wish = Load(ModelName("llama", str(workshop.path / "models" / "llama"), True), cpu, "bf16", 64, False, 1)
    assert quantization(wish) is None
    assert quantization(wish, "mxfp4").dequantize is True
    four = replace(wish, adapter=LowRank(kind="qlora"))
    assert quantization(four, "bitsandbytes") is None
    with pytest.raises(InputError, match="the model's weights are MXFP4, which adapter qlora cannot quantize again"):
        quantization(four, "mxfp4")
