"""Whether a run may go on: it must be the run that it was, or its end would not be what its beginning promised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# What changes nothing about the weights: where results go, what is shown, asked, kept and exported.
MAY_DIFFER = ("strategy", "output", "checkpoints", "questions", "samples", "logging", "guard", "evaluation", "export")
_ABSENT = object()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence part for each key of two resolved recipes that differs, in the order of the new one."""
    old, new = dict(_flat(before)), dict(_flat(now))
    found = []
    for key in dict.fromkeys([*new, *old]):
        if key.split(".")[0].split("[")[0] in MAY_DIFFER:
            continue
        was, is_ = old.get(key, _ABSENT), new.get(key, _ABSENT)
        # a key that came with a later version, and says nothing, changes nothing
        if was == is_ or (was is _ABSENT and is_ is None) or (is_ is _ABSENT and was is None):
            continue
        found.append(f"{key} is {_shown(is_)} and was {_shown(was)}")
    return found


def other_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence part for each digest of versions.json's `inputs` that differs."""
    found = []
    for key, value in now.items():
        was = before.get(key, value)
        # a model of the hub may not have been here when it was looked at
        unknown = key == "model_sha256" and None in (was, value)
        if key.endswith("_sha256") and was != value and not unknown:
            found.append(f"{_WHAT.get(key, key.removesuffix('_sha256'))} differs from what it was")
    return found


def other_versions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what computes in another way than before: a resumed run is then not the same to the last bit."""
    old, new = before.get("packages") or {}, now.get("packages") or {}
    found = [f"{name} is {new.get(name)} and was {old.get(name)}" for name in new if new.get(name) != old.get(name)]
    for what in ("name", "kind"):
        was, is_ = (before.get("device") or {}).get(what), (now.get("device") or {}).get(what)
        if was != is_:
            found.append(f"the device is {is_} and was {was}")
            break
    return found


_WHAT = {
    "train_sha256": "the content of data.train",
    "eval_sha256": "the content of data.eval",
    "model_sha256": "the content of the model",
    "template_sha256": "the content of data.template",
    "rewards_sha256": "the content of the rewards' files",
}


def _flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        key = f"{above}.{name}" if above else str(name)
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, key)
        else:
            yield key, inner


def _shown(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
