"""in-toto statements: what is said of an image, as bytes that follow from their content alone.

Formats: https://github.com/in-toto/attestation (Statement v1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD = "application/vnd.in-toto+json"
BILL = "https://cyclonedx.org/bom"
PROVENANCE = "https://slsa.dev/provenance/v1"


@dataclass(frozen=True, slots=True)
class Statement:
    """`subjects`: name → "sha256:…". `kind` is the predicate's type."""

    subjects: Mapping[str, str]
    kind: str
    predicate: Mapping[str, Any]

    @property
    def payload(self) -> bytes:
        document = {
            "_type": TYPE,
            "subject": [
                {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
                for name, digest in sorted(self.subjects.items())
            ],
            "predicateType": self.kind,
            "predicate": self.predicate,
        }
        return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def read(payload: bytes) -> Statement:
    """Raises ValueError with a few words for anything but a whole statement."""
    try:
        document = json.loads(payload)
        if document["_type"] != TYPE:
            raise KeyError("_type")
        subjects = {str(row["name"]): f"sha256:{row['digest']['sha256']}" for row in document["subject"]}
        kind, predicate = document["predicateType"], document["predicate"]
        if not isinstance(kind, str) or not isinstance(predicate, dict):
            raise TypeError("predicate")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("it is no in-toto statement") from None
    return Statement(subjects, kind, predicate)
