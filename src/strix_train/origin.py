"""Whether what a run was trained on is still what it was: told by the commands that come after it, and not refused.

A model of the hub may have got another template meanwhile, which is no fault; other weights below an adapter are one.
"""

from __future__ import annotations

import sys

from strix_train import localtext, same, sameness
from strix_train.generate import Source, find_source
from strix_train.plan import Plan
from strix_train.runfolder import RunFolder


def find(word: str) -> Source:
    """Resolve what was trained, as `find_source` does, and warn where its base model is not what it was."""
    found = find_source(word)
    if found.run and found.adapter:
        now = {"model_sha256": sameness.of_model(localtext.folder_of(found.base))}
        for what in same.other_inputs(_before(found), now):
            _warn(f"{what}, so the adapter in {found.adapter} may not fit it")
    return found


def look(source: Source, plan: Plan) -> None:
    """Warn where the run's rows are not those that it was trained on: some that are measured may be among them."""
    differing = same.other_inputs(_before(source), {"train_sha256": plan.train.fingerprint})
    if differing and plan.loaded.recipe.evaluation.split:
        _warn(f"{differing[0]}, so rows that it learned may be among those that are measured")


def _before(source: Source) -> dict[str, object]:
    kept = RunFolder(source.run).read_json("versions.json") if source.run else None
    found = kept.get("inputs") if isinstance(kept, dict) else None
    return found if isinstance(found, dict) else {}


def _warn(text: str) -> None:
    print(f"train: warning: {text}", file=sys.stderr)
