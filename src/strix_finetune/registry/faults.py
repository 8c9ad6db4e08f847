"""What a registry may refuse, as errors of one sentence."""

from __future__ import annotations

import json

from strix_finetune.errors import WorkError

_LONGEST = 200


class RegistryError(WorkError):
    """A registry did not do what it was asked."""


class Unreachable(RegistryError):
    """It does not answer, or stopped to in the middle, and goes on not to."""


class Denied(RegistryError):
    """It does not let us: there is no login, or it is not enough."""


class Missing(RegistryError):
    """It does not have a blob, or has it no more."""


class Untrusted(RegistryError):
    """What it serves is not what it says it is. Nothing of it was kept."""


def words_of(body: bytes, status: int) -> str:
    """What the registry itself says of a refusal, on one line; the status where it says nothing."""
    try:
        first = json.loads(body)["errors"][0]
        text = str(first.get("message") or first.get("code") or "")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        text = ""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return f"{text[:_LONGEST]} (HTTP {status})" if text else f"HTTP {status}"
