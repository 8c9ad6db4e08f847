"""How an image came to be: its lock, what its key is made of, and its smoke tests, as SLSA provenance.

Format: https://slsa.dev/spec/v1.0/provenance. The only time in it is the one at which the smoke tests were done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strix_finetune.key import PLATFORM, key_of, recorded
from strix_finetune.lockmodel import Lock
from strix_finetune.supply.model import purl
from strix_finetune.supply.subject import Known
from strix_finetune.tested import Record

BUILD_TYPE = "urn:strix-finetune:layer:1"
BUILDER = "urn:strix-finetune:driver"
LOCK = "lock"


def predicate(known: Known, layer: str, record: Record, tool: str) -> dict[str, Any]:
    """What the statement says. `tool` is this program's version; `record`: the results of the image's smoke tests."""
    stack = known.workspace.stack
    made = known.layer(layer)
    metadata = {"finishedOn": record.finished} if record.finished else {}
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "layer": layer,
                "target": stack.target.id,
                "channel": stack.channel.name,
                "platform": PLATFORM,
            },
            "internalParameters": {
                "key": made.key,
                "parts": dict(made.parts),
                "layers": {name: known.layer(name).inputs for name in sorted(_needed(known, layer))},
            },
            "resolvedDependencies": list(dependencies(known)),
        },
        "runDetails": {
            "builder": {"id": BUILDER, "version": {"strix-finetune": tool}},
            "metadata": metadata,
            "byproducts": [
                {
                    "name": f"smoke test {name}",
                    "annotations": {
                        "kind": kind,
                        "state": state,
                        "detail": detail,
                        "test": record.tests.get(name, ""),
                    },
                }
                for name, (kind, state, detail) in sorted(record.results.items())
            ],
        },
    }


def _needed(known: Known, layer: str) -> set[str]:
    """The layer and everything that it is made of, builders included."""
    found, queue = {layer}, [layer]
    while queue:
        for name in known.workspace.stack.node(queue.pop()).needs:
            if name not in found:
                found.add(name)
                queue.append(name)
    return found


def dependencies(known: Known) -> Iterator[dict[str, Any]]:
    """The lock, and every outside input that it names with a digest."""
    from strix_finetune.vendor.plan import lock_digest

    lock = known.lock
    yield {"name": LOCK, "digest": {"sha256": lock_digest(lock)}}
    yield from (_dependency(*row) for row in _inputs(lock))
    archives = {
        (archive.url, archive.sha256)
        for layer in known.layers
        for name, archive in layer.layer.node.archives.items()
        if f"archive {name}" in layer.layer.inputs
    }
    yield from (_dependency(url, url, sha256) for url, sha256 in sorted(archives))


def _inputs(lock: Lock) -> Iterator[tuple[str, str, str]]:
    """(name, address, sha256)."""
    for suite, release in sorted(lock.apt.releases.items()):
        yield f"Release of {suite}", "", release.sha256
    for name, package in sorted(lock.apt.packages.items()):
        yield name, purl("deb/debian", name, package.version), package.sha256
    for _, pip in sorted(lock.pip.items()):
        for (name, version), hashes in sorted(pip.files.items()):
            for sha256 in sorted(hashes):
                yield name, purl("pypi", name, version), sha256
    for _, wheels in sorted(lock.wheels.items()):
        for wheel in sorted(wheels.wheels, key=lambda wheel: wheel.name):
            yield wheel.name, wheel.url, wheel.sha256
    for name, digest in sorted(lock.images.items()):
        yield name, f"docker://{name}", digest.removeprefix("sha256:")


def _dependency(name: str, uri: str, sha256: str) -> dict[str, Any]:
    return {"name": name, **({"uri": uri} if uri else {}), "digest": {"sha256": sha256}}


@dataclass(frozen=True, slots=True)
class Said:
    """What a provenance says, taken apart. `layers`: name → the record of its key; `smoke`: test → (kind, state)."""

    layer: str
    target: str
    channel: str
    key: str
    parts: Mapping[str, str]
    layers: Mapping[str, str]
    lock: str
    dependencies: tuple[Mapping[str, Any], ...]
    smoke: Mapping[str, tuple[str, str]]


def read(document: Mapping[str, Any]) -> Said:
    """Raises ValueError with a few words for anything but a provenance of this project."""
    try:
        definition, run = document["buildDefinition"], document["runDetails"]
        given, inner = definition["externalParameters"], definition["internalParameters"]
        if definition["buildType"] != BUILD_TYPE:
            raise ValueError("it is of another kind of build")
        found = tuple(definition["resolvedDependencies"])
        locks = [row["digest"]["sha256"] for row in found if row["name"] == LOCK]
        smoke = {
            row["name"].removeprefix("smoke test "): (row["annotations"]["kind"], row["annotations"]["state"])
            for row in run["byproducts"]
        }
        return Said(
            given["layer"],
            given["target"],
            given["channel"],
            inner["key"],
            dict(inner["parts"]),
            dict(inner["layers"]),
            locks[0],
            found,
            smoke,
        )
    except (KeyError, TypeError, AttributeError, IndexError):
        raise ValueError("it is no provenance of this project") from None


def finished(document: Mapping[str, Any]) -> str:
    """When the tests were done, as far as it says: of two statements of one key the later one counts."""
    try:
        return str(document["runDetails"]["metadata"]["finishedOn"])
    except (KeyError, TypeError):
        return ""


def keys(layers: Mapping[str, str]) -> dict[str, str]:
    """Layer → its key, made again from the records. Raises ValueError where they do not fit together."""
    found = {name: key_of(text) for name, text in layers.items()}
    for name, text in layers.items():
        called, _ = recorded(text)
        if called != name:
            raise ValueError(f"the record of '{name}' is that of '{called}'")
        for parent, key in json.loads(text)["parents"].items():
            if found.get(parent) != key:
                raise ValueError(f"'{name}' is made of another '{parent}' than the one that is recorded")
    return found
