"""A recipe as strict, frozen models: every key that `train` knows, with its unit and its default.

The names are ours and stay; what the libraries call the same thing changes with their versions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Strict(BaseModel):
    """Frozen, no coercion, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _short(key: str, of_list: str = "") -> BeforeValidator:
    """Let a section be written as one word: `data: rows.jsonl` means `data: {train: rows.jsonl}`."""

    def widen(value: Any) -> Any:
        if isinstance(value, str):
            return {key: value}
        return {of_list: value} if of_list and isinstance(value, list) else value

    return BeforeValidator(widen)


def _some_targets(value: Any) -> Any:
    names = isinstance(value, list) and value and all(isinstance(name, str) and name for name in value)
    if value != "all-linear" and not names:
        raise ValueError("is neither all-linear nor a list of module names; write all-linear, or [q_proj, v_proj]")
    return value


class Data(Strict):
    """The rows. Paths are relative to the recipe file.

    `format`: auto looks at the first row. `template`: how prompt/completion texts are put to the model; auto takes
    the model's chat template where it has one.
    """

    train: Text
    eval: Text | None = None
    format: Literal["auto", "messages", "prompt-completion"] = "auto"
    template: Literal["auto", "chat", "plain"] = "auto"


class Adapter(Strict):
    """What is trained. `targets`: all-linear, or names of linear modules. `alpha` / `r` scales the update."""

    kind: Literal["lora"] = "lora"
    r: int = Field(default=16, ge=1, le=1024)
    alpha: int = Field(default=32, ge=1, le=4096)
    dropout: Finite = Field(default=0.0, ge=0.0, lt=1.0)
    targets: Annotated[Literal["all-linear"] | list[str], BeforeValidator(_some_targets)] = "all-linear"


class Schedule(Strict):
    """How long and how fast. Exactly one of `steps` and `epochs`.

    `batch`: rows per device and forward pass. `accumulation`: forward passes per optimizer step. `warmup`: steps,
    or below 1 a share of all steps. `max_length`: tokens; longer rows are cut at the end.
    """

    steps: int | None = Field(default=None, ge=1)
    epochs: Finite | None = Field(default=None, gt=0)
    batch: int = Field(default=2, ge=1, le=4096)
    accumulation: int = Field(default=4, ge=1, le=65536)
    learning_rate: Finite = Field(default=2e-4, gt=0, le=1)
    scheduler: Literal["constant", "linear", "cosine"] = "linear"
    warmup: Finite = Field(default=0.03, ge=0)
    weight_decay: Finite = Field(default=0.0, ge=0, le=1)
    max_grad_norm: Finite = Field(default=1.0, gt=0)
    max_length: int = Field(default=2048, ge=8)
    seed: int = Field(default=3407, ge=0, lt=2**32)

    @model_validator(mode="after")
    def _one_length(self) -> Schedule:
        if (self.steps is None) == (self.epochs is None):
            have = "both 'steps' and 'epochs' are" if self.steps is not None else "neither 'steps' nor 'epochs' is"
            raise ValueError(f"{have} given; give exactly one of them")
        return self


class Checkpoints(Strict):
    """`every`: optimizer steps between two checkpoints, 0 for none but at an interruption. `keep`: newest kept."""

    every: int = Field(default=50, ge=0)
    keep: int = Field(default=2, ge=1)


class Question(Strict):
    """A held-out question. It counts as right when the answer holds `expect` (case and spacing aside)."""

    prompt: Text
    expect: Text
    system: Text | None = None


class Questions(Strict):
    """Asked before and after training, greedily: written here under `ask`, or a JSONL `file` of them."""

    ask: list[Question] | None = Field(default=None, min_length=1)
    file: Text | None = None
    max_new_tokens: int = Field(default=64, ge=1, le=4096)

    @model_validator(mode="after")
    def _one_source(self) -> Questions:
        if (self.ask is None) == (self.file is None):
            raise ValueError("exactly one of 'ask' and 'file' is needed; keep one")
        return self


class Recipe(Strict):
    """One training run.

    `model`: a folder, a hub id (owner/name), or a bare name looked up in STRIX_MODELS. `precision`: auto takes
    bf16 where the device has it. `recompute`: trade time for memory by recomputing activations; auto does so on
    GPUs. `output`: folder that gets the run folders, relative to the folder that `train` is started in.
    """

    model: Text
    data: Annotated[Data, _short("train")]
    method: Literal["sft"] = "sft"
    adapter: Annotated[Adapter, _short("kind")] = Adapter()
    backend: Literal["auto", "unsloth", "hf"] = "auto"
    schedule: Schedule
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    recompute: Literal["auto", "on", "off"] = "auto"
    responses_only: bool = True
    questions: Annotated[Questions, _short("file", of_list="ask")] | None = None
    checkpoints: Checkpoints = Checkpoints()
    output: Text = "runs"
