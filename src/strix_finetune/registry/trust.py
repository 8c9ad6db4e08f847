"""Whether an image in a registry is what its name says. What is not is refused before any of it is loaded.

The manifest holds what the key is made of, as text: its sha256 must be the key, the key must be the one that was asked
for, and what the image's own labels say must be what the text says. All digests are computed from what was read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from strix_finetune import key, names
from strix_finetune.errors import Problem
from strix_finetune.model import Keyed
from strix_finetune.registry import release
from strix_finetune.registry.client import Registry, Served
from strix_finetune.registry.faults import Untrusted
from strix_finetune.registry.release import Offer
from strix_finetune.tested import Tests, tests_of

_CURE = "do not use it before somebody has found out why, or build without this registry"


@dataclass(frozen=True, slots=True)
class Config:
    """What an image's configuration says. `diff_ids`: its layers unpacked, lowest first. `tests`: what it passed."""

    content: bytes
    labels: Mapping[str, str]
    diff_ids: tuple[str, ...]
    tests: Tests


@dataclass(frozen=True, slots=True)
class Refused:
    """What a registry has under the name of a layer's image, and is not that. `why`: a sentence that begins with it."""

    why: str


def look_up(registry: Registry, layer: Keyed, target: str, *, config: bool) -> Offer | Refused | None:
    """What a registry has under a layer's key, None for nothing; with `config` its configuration is held against it.

    One request, or two. Raises RegistryError where the registry cannot be asked.
    """
    tag = release.key_tag(layer.name, target, layer.key)
    served = registry.manifest(tag)
    if served is None:
        return None
    place = registry.repository.at(tag)
    try:
        offer = offered(served, place, target=target, wanted=layer)
        if config:
            check_config(registry.small(offer.config), offer, place, layer)
    except Untrusted as error:
        return Refused(error.problems[0].message)
    return offer


def offered(served: Served, place: str, *, target: str, wanted: Keyed | None = None) -> Offer:
    """A manifest as the image that it offers. Raises Untrusted; `place` is its name for the sentence."""
    try:
        offer = release.read_offer(served)
    except ValueError as error:
        cure = "check the repository; it should be filled by 'strix-finetune push'"
        raise Untrusted(Problem(f"{place} cannot be used: {error}", cure=cure)) from None
    _check(offer, place, target, wanted)
    return offer


def _check(offer: Offer, place: str, target: str, wanted: Keyed | None) -> None:
    """Hold a manifest against itself and what was asked for."""
    told = offer.annotations
    missing = [name for name in (names.KEY, names.LAYER, names.TARGET, names.INPUTS) if not told.get(name)]
    if missing:
        raise _refused(place, f"says nothing of {missing[0].rpartition('.')[2]}, so it was not pushed by this program")
    if told[names.TARGET] != target:
        raise _refused(place, f"is made for {told[names.TARGET]}, not {target}")
    if key.key_of(told[names.INPUTS]) != told[names.KEY]:
        raise _refused(place, f"has the key {told[names.KEY][:12]}, but its recorded inputs make another one")
    try:
        layer, _ = key.recorded(told[names.INPUTS])
    except ValueError as error:
        raise _refused(place, f"has a record that cannot be read: {error}") from None
    if layer != told[names.LAYER]:
        raise _refused(place, f"calls itself {told[names.LAYER]}, and its record is of {layer}")
    if wanted is not None and (told[names.KEY], layer) != (wanted.key, wanted.name):
        raise _refused(place, f"is {layer} with the key {told[names.KEY][:12]}, not {wanted.key[:12]}")


def check_config(content: bytes, offer: Offer, place: str, wanted: Keyed | None = None) -> Config:
    """Hold an image's configuration against its manifest. Raises Untrusted."""
    try:
        told = json.loads(content)
        labels = {name: str(value) for name, value in (told["config"].get("Labels") or {}).items()}
        diff_ids = tuple(str(digest) for digest in told["rootfs"]["diff_ids"])
        platform = f"{told['os']}/{told['architecture']}"
        parts = json.loads(labels.get(names.PARTS) or "{}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _refused(place, f"has a configuration that cannot be read ({type(error).__name__})") from None
    for name in (names.KEY, names.LAYER, names.TARGET, names.CHANNEL):
        if labels.get(name) != offer.annotations.get(name):
            words = f"has the label {name}={labels.get(name, '')[:64]}, and its manifest says something else"
            raise _refused(place, words)
    if platform != key.PLATFORM or len(diff_ids) != len(offer.layers):
        raise _refused(
            place, f"is for {platform} with {len(diff_ids)} layers, and its manifest has {len(offer.layers)}"
        )
    if not isinstance(parts, dict) or not key.tells_of(offer.annotations[names.INPUTS], parts):
        raise _refused(place, f"has a label {names.PARTS} that its key was not made of")
    if wanted is not None and parts != dict(wanted.parts):
        raise _refused(place, f"has a label {names.PARTS} that differs from what is to be built")
    tests = tests_of(labels)
    if tests is None:
        raise _refused(place, "does not say which smoke tests it has passed")
    return Config(content, labels, diff_ids, tests)


def _refused(place: str, words: str) -> Untrusted:
    return Untrusted(Problem(f"{place} {words}", cure=_CURE))
