"""The JSON schema of recipes: what editors complete and check by."""

from __future__ import annotations

import json
from typing import Any

from strix_train.recipe.schema import Recipe


def schema() -> dict[str, Any]:
    """Return the schema as plain values."""
    found = Recipe.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "A recipe of strix-finetune"}


def text() -> str:
    """Return the schema as it is published."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
