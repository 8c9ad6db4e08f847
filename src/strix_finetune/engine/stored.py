"""What an engine's store holds beside this project's images, as far as it says what may be removed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strix_finetune.engine.base import Engine
from strix_finetune.engine.client import SdkEngine
from strix_finetune.engine.failures import engine_errors

_NOTHING = re.compile(
    r"^(?:/bin/sh -c )?(?:#\(nop\)\s+)?"
    r"(?:ARG|CMD|ENTRYPOINT|ENV|EXPOSE|HEALTHCHECK|LABEL|MAINTAINER|ONBUILD|SHELL|STOPSIGNAL|USER|VOLUME)\b"
)


@dataclass(frozen=True, slots=True)
class Stored:
    """An image. `created` in seconds since 1970; `layers`: digests of its unpacked layers, lowest first."""

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    size: int
    created: float
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """A container, running or not, and the image that it was made of."""

    image: str
    container: str


def images(engine: Engine) -> list[Stored]:
    """Every image but those that only a build's cache has. Raises EngineError."""
    api = _api(engine)
    found: dict[str, Stored] = {}
    with engine_errors("list images", engine.info.url):
        for record in api.images():
            identity = _sha256(record["Id"])
            tags = tuple(tag for tag in record.get("RepoTags") or () if tag not in ("<none>:<none>", "<none>"))
            if identity in found:
                # Podman lists an image once per name
                held = found[identity]
                tags = tuple(dict.fromkeys((*held.tags, *tags)))
                found[identity] = Stored(identity, tags, held.labels, held.size, held.created, held.layers)
                continue
            found[identity] = Stored(
                identity,
                tags,
                dict(record.get("Labels") or {}),
                int(record.get("Size") or 0),
                float(record.get("Created") or 0),
                tuple((api.inspect_image(identity).get("RootFS") or {}).get("Layers") or ()),
            )
    return list(found.values())


def uses(engine: Engine) -> list[Use]:
    """Every container, whoever made it: those of Toolbx and Distrobox are among them. Raises EngineError."""
    with engine_errors("list containers", engine.info.url):
        listed = _api(engine).containers(all=True)
    return [
        Use(_sha256(record.get("ImageID") or ""), (record.get("Names") or [record["Id"][:12]])[0].lstrip("/"))
        for record in listed
    ]


def layer_sizes(engine: Engine, image: Stored) -> list[int]:
    """Unpacked bytes of each layer, lowest first; their sum is right even where one that is empty is not told apart."""
    steps = list(reversed(engine.history(image.id)))
    held = [step.size for step in steps if step.size or not _NOTHING.match(step.created_by)]
    while len(held) > len(image.layers) and 0 in held:
        held.remove(0)
    return [0] * (len(image.layers) - len(held)) + held[len(held) - len(image.layers) :] if image.layers else []


def used(engine: Engine) -> int | None:
    """Bytes in use on the file system of the engine's store; None where that is not of this machine."""
    with engine_errors("ask where images are kept", engine.info.url):
        root = str(_api(engine).info().get("DockerRootDir") or "")
    return shutil.disk_usage(root).used if os.access(root, os.R_OK) else None


def _api(engine: Engine) -> Any:
    assert isinstance(engine, SdkEngine)
    return engine.api


def _sha256(identity: str) -> str:
    return identity if not identity or identity.startswith("sha256:") else f"sha256:{identity}"
