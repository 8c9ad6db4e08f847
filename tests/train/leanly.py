"""Small models with an adapter, rows of every kind for them, and what lean layers are compared by."""

from __future__ import annotations

from typing import Any

import pytest

from strix_train.lean import attend

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 512,
}
ROWS, TOKENS = 5, 30


def adapted(kind: str, *, targets: Any = "all-linear", dtype: str = "float32", **keys: Any) -> Any:
    """Return a model of a family with an adapter that does something."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(SHAPE | keys))
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.config.use_cache = False
    found = get_peft_model(model, LoraConfig(r=4, lora_alpha=6, target_modules=targets, task_type="CAUSAL_LM"))
    torch.manual_seed(1)
    for name, weight in found.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return found.train()


def batch(how: str) -> dict[str, Any]:
    """Return rows that are full, filled up on the right or on the left, or packed."""
    import torch

    torch.manual_seed(2)
    ids = torch.randint(3, 300, (ROWS, TOKENS))
    labels = ids.clone()
    found = {"input_ids": ids, "labels": labels}
    if how in ("right", "left"):
        mask = torch.ones_like(ids)
        for row in range(1, ROWS):
            empty = slice(TOKENS - 3 * row, None) if how == "right" else slice(0, 3 * row)
            mask[row, empty] = 0
            labels[row, empty] = -100
            labels[row, 3 * row if how == "left" else 0] = -100  # nothing that is there foretells it
        found["attention_mask"] = mask
    if how == "packed":
        positions = torch.cat([torch.arange(11), torch.arange(9), torch.arange(10)])[None].repeat(ROWS, 1)
        positions[1] = torch.arange(TOKENS)
        labels[positions == 0] = -100
        found["position_ids"] = positions
    return found


def gradients(model: Any, rows: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    model.zero_grad()
    loss = model(**rows).loss
    loss.backward()
    return float(loss.detach()), {
        name: each.grad.clone() for name, each in model.named_parameters() if each.requires_grad
    }


def compare(model: Any, other: Any, rows: dict[str, Any], tolerance: float = 1e-4) -> None:
    wanted, theirs = gradients(model, rows)
    found, ours = gradients(other, rows)
    assert found == pytest.approx(wanted, rel=tolerance)
    assert ours.keys() == theirs.keys()
    for name, grad in theirs.items():
        assert float((ours[name] - grad).norm()) <= tolerance * float(grad.norm()), name


def goes_on(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let attention have a kernel that goes on with what it gave; return how far that was from it, each time."""
    plain, calls = attend.again, []

    def ahead(q: Any, k: Any, v: Any, seen: Any, scale: float, kernel: Any) -> tuple[Any, Any]:
        return attend._any(q, k, v, seen, scale).contiguous(), (q.new_ones(2),)

    def again(q: Any, k: Any, v: Any, seen: Any, scale: float, kernel: Any, kept: Any = None) -> tuple[Any, Any]:
        found, back = plain(q, k, v, seen, scale, kernel)
        if kept is None:
            return found, back
        calls.append(float((kept[0] - found).abs().max()))
        return kept[0], back

    monkeypatch.setattr(attend, "ahead", ahead)
    monkeypatch.setattr(attend, "again", again)
    return calls
