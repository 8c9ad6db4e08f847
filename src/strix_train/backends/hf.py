"""transformers and peft without anything on top: the reference, and the way where Unsloth does not go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from strix_train import ruling
from strix_train.backends.base import Load
from strix_train.recipe.adapter import LowRank


def dtype_of(precision: str) -> Any:
    """Return torch's type for a precision."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode and back into the mode it was in."""
    was_training = bool(model.training)
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class PlainBackend:
    """See `Backend`."""

    name = "hf"

    def __init__(self) -> None:
        import transformers

        self.version = f"transformers {transformers.__version__}"

    def load(self, wish: Load) -> tuple[Any, Any]:
        """Return the frozen model, on its device, and its tokenizer."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(
            wish.model.source,
            dtype=dtype_of(wish.precision),
            device_map={"": wish.device.torch},
            local_files_only=wish.model.local,
            **ruling.loading(wish.rules),
        )
        ruling.on_model(wish.rules, model)
        tokenizer = AutoTokenizer.from_pretrained(wish.model.source, local_files_only=wish.model.local)
        return model, tokenizer

    def adapt(self, model: Any, adapter: LowRank, wish: Load) -> Any:
        """Return the model with a fresh trainable adapter, drawn from the seed."""
        import torch
        from peft import LoraConfig, get_peft_model

        model.config.use_cache = False
        if wish.recompute:
            model.enable_input_require_grads()
        torch.manual_seed(wish.seed)
        return get_peft_model(
            model,
            LoraConfig(
                r=adapter.r,
                lora_alpha=adapter.alpha,
                lora_dropout=adapter.dropout,
                target_modules=adapter.targets,
                bias="none",
                task_type="CAUSAL_LM",
            ),
        )

    def arguments(self, common: dict[str, Any], wish: Load) -> Any:
        """Return the trainer's arguments from those that both backends share."""
        from transformers import TrainingArguments

        return TrainingArguments(**common, **self.recomputation(wish))

    def recomputation(self, wish: Load) -> dict[str, Any]:
        """Return the arguments of any trainer that say whether activations are recomputed."""
        return {
            "gradient_checkpointing": wish.recompute,
            "gradient_checkpointing_kwargs": {"use_reentrant": False} if wish.recompute else None,
        }

    def trainer_class(self) -> Any:
        """Return the trainer class to build on."""
        from transformers import Trainer

        return Trainer

    def answering(self, model: Any) -> AbstractContextManager[None]:
        """Return a context in which the model generates; it trains again afterwards."""
        return evaluating(model)
