"""Unsloth: its kernels on GPUs; on a CPU it is transformers, peft and TRL with a chunked loss."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from strix_train import ruling
from strix_train.backends.base import Load
from strix_train.backends.hf import dtype_of, left_alone, weights_of
from strix_train.recipe.adapter import Full, LowRank

if TYPE_CHECKING:
    from strix_train.lean.install import Lean


class UnslothBackend:
    """See `Backend`. Importing Unsloth patches the libraries, so it happens once, before they are used."""

    name = "unsloth"
    lean: Lean | None = None

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            # A CPU build of torch on a host with /dev/kfd: without this, Unsloth refuses, and asks the network.
            os.environ["UNSLOTH_FORCE_CPU"] = "1"
        import unsloth

        self._fast = unsloth.FastLanguageModel
        self.version = f"Unsloth {unsloth.__version__}"

    def load(self, wish: Load) -> tuple[Any, Any]:
        """Return the model, on its device, and its tokenizer."""
        adapter = wish.adapter
        extra: dict[str, Any] = {}
        if wish.device.is_gpu:
            extra = {"device_map": {"": wish.device.torch}}
            if isinstance(adapter, Full):
                extra["float32_mixed_precision"] = weights_of(wish) != dtype_of(wish.precision)
        model, tokenizer = self._fast.from_pretrained(
            model_name=wish.model.source,
            max_seq_length=wish.max_length,
            dtype=dtype_of(wish.precision) if wish.device.is_gpu else weights_of(wish),
            load_in_4bit=adapter.kind == "qlora",
            load_in_8bit=adapter.kind == "lora8bit",
            full_finetuning=adapter.kind == "full",
            use_gradient_checkpointing=self._recompute(wish),
            random_state=wish.seed,
            local_files_only=wish.model.local,
            **extra,
            **ruling.loading(wish.rules),
        )
        ruling.on_model(wish.rules, model)
        return model, tokenizer

    def adapt(self, model: Any, adapter: LowRank | Full, wish: Load) -> Any:
        """Return the model with what learns: a fresh adapter, drawn from the seed, or every weight."""
        if isinstance(adapter, Full):
            return model
        return self._fast.get_peft_model(
            model,
            r=adapter.r,
            lora_alpha=adapter.alpha,
            lora_dropout=adapter.dropout,
            target_modules=adapter.targets,
            exclude_modules=left_alone(model, adapter),
            bias="none",
            use_gradient_checkpointing=self._recompute(wish),
            random_state=wish.seed,
            use_rslora=adapter.kind == "rslora",
            loftq_config=None,
        )

    def arguments(self, common: dict[str, Any], wish: Load) -> Any:
        """Return the trainer's arguments; the rows come tokenised and labelled, so TRL prepares nothing."""
        from trl import SFTConfig

        return SFTConfig(
            **common,
            **self.recomputation(wish),
            max_length=wish.max_length,
            packing=False,
            padding_free=False,
            completion_only_loss=False,
            assistant_only_loss=False,
            loss_type="nll",
            dataset_kwargs={"skip_prepare_dataset": True},
        )

    def recomputation(self, wish: Load) -> dict[str, Any]:
        """Return the arguments of any trainer that say whether activations are recomputed."""
        return {"gradient_checkpointing": False}  # Unsloth sets it up on the model itself

    def trainer_class(self) -> Any:
        """Return the trainer class to build on."""
        from trl import SFTTrainer

        return SFTTrainer

    def answering(self, model: Any) -> AbstractContextManager[None]:
        """Return a context in which the model generates; it trains again afterwards."""
        return self._answering(model)

    @contextmanager
    def _answering(self, model: Any) -> Iterator[None]:
        self._fast.for_inference(model)
        try:
            yield
        finally:
            self._fast.for_training(model)

    @staticmethod
    def _recompute(wish: Load) -> Any:
        if not wish.recompute:
            return False
        return "unsloth" if wish.device.is_gpu else True
