"""A recipe as strict, frozen models: every key that `train` knows, with its unit and its default.

The names are ours and stay; what the libraries call the same thing changes with their versions.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from strix_train.recipe.adapter import Adapter, LowRank
from strix_train.recipe.base import Finite, Name, Strict, Text, as_list, unexpanded, widened
from strix_train.recipe.method import Method, Sft
from strix_train.recipe.rows import Data, Evaluation, Question, Questions, Source
from strix_train.recipe.watching import Guard, Samples

__all__ = ["Adapter", "Data", "Evaluation", "Method", "Question", "Questions", "Recipe", "Schedule", "Source"]


_Rows = Annotated[int, Field(ge=1, le=4096)] | Literal["auto"]


def _some_rows(value: object) -> object:
    number = isinstance(value, int) and not isinstance(value, bool)
    if value != "auto" and not (number and 1 <= int(str(value)) <= 4096):
        raise ValueError("is neither a whole number from 1 to 4096 nor auto; write 2, for example")
    return value


class Schedule(Strict):
    """How long and how fast. Exactly one of `steps` and `epochs`."""

    steps: int | None = Field(default=None, ge=1, description="Optimizer steps.")
    epochs: Finite | None = Field(default=None, gt=0, description="Passes over the rows.")
    batch: Annotated[int | Literal["auto"], BeforeValidator(_some_rows, json_schema_input_type=_Rows)] = Field(
        default=2,
        description="Rows per device and forward pass; auto: as many of the rows of a step as fit (train estimate).",
    )
    accumulation: int = Field(
        default=4,
        ge=1,
        le=65536,
        description="Forward passes per optimizer step; where batch is auto, rows of a step on each device.",
    )
    learning_rate: Finite = Field(default=2e-4, gt=0, le=1)
    scheduler: Literal["constant", "linear", "cosine"] = "linear"
    warmup: Finite = Field(default=0.03, ge=0, description="Steps, or below 1 a share of all steps.")
    weight_decay: Finite = Field(default=0.0, ge=0, le=1)
    max_grad_norm: Finite = Field(default=1.0, gt=0)
    max_length: int = Field(default=2048, ge=8, description="Tokens; longer rows are cut at the end.")
    seed: int = Field(default=3407, ge=0, lt=2**32)

    @property
    def rows(self) -> int:
        """Rows per device and forward pass, once `auto` has become a number."""
        if self.batch == "auto":
            raise ValueError("schedule.batch is still auto")
        return self.batch

    @model_validator(mode="after")
    def _one_length(self) -> Schedule:
        if (self.steps is None) == (self.epochs is None):
            have = "both 'steps' and 'epochs' are" if self.steps is not None else "neither 'steps' nor 'epochs' is"
            raise ValueError(f"{have} given; give exactly one of them")
        return self


class Checkpoints(Strict):
    """What an interrupted run goes on from."""

    every: int = Field(default=50, ge=0, description="Optimizer steps between two; 0: only at an interruption.")
    keep: int = Field(default=2, ge=1, description="The newest ones that stay.")


class Logging(Strict):
    """Who else is told of a run: metrics.jsonl and report.json are always written."""

    to: Annotated[
        list[Literal["tensorboard", "trackio", "wandb"]],
        BeforeValidator(as_list, json_schema_input_type=str | list[Literal["tensorboard", "trackio", "wandb"]]),
    ] = Field(default_factory=list)
    project: Text | None = Field(default=None, description="Name of the project at trackio and wandb.")


class Strategy(Strict):
    """How several processes train together."""

    kind: Literal["auto", "none", "ddp", "fsdp", "deepspeed"] = Field(
        default="auto",
        description="auto: ddp where several processes were started and each can hold the model, fsdp where not.",
    )
    stage: Literal[2, 3] = Field(
        default=3, description="Of deepspeed: 2 shares gradients and optimizer, 3 the weights as well."
    )
    keep: Literal["auto", "nothing", "step", "frozen"] = Field(
        default="auto",
        description="What fsdp keeps gathered: nothing but the layer at work, all weights until a step ends, or what "
        "is frozen ever; auto: the most that fits, and frozen weights where the link is slow.",
    )


ExportKind = Literal["adapter", "merged", "gguf"]


class Export(Strict):
    """What is made of the trained model when the run is done."""

    to: Annotated[list[ExportKind], BeforeValidator(as_list, json_schema_input_type=ExportKind | list[ExportKind])] = (
        Field(min_length=1)
    )
    quantization: Literal["f16", "q8_0", "q4_k_m"] = Field(default="q8_0", description="Of the GGUF file.")


class Recipe(Strict):
    """One training run."""

    model: Name = Field(
        description="A folder, a .gguf file, a hub id (owner/name), or a bare name looked up in STRIX_MODELS."
    )
    data: Annotated[Data, BeforeValidator(widened("data"), json_schema_input_type=str | list[str | Source] | Data)]
    method: Method = Sft(kind="sft")
    adapter: Adapter = LowRank()
    backend: Literal["auto", "unsloth", "hf"] = Field(
        default="auto", description="auto: Unsloth where it is installed and can do it, else plain transformers."
    )
    strategy: Annotated[
        Strategy,
        BeforeValidator(
            widened("strategy"),
            json_schema_input_type=Literal["auto", "none", "ddp", "fsdp", "deepspeed"] | Strategy,
        ),
    ] = Strategy()
    schedule: Schedule
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        default="auto", description="auto takes bf16 where the device has it."
    )
    recompute: Literal["auto", "on", "off"] = Field(
        default="auto", description="Trade time for memory by recomputing activations; auto does so on GPUs."
    )
    responses_only: bool = Field(default=True, description="Only the answers count in the loss.")
    evaluation: Evaluation = Evaluation()
    questions: (
        Annotated[
            Questions,
            BeforeValidator(widened("questions"), json_schema_input_type=str | list[Question] | Questions),
        ]
        | None
    ) = None
    samples: Samples | None = None
    checkpoints: Checkpoints = Checkpoints()
    guard: Guard = Guard()
    logging: Logging = Logging()
    export: (
        Annotated[
            Export,
            BeforeValidator(widened("export"), json_schema_input_type=ExportKind | list[ExportKind] | Export),
        ]
        | None
    ) = None
    output: Annotated[Name, AfterValidator(unexpanded)] = Field(
        default="runs", description="Folder that gets the run folders, relative to where `train` is started."
    )

    @model_validator(mode="after")
    def _something_to_ask(self) -> Recipe:
        if self.samples is not None and self.samples.ask is None and self.questions is None:
            raise ValueError("samples has nothing to ask; write samples.ask, or questions")
        return self

    @model_validator(mode="after")
    def _one_evaluation(self) -> Recipe:
        if self.evaluation.split is not None and self.data.eval is not None:
            raise ValueError("both data.eval and evaluation.split name rows for evaluation; keep one of the two")
        return self
