"""Where a model's config.json is found without the network: its folder, the hub's cache, or the table that ships."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from strix_train import localtext
from strix_train.errors import InputError, Place, Problem
from strix_train.estimate.shapes import Shape, UnknownShape, of_config
from strix_train.names import ModelName


@cache
def known() -> dict[str, dict[str, Any]]:
    """Return the configurations that ship, by hub id."""
    table = json.loads(Path(__file__).with_name("known.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {}
    for name, config in table["models"].items():
        found[name] = {**found[config["same_as"]], **config} if "same_as" in config else config
    return found | {name: found[other] for name, other in table["same_as"].items()}


def find(model: ModelName, place: Place | None = None) -> tuple[Shape, str]:
    """Return a model's shape, and where its configuration is from. Raises InputError where none is at hand."""
    folder = localtext.folder_of(model)
    if folder is not None:
        path = folder / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            shape = of_config(config if isinstance(config, dict) else {})
        except (OSError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            what = str(error) if isinstance(error, UnknownShape) else f"cannot be read: {error}"
            raise InputError(Problem(f"{path}: {what}", place, "an estimate needs a model's own config.json")) from None
        return shape, str(path)
    if model.source in known():
        return of_config(known()[model.source]), "the table of shapes that ships"
    if model.gguf:
        raise InputError(
            Problem(
                f"{model.gguf} was not made a folder yet",
                place,
                f"train import {model.gguf} DIR, and name DIR as model",
            )
        )
    what = f"nothing on this machine says how large {model.source} is"
    raise InputError(Problem(what, place, "load it once, or name a folder that has its config.json"))
