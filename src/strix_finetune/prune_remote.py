"""Which releases and images of a registry may go, why the others stay, and removing them.

A release stays while it has a name that moves or that somebody gave, while it is among the newest of its target, and
while it is young; the names that every push leaves behind, those with a day, do not count. An image stays while a
release that stays holds it or is made of it. What is in no release may be in the middle of a push: it goes once it has
been seen so for long enough. Only what this program pushed is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from strix_finetune import leftovers, names
from strix_finetune.prune import Policy
from strix_finetune.registry import referrers, release
from strix_finetune.registry.client import Registry, Served

_DAY = re.compile(r"\d{8}")


@dataclass(frozen=True, slots=True)
class Release:
    """An index. `created` in seconds since 1970; `images`: digests of its manifests."""

    digest: str
    tags: tuple[str, ...]
    target: str
    channel: str
    created: float
    images: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """A layer's image. `parents`: layer → key of what it is made of; `blobs`: digest → bytes."""

    digest: str
    tags: tuple[str, ...]
    layer: str
    key: str
    parents: Mapping[str, str]
    blobs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Remote:
    """What a repository holds of this program. `others`: digests that something else in it refers to."""

    releases: tuple[Release, ...]
    images: tuple[Image, ...]
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """`keep`: why it stays, empty where it goes."""

    name: str
    digest: str
    keep: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`before`: bytes of all that is held, `size`: of what only things which go have."""

    verdicts: tuple[Verdict, ...]
    before: int
    size: int
    orphans: frozenset[str] = field(default=frozenset())

    @property
    def going(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if not verdict.keep)


def read(registry: Registry) -> Remote:
    """Look at everything in a repository that has a name, or that a release names. Raises RegistryError."""
    tags: dict[str, list[str]] = {}
    served: dict[str, Served] = {}
    for tag in registry.tags():
        found = registry.manifest(tag)
        if found is not None and not tag.startswith("sha256-"):
            served[found.digest] = found
            tags.setdefault(found.digest, []).append(tag)
    releases: list[Release] = []
    others: set[str] = set()
    for digest, found in served.items():
        try:
            held = release.read_release(found)
        except ValueError:
            others.update(_named_in(found))
            continue
        annotations = held.annotations
        images = tuple(image.digest for image in held.images)
        target, channel = annotations.get(names.TARGET, ""), annotations.get(names.CHANNEL, "")
        created = _time(annotations.get(release.CREATED, ""))
        releases.append(Release(digest, tuple(sorted(tags[digest])), target, channel, created, images))
    for one in releases:
        for digest in one.images:
            if digest not in served and (inner := registry.manifest(digest)) is not None:
                served[digest] = inner
    made = [_image(found, tuple(sorted(tags.get(digest, ())))) for digest, found in served.items()]
    return Remote(tuple(releases), tuple(image for image in made if image), frozenset(others))


def _image(served: Served, tags: tuple[str, ...]) -> Image | None:
    """An image of this program; None for anything else."""
    try:
        offer = release.read_offer(served)
        told = offer.annotations
        parents = json.loads(told[names.INPUTS])["parents"]
        blobs = {blob.digest: blob.size for blob in (offer.config, *offer.layers)}
        return Image(served.digest, tags, told[names.LAYER], told[names.KEY], dict(parents), blobs)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _named_in(served: Served) -> set[str]:
    """What somebody else's index holds on to."""
    try:
        return {str(row["digest"]) for row in json.loads(served.content).get("manifests") or ()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


def decide(remote: Remote, policy: Policy, now: float, seen: Mapping[str, float]) -> Plan:
    """Verdicts of all releases, newest first, and of all images. `seen`: digest → since when it is in no release."""
    kept: dict[str, str] = {}
    newest: dict[tuple[str, str], int] = {}
    releases = sorted(remote.releases, key=lambda one: (-one.created, one.digest))
    for one in releases:
        place = newest[one.target, one.channel] = newest.get((one.target, one.channel), 0) + 1
        others = [tag for tag in one.tags if not _of_day(tag, one.target)]
        if others:
            kept[one.digest] = f"named {min(others, key=len)}"
        elif place <= policy.keep:
            kept[one.digest] = f"among the newest {policy.keep} of its target"
        elif now - one.created < policy.older:
            kept[one.digest] = "young"
        elif one.digest in remote.others:
            kept[one.digest] = "something else refers to it"
    _keep_images(remote, kept)
    in_some = {digest for one in releases for digest in one.images}
    orphans = frozenset(image.digest for image in remote.images if image.digest not in in_some | kept.keys())
    for digest in orphans:
        if now - seen.get(digest, now) < policy.older:
            kept[digest] = "in no release, and perhaps about to be in one"
    _keep_images(remote, kept)
    verdicts = [Verdict(" ".join(one.tags), one.digest, kept.get(one.digest, "")) for one in releases]
    verdicts += [
        Verdict(" ".join(image.tags) or f"{image.layer} {image.digest[7:19]}", image.digest, kept.get(image.digest, ""))
        for image in sorted(remote.images, key=lambda image: (image.layer, image.tags, image.digest))
    ]
    blobs = {digest: size for image in remote.images for digest, size in image.blobs.items()}
    staying = {digest for image in remote.images if image.digest in kept for digest in image.blobs}
    lost = sum(size for digest, size in blobs.items() if digest not in staying)
    return Plan(tuple(verdicts), sum(blobs.values()), lost, orphans)


def _keep_images(remote: Remote, kept: dict[str, str]) -> None:
    """Keep what kept releases hold, and what kept images are made of."""
    by_key = {(image.layer, image.key): image for image in remote.images}
    for one in remote.releases:
        if one.digest in kept:
            for digest in one.images:
                kept.setdefault(digest, f"in {min(one.tags, key=len) if one.tags else one.digest[:19]}")
    for image in remote.images:
        if image.digest in remote.others or any(not _of_key(tag, image) for tag in image.tags):
            kept.setdefault(image.digest, "something else refers to it")
    queue = [image for image in remote.images if image.digest in kept]
    while queue:
        image = queue.pop()
        for name, key in image.parents.items():
            below = by_key.get((name, key))
            if below is not None and below.digest not in kept:
                kept[below.digest] = f"{image.layer} is made of it"
                queue.append(below)


def _of_day(tag: str, target: str) -> bool:
    """Whether a tag is the name of a day, which every push gives to its release."""
    return tag.startswith(f"{target}-") and _DAY.fullmatch(tag.removeprefix(f"{target}-")) is not None


def _of_key(tag: str, image: Image) -> bool:
    """Whether a tag is the name that every push gives to an image."""
    return tag.startswith(f"{image.layer}-") and tag.endswith(f"-{image.key[: names.KEY_DIGITS]}")


def carry_out(registry: Registry, going: Sequence[Verdict]) -> int:
    """Remove manifests, releases first, and what is attached to them; returns how many of `going` there were.

    The bytes go when the registry next collects its garbage. Raises RegistryError where it does not delete.
    """
    removed = 0
    for verdict in going:
        attached = [row.digest for row in referrers.attached(registry, verdict.digest)]
        removed += registry.delete(verdict.digest)
        fallback = registry.manifest(referrers.tag(verdict.digest))
        for digest in [*attached, *([fallback.digest] if fallback else [])]:
            registry.delete(digest)
    return removed


def plan(registry: Registry, policy: Policy, now: float, file: Path) -> Plan:
    """Look, and touch nothing but `file`, which remembers what is in no release. Raises RegistryError."""
    remote = read(registry)
    seen = since(file, decide(remote, policy, now, {}).orphans, now)
    return decide(remote, policy, now, seen)


def since(file: Path, orphans: frozenset[str], now: float) -> dict[str, float]:
    """Since when each of these is in no release, as this file remembers; it is written anew with them alone."""
    try:
        held = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        held = {}
    known = held if isinstance(held, dict) else {}
    found = {digest: float(known[digest]) if _number(known.get(digest)) else now for digest in sorted(orphans)}
    file.parent.mkdir(parents=True, exist_ok=True)
    leftovers.write(file, json.dumps(found, indent=1) + "\n")
    return found


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _time(text: str) -> float:
    """Seconds since 1970; 0 for what is no time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
