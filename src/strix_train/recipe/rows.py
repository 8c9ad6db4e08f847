"""The part of a recipe that names rows: for training, for evaluation, and the held-out questions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from strix_train.recipe.base import Finite, Name, Strict, Text, as_list

RowFormat = Literal[
    "auto",
    "messages",
    "sharegpt",
    "prompt-completion",
    "alpaca",
    "text",
    "preference",
    "rated",
    "prompts",
]
# Our name of each part of a row, which `columns` maps to the name that the file uses.
Column = Literal[
    "messages",
    "conversations",
    "prompt",
    "completion",
    "instruction",
    "input",
    "output",
    "text",
    "chosen",
    "rejected",
    "label",
    "system",
    "tools",
    "answer",
]


def _source(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


class Source(Strict):
    """One set of rows."""

    path: Name = Field(description="A file (.jsonl, .json, .csv, .tsv, .parquet, .arrow, .txt), a folder, or a hub id.")
    weight: Finite = Field(
        default=1.0,
        gt=0,
        le=100,
        description="How often each row is seen in one epoch: 0.5 takes half of the rows, 2 takes each twice.",
    )
    format: RowFormat = Field(default="auto", description="auto looks at the first row.")
    subset: Text | None = Field(default=None, description="Of a data set on the hub: its configuration.")
    split: Text | None = Field(default=None, description="Of a folder or a hub id: train, test, …")
    columns: dict[Column, Text] = Field(
        default_factory=dict, description="Other names for the parts of a row, e.g. {prompt: question}."
    )


Sources = Annotated[
    list[Annotated[Source, BeforeValidator(_source, json_schema_input_type=str | Source)]],
    BeforeValidator(as_list, json_schema_input_type=str | Source | list[str | Source]),
    Field(min_length=1, max_length=1000),
]


class Data(Strict):
    """The rows. Paths are relative to the recipe file."""

    train: Sources = Field(description="One or several sets of rows.")
    eval: Sources | None = Field(default=None, description="Rows for evaluation only.")
    format: RowFormat = Field(default="auto", description="The format of every set that names none itself.")
    columns: dict[Column, Text] = Field(
        default_factory=dict, description="Other names for the parts of a row, of every set that names none itself."
    )
    template: Name = Field(
        default="auto",
        description=(
            "How rows become text: auto (the model's chat template where it has one), chat, plain (texts as they are), "
            "simple (a plain-text template for base models), or a .jinja file."
        ),
    )
    roles: dict[Text, Literal["system", "user", "assistant", "tool"]] = Field(
        default_factory=dict, description="Other names for roles, e.g. {bot: assistant}."
    )
    merge_system: bool = Field(
        default=False, description="Put a system message in front of the first question, for templates that refuse it."
    )
    faulty: Literal["refuse", "skip"] = Field(
        default="refuse", description="Rows with faults stop the run, or are left out and counted."
    )
    packing: bool | None = Field(
        default=None,
        description=(
            "Put several short rows into one of max_length, each seeing only itself; by default for method cpt alone, "
            "where documents follow one another."
        ),
    )


def _share_or_number(value: float) -> float:
    if value >= 1 and value != int(value):
        raise ValueError(f"is {value:g}, neither a share below 1 nor a whole number of rows; write 0.05, or 200")
    return value


class Evaluation(Strict):
    """What is kept from training, and how often it is looked at."""

    split: Annotated[Finite, Field(gt=0), AfterValidator(_share_or_number)] | None = Field(
        default=None, description="Training rows to evaluate on instead: a share below 1, or a number of rows."
    )
    every: int = Field(default=0, ge=0, description="Optimizer steps between two evaluations; 0: at the end only.")
    batch: int | None = Field(default=None, ge=1, le=4096, description="Rows per device; as schedule.batch by default.")


class Question(Strict):
    """A held-out question. It counts as right when the answer holds `expect` (case and spacing aside)."""

    prompt: Text
    expect: Text
    system: Text | None = None


class Questions(Strict):
    """Asked before and after training, greedily: written here under `ask`, or a JSONL `file` of them."""

    ask: list[Question] | None = Field(default=None, min_length=1)
    file: Name | None = Field(default=None, description='JSON Lines of {"prompt", "expect", "system"?}.')
    max_new_tokens: int = Field(default=64, ge=1, le=4096)

    @model_validator(mode="after")
    def _one_source(self) -> Questions:
        if (self.ask is None) == (self.file is None):
            raise ValueError("exactly one of 'ask' and 'file' is needed; keep one")
        return self
