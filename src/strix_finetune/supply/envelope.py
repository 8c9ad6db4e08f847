"""Signed statements: DSSE envelopes, one a line in a file. Format: https://github.com/secure-systems-lab/dsse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strix_finetune.supply.keyring import Trusted
from strix_finetune.supply.statement import PAYLOAD, Statement
from strix_finetune.supply.statement import read as read_statement

MEDIA_TYPE = "application/vnd.dsse.envelope.v1+json"


class Signer(Protocol):
    """What signs: the user's own key, or cosign."""

    @property
    def public_key(self) -> Any: ...

    def sign(self, payload: bytes) -> Any: ...


@dataclass(frozen=True, slots=True)
class Signed:
    """A statement as it was found. `by`: the trusted keys whose signature is right; empty: nobody's that is trusted."""

    statement: Statement
    by: tuple[Trusted, ...]
    keyids: tuple[str, ...]


def sign(statement: Statement, signer: Signer) -> bytes:
    """The envelope, as one line of JSON."""
    from securesystemslib.dsse import Envelope

    made = Envelope(statement.payload, PAYLOAD, {})
    made.sign(signer)  # type: ignore[arg-type]  # only its sign() is called
    return json.dumps(made.to_dict(), sort_keys=True, separators=(",", ":")).encode()


def read(line: bytes, keys: Sequence[Trusted]) -> Signed:
    """Raises ValueError with a few words for anything but an envelope around a statement."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError

    try:
        envelope = Envelope.from_dict(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no signed envelope ({type(error).__name__})") from None
    if envelope.payload_type != PAYLOAD:
        raise ValueError("it holds something else than a statement")
    good = []
    for trusted in keys:
        signature = envelope.signatures.get(trusted.key.keyid)
        if signature is not None:
            try:
                trusted.key.verify_signature(signature, envelope.pae())
                good.append(trusted)
            except UnverifiedSignatureError:
                continue
    return Signed(read_statement(envelope.payload), tuple(good), tuple(envelope.signatures))
