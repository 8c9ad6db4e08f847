"""What a failed build step says to people: the template line behind it, and the sentence that it printed itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strix_finetune import netconf
from strix_finetune.errors import BuildFailed, Place, Problem
from strix_finetune.plan import Step

# how a build step begins the line that says in one sentence why it fails
TOLD = "strix-finetune: "
# what apt says of a file that the lent part of a vendored archive does not have
_ASKED = re.compile(rf"File not found - {netconf.MOUNT}/apt/(?:\S*/)?(\S+\.deb)")


def located(error: BuildFailed, step: Step) -> BuildFailed:
    """The engine names a line of the rendered Dockerfile; people can only change the template behind it.

    A step that knows better prints its own sentence, behind `TOLD`, with its cure after a semicolon.
    """
    problem, places = error.problems[0], step.layer.layer.places
    place = problem.place
    if place is not None and place.line is not None and places:
        place = places[min(place.line, len(places)) - 1]
    told = next((line for line in reversed(error.log_tail) if line.startswith(TOLD)), "").removeprefix(TOLD)
    if told := told or _not_vendored(error.log_tail):
        message, _, cure = told.partition("; ")
        place = next((Place(patch) for patch in step.layer.layer.node.patches if patch.name in message), place)
        problem = Problem(message, place, cure)
    return BuildFailed(Problem(problem.message, place, problem.cure), log_tail=error.log_tail)


def _not_vendored(tail: Sequence[str]) -> str:
    """What to say when apt asks a vendored folder for a file that it does not have."""
    file = next((found[1] for line in tail if (found := _ASKED.search(line))), "")
    if not file:
        return ""
    message = f"apt asks for {file}, which was not vendored: a layer below is of another state of the archive"
    return f"{message}; build that one anew, with --rebuild and its name"
