"""transformers and peft without anything on top: the reference, and the way where Unsloth does not go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from strix_train import ruling
from strix_train.backends import chunkedloss, storedtype
from strix_train.backends.again import counted, remember
from strix_train.backends.base import Load
from strix_train.errors import InputError, Problem
from strix_train.lean.install import Lean, install
from strix_train.lean.parking import Parking
from strix_train.recipe.adapter import Full, LowRank


def dtype_of(precision: str) -> Any:
    """Return torch's type for a precision."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]


def weights_of(wish: Load) -> Any:
    """Return torch's type for the weights: of a model that learns whole, that of its master copy."""
    adapter = wish.adapter
    if isinstance(adapter, Full) and (adapter.weights == "fp32" or wish.precision != "bf16"):
        return dtype_of("fp32")
    return dtype_of(wish.precision)


def quantization(wish: Load, written: str = "") -> Any:
    """Return how the frozen weights are quantized, or None: 4 bits as NF4 with quantized scales, or 8 bits.

    `written`: how the checkpoint itself is quantized. MXFP4, as gpt-oss comes, is turned into 16 bits to be trained;
    what is quantized by bitsandbytes already is taken as it is.
    """
    wanted = wish.adapter.kind in ("qlora", "lora8bit")
    if written == "mxfp4":
        if wanted:
            what = f"the model's weights are MXFP4, which adapter {wish.adapter.kind} cannot quantize again"
            raise InputError(
                Problem(what, cure="name a 16-bit or a bnb-4bit copy of the model, or write adapter: lora")
            )
        from transformers import Mxfp4Config

        return Mxfp4Config(dequantize=True)
    if not wanted or written == "bitsandbytes":
        return None
    from transformers import BitsAndBytesConfig

    if wish.adapter.kind == "lora8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype_of(wish.precision),
    )


# Modules for pictures and sound, by any part of their names: training on text never reaches them.
_NO_WORDS = r"(.*\.)?[^.]*(vision|visual|image|audio|multi_modal)[^.]*(\..*)?"


def left_alone(model: Any, adapter: LowRank) -> str | None:
    """Return the pattern of modules that all-linear must not mean, or None where the model has none of them."""
    if adapter.targets != "all-linear":
        return None
    return _NO_WORDS if any(re.fullmatch(_NO_WORDS, name) for name, _ in model.named_modules()) else None


def _written(wish: Load) -> str:
    """Return how the checkpoint is quantized, by its config.json; empty where it is not."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(wish.model.source, local_files_only=wish.model.local)
    found = getattr(config, "quantization_config", None) or {}
    return str(found.get("quant_method", "") if isinstance(found, dict) else getattr(found, "quant_method", ""))


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
        self.lean: Lean | None = None

    def load(self, wish: Load) -> tuple[Any, Any]:
        """Return the model, on its device, and its tokenizer."""
        from transformers import AutoModelForCausalLM

        return self._load(AutoModelForCausalLM, wish)

    def load_scorer(self, wish: Load) -> tuple[Any, Any]:
        """Return the model with a fresh head that gives a text one number, drawn from the seed, and its tokenizer."""
        import torch
        from transformers import AutoModelForSequenceClassification

        torch.manual_seed(wish.seed)
        return self._load(AutoModelForSequenceClassification, wish, num_labels=1)

    def _load(self, kind: Any, wish: Load, **more: Any) -> tuple[Any, Any]:
        from transformers import AutoTokenizer

        wanted = weights_of(wish)
        stored = storedtype.of_files(wish.model) if wish.stored else None
        model = self._model(kind, wish, stored or wanted, **more)
        if stored not in (None, wanted) and wish.precision == "fp32" and storedtype.rounds(model):
            model = self._model(kind, wish, wanted, **more)
        ruling.on_model(wish.rules, model)
        tokenizer = AutoTokenizer.from_pretrained(wish.model.source, local_files_only=wish.model.local)
        return model, tokenizer

    def _model(self, kind: Any, wish: Load, dtype: Any, **more: Any) -> Any:
        return kind.from_pretrained(
            wish.model.source,
            dtype=dtype,
            device_map={"": wish.device.torch},
            local_files_only=wish.model.local,
            quantization_config=quantization(wish, _written(wish)),
            **ruling.loading(wish.rules),
            **more,
        )

    def adapt(self, model: Any, adapter: LowRank | Full, wish: Load, *, scores: bool = False) -> Any:
        """Return the model with what learns: a fresh adapter, drawn from the seed, or every weight.

        `scores`: the model gives a text one number, by a head that learns whole.
        """
        import torch

        model.config.use_cache = False
        if isinstance(adapter, Full):
            return model
        from peft import LoraConfig, get_peft_model

        for weight in model.parameters():
            weight.requires_grad_(False)
        torch.manual_seed(wish.seed)
        adapted = get_peft_model(
            model,
            LoraConfig(
                r=adapter.r,
                lora_alpha=adapter.alpha,
                lora_dropout=adapter.dropout,
                target_modules=adapter.targets,
                exclude_modules=left_alone(model, adapter),
                use_rslora=adapter.kind == "rslora",
                use_dora=adapter.kind == "dora",
                bias="none",
                task_type="SEQ_CLS" if scores else "CAUSAL_LM",
                modules_to_save=["score"] if scores else None,
            ),
        )
        if wish.recompute:
            offload = wish.device.is_gpu and not wish.device.unified
            if wish.whole and not scores:
                self.lean = install(adapted, offload=offload)
            if self.lean is None:
                model.enable_input_require_grads()
            else:
                remember(adapted, model, self.lean.text, self.lean.text.layers[-1])
        return adapted

    def arguments(self, common: dict[str, Any], wish: Load) -> Any:
        """Return the trainer's arguments from those that both backends share."""
        from transformers import TrainingArguments

        return TrainingArguments(**common, **self.recomputation(wish))

    def recomputation(self, wish: Load) -> dict[str, Any]:
        """Return the arguments of any trainer that say whether activations are recomputed."""
        # lean layers recompute by themselves
        usual = wish.recompute and self.lean is None
        return {
            "gradient_checkpointing": usual,
            # bitsandbytes' product in 8 bits keeps what goes in where only the reentrant way lets go of it
            "gradient_checkpointing_kwargs": {"use_reentrant": wish.adapter.kind == "lora8bit"} if usual else None,
        }

    def trainer_class(self) -> Any:
        """Return the trainer class to build on: its loss is computed in chunks where the model's is the usual one.

        Where layers are lean, its optimizer's states wait where what the layers keep does.
        """
        from transformers import Trainer

        lean = self.lean

        class Chunked(counted(Trainer)):  # type: ignore[misc]
            """transformers' trainer, which never holds all logits of a batch."""

            def __init__(self, model: Any = None, **kwargs: Any) -> None:
                chunkedloss.install(model)
                super().__init__(model=model, **kwargs)

            def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
                made = super().create_optimizer(*args, **kwargs)
                if lean is not None and lean.parks:
                    Parking(self.optimizer, lean.stash)
                return made

            def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                if lean is not None and model.training:
                    # our rows are filled up on the right, so that the mask changes nothing; asking it waits for the GPU
                    inputs.pop("attention_mask", None)
                return super().compute_loss(model, inputs, *args, **kwargs)

        return Chunked

    def answering(self, model: Any) -> AbstractContextManager[None]:
        """Return a context in which the model generates; it trains again afterwards."""
        return evaluating(model)
