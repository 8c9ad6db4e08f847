"""The part of a recipe that says which weights learn."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from strix_train.recipe.base import Finite, Strict, widened

LowRankKind = Literal["lora", "rslora", "dora", "qlora", "lora8bit"]


def _some_targets(value: Any) -> Any:
    names = isinstance(value, list) and value and all(isinstance(name, str) and name for name in value)
    if value != "all-linear" and not names:
        raise ValueError("is neither all-linear nor a list of module names; write all-linear, or [q_proj, v_proj]")
    return value


class LowRank(Strict):
    """A low-rank adapter; the model itself stays as it is.

    lora: alpha / r scales the update. rslora: alpha / sqrt(r) does. dora: size and direction learn apart.
    qlora: the model is held in 4 bits. lora8bit: in 8 bits.
    """

    kind: LowRankKind = "lora"
    r: int = Field(default=16, ge=1, le=1024, description="Rank of the update.")
    alpha: int = Field(default=32, ge=1, le=4096, description="Scale of the update: alpha / r.")
    dropout: Finite = Field(default=0.0, ge=0.0, lt=1.0)
    targets: Annotated[Literal["all-linear"] | list[str], BeforeValidator(_some_targets)] = Field(
        default="all-linear", description="all-linear, or names of linear modules."
    )


class Full(Strict):
    """Every weight of the model learns."""

    kind: Literal["full"]
    weights: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="What the weights are held in; bf16 takes half the memory, and loses small steps to rounding.",
    )


Adapter = Annotated[
    Annotated[LowRank | Full, Field(discriminator="kind")],
    BeforeValidator(
        widened("adapter", kind="lora"), json_schema_input_type=LowRankKind | Literal["full"] | LowRank | Full
    ),
]
