"""What all processes must have in common before the first step, and the sentence for the first thing that differs.

Pure: the facts of each process are plain JSON. Paths may differ from machine to machine; what lies there may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strix_train.distributed.lifeline import Fault
from strix_train.errors import Problem

_ABSENT = object()
# Where things lie on a machine, and what only process 0 does.
_OWN = ("output", "logging", "export", "model", "questions.file", "data.template")


def facts_of(plan: Any, versions: Mapping[str, Any], *, resume: bool) -> dict[str, Any]:
    """Return what a process tells the others of a plan that it is going to carry out."""
    return {
        "resume": resume,
        "train": plan.train.fingerprint,
        "eval": plan.evaluation.fingerprint if plan.evaluation else "",
        "recipe": {key: value for key, value in _flat(plan.resolved()) if not _is_own(key)},
        "backend": versions["backend"],
        "packages": {"strix_train": versions["strix_train"], **versions["packages"]},
        "torch": {name: versions["torch"][name] for name in ("version", "hip", "cuda")},
        "device": versions["device"]["kind"],
    }


def difference(facts: Sequence[Mapping[str, Any]]) -> Problem | None:
    """Return what the first process that differs from process 0 has in another way; None where all agree."""
    for rank, mine in enumerate(facts):
        found = _between(facts[0], mine, _name(facts, rank))
        if found:
            return found
    return None


def _name(facts: Sequence[Mapping[str, Any]], rank: int) -> str:
    host = str(facts[rank].get("host") or "")
    return (
        f"process {rank} (on {host})" if host and len({each.get("host") for each in facts}) > 1 else f"process {rank}"
    )


def _between(first: Mapping[str, Any], other: Mapping[str, Any], who: str) -> Problem | None:
    for role in ("train", "eval"):
        if first.get(role) != other.get(role):
            what = f"{who} has other rows than process 0"
            cure = "give every node the same files and the same recipe"
            return Problem(what if role == "train" else f"{what} in data.eval", cure=cure)
    if first.get("recipe") != other.get("recipe"):
        return Problem(
            f"{who} has another recipe than process 0: {_differing(first['recipe'], other['recipe'])}",
            cure="give every node the same recipe and the same --set",
        )
    for what, cure in _WORDS.items():
        if first.get(what) != other.get(what):
            ours, theirs = first.get(what), other.get(what)
            if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
                differs = "another strategy" if what == "strategy" else "other versions"
                return Problem(f"{who} has {differs} than process 0: {_differing(ours, theirs)}", cure=cure)
            return Problem(f"{who} has {_NAMES[what]} {_shown(theirs)} and process 0 has {_shown(ours)}", cure=cure)
    return None


_SAME_IMAGE = "start the same image on every node"
_WORDS = {
    "packages": _SAME_IMAGE,
    "torch": _SAME_IMAGE,
    "backend": _SAME_IMAGE,
    "device": "let every process train on the same kind of device",
    "strategy": "write strategy in the recipe, and give every node as much memory, STRIX_LINK_GBIT and STRIX_LINK_US",
    "rows": "give every node the same files, template and tokenizer",
    "model": "give every node the same model folder",
    "weights": "give every node the same model folder",
    "resume": "start every process with --resume, or none of them",
}
_NAMES = {
    "backend": "the backend",
    "device": "a device of kind",
    "rows": "encoded rows of digest",
    "model": "a model whose config.json has digest",
    "weights": "model weights of digest",
    "resume": "resume",
}


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    found = [
        f"{key} is {_shown(theirs.get(key, _ABSENT))} there and {_shown(ours.get(key, _ABSENT))} at process 0"
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key, _ABSENT) != theirs.get(key, _ABSENT)
    ]
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _shown(value: Any) -> str:
    if value is _ABSENT or value is None or value == "":
        return "not there"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _is_own(key: str) -> bool:
    return key.endswith(("path", "file")) or any(key == own or key.startswith(f"{own}.") for own in _OWN)


def _flat(value: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a JSON value with their keys, so that a path inside a list is told from its neighbours."""
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    inside = [(f"{above}.{name}" if above else str(name), inner) for name, inner in pairs]
    if not inside:
        yield above, value
    for key, inner in inside:
        yield from _flat(inner, key)


def sentence(fault: Fault, host: str = "") -> str:
    """Return what the processes that are left say of a fault elsewhere."""
    who = f"process {fault.rank}" + (f" (on {host})" if host else "")
    if fault.lost:
        return (
            f"{who} ended without a word, so the run was stopped; it was killed, ran out of memory, or its machine or "
            "network is gone: look there, then add --resume"
        )
    if fault.code == 130:
        return f"{who} was interrupted, so the run was stopped"
    return f"{who} failed: {fault.text}"
