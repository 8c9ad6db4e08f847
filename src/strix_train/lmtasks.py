"""Tasks of lm-eval, where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strix_train.errors import InputError, Problem
from strix_train.generate import Source

_INSTALL = "pip install lm-eval, in an image of your own; or leave --tasks out"


def tasks(source: Source, names: Sequence[str], *, limit: int | None, batch: int) -> dict[str, dict[str, float]]:
    """Run tasks of lm-eval, which must be installed, and return their numbers by task. Raises InputError."""
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise InputError(Problem("--tasks needs the package lm-eval, which is not here", cure=_INSTALL)) from None
    from strix_train.generate import load

    manager = TaskManager()
    unknown = [name for name in names if name not in manager.all_tasks and not Path(name).is_file()]
    if unknown:
        raise InputError(Problem(f"lm-eval has no task '{unknown[0]}'", cure="`lm-eval ls tasks` lists them"))
    model, tokenizer = load(source)
    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch)
    found = simple_evaluate(model=wrapped, tasks=list(names), limit=limit, task_manager=manager)
    return {
        task: {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}
        for task, numbers in found["results"].items()
    }
