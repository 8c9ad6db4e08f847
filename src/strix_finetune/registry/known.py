"""Which repository of a registry is known to hold a blob: it can be mounted from there instead of sent.

A hint, no more: a registry that does not have it there, or does not give it to us, lets us send it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

from strix_finetune import leftovers
from strix_finetune.registry.repository import Repository

# blobs that are remembered of one registry, the youngest
_KEPT = 2000


class Known:
    """What was pushed to a registry from here, in a file of the user's state folder."""

    def __init__(self, state: Path, repository: Repository) -> None:
        self._path = state / "registries" / f"{repository.host.replace(':', '_')}.json"
        self._repository = repository.path
        self._lock = threading.Lock()
        self._held = self._read()

    def elsewhere(self, digest: str) -> str:
        """The path of another repository that has the blob; empty where none is known."""
        found = self._held.get(digest, "")
        return found if found != self._repository else ""

    def add(self, digest: str) -> None:
        with self._lock:
            self._held.pop(digest, None)
            self._held[digest] = self._repository

    def save(self) -> None:
        """A hint that cannot be written is no fault."""
        with self._lock:
            rows = dict(list(self._held.items())[-_KEPT:])
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            leftovers.write(self._path, json.dumps(rows, indent=0) + "\n")

    def _read(self) -> dict[str, str]:
        try:
            value = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        rows = value.items() if isinstance(value, dict) else ()
        return {digest: path for digest, path in rows if isinstance(path, str)}
