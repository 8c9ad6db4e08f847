"""What an engine says of an image, in the words of the image specification."""

from __future__ import annotations

from typing import Any

from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError, Problem


def configuration(engine: Engine, ref: str) -> dict[str, Any]:
    """The configuration of an image in the engine's store. Raises EngineError where there is none."""
    found = engine.configuration(ref)
    if found is None:
        raise EngineError(Problem(f"there is no image {ref}", cure="run 'strix-finetune build'"))
    return found
