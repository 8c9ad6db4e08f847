"""Which smoke tests an image has passed. They are in no key: a test that changed is run again, nothing is rebuilt.

An image says in a label what it was tested with when its names moved. What was run on it since is recorded in the
user's state folder, with the results.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from strix_finetune import leftovers, names, smoke
from strix_finetune.engine.base import Image
from strix_finetune.events import SmokeResult
from strix_finetune.model import Keyed, Stack

# images of one key that a record remembers: both engines, and what was there before
_KEPT = 4

Tests = Mapping[str, str]


def digests(stack: Stack, layer: str) -> dict[str, str]:
    """Name of each smoke test of a layer → what it is: 12 digits over its kind and its script."""
    return {
        test.name: hashlib.sha256(f"{test.spec.kind}\0".encode() + test.file.read_bytes()).hexdigest()[:12]
        for test in smoke.tests_for(stack, layer)
    }


def label(tests: Tests) -> str:
    """The value of the label that an image is built with."""
    return json.dumps(dict(tests), sort_keys=True, separators=(",", ":"))


def known(state: Path, stack: Stack, layers: Iterable[Keyed], images: Iterable[Image]) -> dict[str, Tests]:
    """Image id → the tests that it passed, where that is known, of the images that these layers may be."""
    by_name = {tag: image for image in images for tag in image.tags}
    found: dict[str, Tests] = {}
    for layer in layers:
        image = by_name.get(names.layer_ref(layer.name, stack.target.id, layer.key))
        if image is None:
            continue
        passed = _tests(_read(_path(state, stack, layer)).get("images", {}), image.id)
        if passed is None:
            passed = tests_of(image.labels)
        if passed is not None:
            found[image.id] = passed
    return found


def tests_of(labels: Mapping[str, str]) -> Tests | None:
    """The tests that an image had passed when its names moved, by its label; None where that does not say it."""
    with contextlib.suppress(ValueError, RecursionError):
        return _tests({"label": json.loads(labels.get(names.TESTS, "null"))}, "label")
    return None


def device_state(state: Path, stack: Stack, layer: Keyed, image: str) -> str:
    """What the tests that need a GPU said of an image: `passed`, `failed`, `not-run`, or `none` where it has none."""
    held = _read(_path(state, stack, layer))
    images, rows = held.get("images"), held.get("device")
    if not isinstance(images, dict) or list(images)[-1:] != [image] or not isinstance(rows, list):
        # the results are those of the image that was tested last
        wanted = any(test.spec.kind == "device" for test in smoke.tests_for(stack, layer.name))
        return "not-run" if wanted else "none"
    states = {row.get("state") for row in rows if isinstance(row, dict)}
    return next((word for word in ("failed", "not-run", "passed") if word in states), "none")


def record(state: Path, stack: Stack, layer: Keyed, image: str, results: Iterable[SmokeResult]) -> None:
    """Write down that an image passed its tests, and what each said; what needs a GPU apart from what does not."""
    path = _path(state, stack, layer)
    path.parent.mkdir(parents=True, exist_ok=True)
    held = _read(path).get("images", {})
    passed = {other: tests for other, tests in held.items() if other != image} if isinstance(held, dict) else {}
    passed = dict([*list(passed.items())[1 - _KEPT :], (image, digests(stack, layer.name))])
    content: dict[str, object] = {"layer": layer.name, "key": layer.key, "images": passed, "of": image}
    content["finished"] = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    results = tuple(results)
    for kind in ("static", "device"):
        content[kind] = [
            {"test": result.test, "state": result.state, "detail": result.detail}
            for result in results
            if result.kind == kind
        ]
    leftovers.write(path, json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class Record:
    """What the tests of one image said when they ran last, and when that was (ISO 8601, UTC; empty: not noted).

    `tests`: name → what each test is, of those that the image passed. `results`: name → kind, state and last words.
    """

    finished: str
    tests: Tests
    results: Mapping[str, tuple[str, str, str]]


def last(state: Path, stack: Stack, layer: Keyed, image: str) -> Record | None:
    """The record of an image, None where its tests were never run here or another image's ran since."""
    held = _read(_path(state, stack, layer))
    tests = _tests(held.get("images", {}), image)
    if tests is None or held.get("of", image) != image:
        return None
    results = {
        str(row.get("test")): (kind, str(row.get("state")), str(row.get("detail")))
        for kind in ("static", "device")
        for row in held.get(kind) or ()
        if isinstance(row, dict)
    }
    return Record(str(held.get("finished", "")), tests, results)


def _path(state: Path, stack: Stack, layer: Keyed) -> Path:
    return state / "smoke" / stack.target.id / f"{layer.name}-{layer.key[: names.KEY_DIGITS]}.json"


def _read(path: Path) -> dict[str, Any]:
    """A record, empty where there is none that can be read: then the tests are run once more."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _tests(by_image: object, image: str) -> Tests | None:
    found = by_image.get(image) if isinstance(by_image, dict) else None
    good = isinstance(found, dict) and all(isinstance(digest, str) for digest in found.values())
    return found if good else None
