"""The configuration of an image in bytes that follow from what the image is: no clock, no builder, no chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from strix_finetune.oci.descriptor import canonical

# what a container is started with; everything else in an engine's configuration says how it was built
_KEPT = ("User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "StopSignal")
# buildah's version is in every image that it makes
_FOREIGN_LABELS = ("io.buildah.", "io.podman.")


def iso(epoch: int) -> str:
    """Seconds since 1970 as the specification writes times."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def labels(raw: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an image's configuration that its definition made."""
    found = (raw.get("config") or {}).get("Labels") or {}
    return {name: value for name, value in sorted(found.items()) if not name.startswith(_FOREIGN_LABELS)}


def config(raw: Mapping[str, Any], layers: Sequence[tuple[str, str]], epoch: int) -> bytes:
    """The configuration of the same image in other layers: `layers` is (diff id, what made it), lowest first."""
    said: Mapping[str, Any] = raw.get("config") or {}
    kept: dict[str, Any] = {name: said[name] for name in _KEPT if said.get(name)}
    # BuildKit says "/" where buildah says nothing, and means the same
    if kept.get("WorkingDir") == "/":
        del kept["WorkingDir"]
    if found := labels(raw):
        kept["Labels"] = found
    created = iso(epoch)
    return canonical(
        {
            "architecture": raw.get("architecture") or "amd64",
            "os": raw.get("os") or "linux",
            "created": created,
            "config": kept,
            "rootfs": {"type": "layers", "diff_ids": [diff_id for diff_id, _ in layers]},
            "history": [{"created": created, "created_by": by} for _, by in layers],
        }
    )
