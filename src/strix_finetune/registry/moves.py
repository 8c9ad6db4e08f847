"""Blobs of one image on their way, with their progress as events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from strix_finetune.events import BlobProgress, Emit
from strix_finetune.oci.descriptor import Content, Descriptor
from strix_finetune.registry.client import Registry
from strix_finetune.registry.known import Known
from strix_finetune.registry.together import Check, together

# seconds between two events of one blob
_PACE = 0.2


def send(registry: Registry, blobs: Sequence[Content], layer: str, emit: Emit, known: Known, there: set[str]) -> int:
    """Make sure that the registry has all blobs; returns the bytes that were sent for it. Raises RegistryError.

    `there`: digests that need no question, because the registry has said so; what it has now is added.
    """

    def one(blob: Content, check: Check) -> int:
        what = blob.descriptor
        source = known.elsewhere(what.digest)
        how = registry.upload(blob, _progress(layer, what, emit, check), mount_from=source)
        known.add(what.digest)
        emit(BlobProgress(layer, what.digest, how, what.size, what.size))
        return what.size if how == "sent" else 0

    # the largest first: what comes last then leaves no thread idle for long
    asked = [blob for blob in blobs if blob.descriptor.digest not in there]
    sent = sum(together(sorted(asked, key=lambda blob: -blob.descriptor.size), one))
    there.update(blob.descriptor.digest for blob in asked)
    return sent


def receive(
    registry: Registry,
    wanted: Sequence[Descriptor],
    path: Callable[[Descriptor], Path],
    layer: str,
    emit: Emit,
    check: Check,
) -> int:
    """Fetch blobs into files, each checked; returns the bytes that they have. Raises RegistryError."""

    def one(what: Descriptor, going_on: Check) -> int:
        if not path(what).is_file():
            registry.download(what, path(what), _progress(layer, what, emit, going_on))
            emit(BlobProgress(layer, what.digest, "received", what.size, what.size))
        return what.size

    return sum(together(sorted(wanted, key=lambda what: -what.size), one, check=check))


def _progress(layer: str, what: Descriptor, emit: Emit, check: Check) -> Callable[[int], None]:
    last = time.monotonic()

    def progress(done: int) -> None:
        nonlocal last
        check()
        now = time.monotonic()
        if now - last >= _PACE:
            last = now
            emit(BlobProgress(layer, what.digest, "moving", done, what.size))

    return progress
