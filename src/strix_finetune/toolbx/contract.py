"""What an image's configuration must be so that Toolbx can work with it; what is inside the image its tests look at.

https://containertoolbx.org/doc/create and the source's cmd/create.go: the label makes it an image of Toolbx's, and
every command goes through a process of Toolbx's own, in whose place an entry point would run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strix_finetune.lint import BANNED_ENV

LABEL = "com.github.containers.toolbox"


def faults(config: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong, each as the rest of a sentence about the image; `config`: as the engine tells it."""
    if (config.get("Labels") or {}).get(LABEL) != "true":
        yield f"lacks the label {LABEL}"
    if config.get("Entrypoint"):
        yield "has an entry point, which takes the place of Toolbx's own process"
    set_ = [str(word).partition("=")[0] for word in config.get("Env") or ()]
    for name in BANNED_ENV:
        if name in set_:
            yield f"sets {name} wherever it is used"
