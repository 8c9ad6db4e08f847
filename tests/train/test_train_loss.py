"""The chunked loss of the backend hf: the same loss and the same gradients, and nothing as large as the logits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tiny_families
import tiny_models as tiny
from workshop import Workshop

from strix_train.backends import chunkedloss


@pytest.fixture(params=["llama", "gemma3", "gemma4", "gpt_oss"])
def model(request: pytest.FixtureRequest, workshop: Workshop) -> Any:
    from transformers import AutoModelForCausalLM

    folder = workshop.path / "models" / request.param
    if not folder.is_dir():
        tiny_families.make(request.param, folder)
    made = AutoModelForCausalLM.from_pretrained(str(folder), attn_implementation="eager")
    if request.param == "gemma4":
        made.config.get_text_config().final_logit_softcapping = 5.0
    return made.train()


def test_rows_of_a_chunk_follow_the_tokens() -> None:
    assert [chunkedloss.fused_at_a_time(256, tokens) for tokens in (100, 4096, 12288, 16384, 10**6)] == [
        512,
        512,
        768,
        1024,
        1024,
    ]


def batch(seed: int, rows: int = 3, length: int = 40) -> dict[str, Any]:
    import torch

    torch.manual_seed(seed)
    ids = torch.randint(6, 300, (rows, length))
    labels = ids.clone()
    labels[:, : 5 + 7 * seed] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def gradients(model: Any, *, items: int | None) -> tuple[float, dict[str, Any]]:
    """Return the loss of two accumulated batches, normalised as the trainer does it, and all gradients."""
    total = 0.0
    for seed in (1, 2):
        loss = model(**batch(seed), **({"num_items_in_batch": items} if items else {})).loss
        loss.backward()
        total += float(loss.detach())
    return total, {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("items", [None, 137])
def test_loss_and_gradients_are_those_of_the_plain_loss(
    model: Any, items: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    # several chunks, the last of them not full
    monkeypatch.setattr(chunkedloss, "tokens_at_a_time", lambda vocabulary: 16)
    other = copy.deepcopy(model)
    assert chunkedloss.install(other)
    wanted, theirs = gradients(model, items=items)
    found, ours = gradients(other, items=items)
    assert found == pytest.approx(wanted, rel=1e-5)
    assert ours.keys() == theirs.keys()
    assert any("embed" in name for name in ours)
    for name, grad in theirs.items():
        assert torch.allclose(ours[name], grad, rtol=1e-3, atol=1e-5), name


def test_without_labels_the_model_is_as_it_was(model: Any) -> None:
    import torch

    ids = batch(1)["input_ids"]
    before = model(input_ids=ids).logits
    chunkedloss.install(model)
    assert torch.equal(model(input_ids=ids).logits, before)
    assert model(**batch(1)).logits is None
    with torch.no_grad():
        evaluated = model(**batch(1)).loss
    assert not evaluated.requires_grad
    assert float(evaluated) == pytest.approx(float(model(**batch(1)).loss.detach()), rel=1e-6)


def test_nothing_as_large_as_the_logits_is_saved(workshop: Workshop) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{**tiny.SHAPE, "vocab_size": 20_000, "tie_word_embeddings": False})

    def largest(chunked: bool) -> int:
        model = LlamaForCausalLM(config).train()
        if chunked:
            assert chunkedloss.install(model)
        sizes = [0]
        own = {weight.data_ptr() for weight in model.parameters()}
        own_grads = 20_000 * 64  # of the output layer, which learns here

        def keep(tensor: Any) -> Any:
            if tensor.data_ptr() not in own and tensor.numel() != own_grads:
                sizes.append(tensor.numel() * tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(**batch(0, rows=2, length=128)).loss.backward()
        return max(sizes)

    logits = 2 * 128 * 20_000 * 4
    assert largest(chunked=False) >= logits
    assert largest(chunked=True) < logits / 50


def test_a_loss_or_a_head_of_another_kind_is_left_alone(workshop: Workshop) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    made = AutoModelForCausalLM.from_pretrained(str(workshop.path / "models" / "llama"))
    adapted = get_peft_model(made, LoraConfig(r=4, target_modules=["lm_head"], task_type="CAUSAL_LM"))
    assert not chunkedloss.install(adapted)
    assert adapted(**batch(1)).logits is not None


@pytest.mark.parametrize(("dtype", "outer"), [("bfloat16", 1.0), ("float16", 2.0**17), ("float32", 1.0)])
def test_gradients_are_divided_in_32_bits(dtype: str, outer: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """1/1537 is that of 1536 in bf16, also where numbers of 8 bits are multiplied with it; 2**17 is infinite in fp16.

    Mean factors tell, single numbers are rounded. Few rows at a time, the last ones not as many.
    """
    import torch

    torch.manual_seed(5)
    kind, items, width = getattr(torch, dtype), 1537, 64
    monkeypatch.setattr(chunkedloss, "_CHUNK", 4 * 4 * width * 7)
    hidden = torch.randn(2, 50, width, dtype=kind)
    weight = torch.randn(300, width, dtype=kind) * 0.1
    labels = torch.randint(0, 300, (2, 50))

    def found(divisor: int, times: float) -> list[Any]:
        both = [each.detach().clone().requires_grad_() for each in (hidden, weight)]
        (chunkedloss.loss(both[0], both[1], labels, divisor) * times).backward()
        return [each.grad.double() for each in both]

    for grad, one in zip(found(items, outer), found(1, 1.0), strict=True):
        assert bool(grad.isfinite().all())
        factor = float((grad * one).sum() / (one * one).sum())
        assert factor * items / outer == pytest.approx(1.0, abs=1e-4)


def test_a_gradient_is_scaled_in_its_own_place() -> None:
    import torch

    for kind in (torch.bfloat16, torch.float32, torch.float64):
        grad = torch.ones(5, 3, dtype=kind)
        same = chunkedloss.scaled(grad, torch.tensor(0.375))
        assert same is grad
        assert bool((grad == 0.375).all())
