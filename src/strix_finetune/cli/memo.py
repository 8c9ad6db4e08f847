"""Leave the memo that lets the next identical build answer at once (see fast.py)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from strix_finetune import fast
from strix_finetune.engine.select import socket_path
from strix_finetune.events import Event, Finished, LayerPlanned, as_json
from strix_finetune.execute import Built, Outcome, Pulled, Reused
from strix_finetune.plan import Plan
from strix_finetune.ui.plain import plain_lines
from strix_finetune.workspace import Options, Workspace

_SECONDS = 987654321.0


def remember_outcome(
    plan: Plan,
    outcomes: Mapping[str, Outcome],
    wanted: Collection[str],
    workspace: Workspace,
    options: Options,
    as_json_lines: bool,
) -> None:
    """Only for a Docker engine on a local socket, where the question can be asked without the SDK."""
    socket = socket_path(os.environ) if options.engine != "podman" else None
    if socket is None:
        return
    tags: dict[str, str] = {}
    events: list[Event] = []
    for step in plan.steps:
        outcome = outcomes.get(step.name)
        if isinstance(outcome, Built | Reused | Pulled):
            # the other names of a layer that nobody asked for are not set again when they are lost
            tags |= dict.fromkeys(step.tags if step.name in wanted else step.tags[:1], outcome.image)
            events.append(LayerPlanned(step.name, "reuse", "up to date", step.layer.key, step.tags))
        else:
            events.append(LayerPlanned(step.name, "not-needed", "not needed", step.layer.key, step.tags))
    final = plan.step(plan.stack.final.name)
    image = final.tags[-1] if isinstance(outcomes.get(final.name), Built | Reused | Pulled) else ""
    events.append(Finished(0, len(outcomes), 0, 0, _SECONDS, image))
    if as_json_lines:
        text = "".join(json.dumps(as_json(event), ensure_ascii=False) + "\n" for event in events)
    else:
        text = "".join(line + "\n" for event in events for line in plain_lines(event))
    text = text.replace(f"{_SECONDS}", "@seconds@")
    fast.remember(sys.argv[1:], _roots(workspace, options), socket, tags, text, as_json=as_json_lines)


def _roots(workspace: Workspace, options: Options) -> list[str]:
    """Everything that decides about keys: definitions, locks, what travels into images, and the driver itself."""
    folders = workspace.folders
    roots = {folders.images, folders.recipes, folders.python / "strix_train", Path(__file__).parents[1]}
    roots |= {folder for folder in workspace.lock_folders if not folder.is_relative_to(folders.images)}
    if options.override:
        roots.add(options.override)
    # a GPU that appears changes the default target
    return [str(root) for root in sorted(roots)] + ["/sys/class/kfd/kfd/topology/nodes"]
