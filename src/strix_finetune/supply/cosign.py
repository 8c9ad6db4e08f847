"""Signing with cosign, where it is installed and has a key: offline, nothing goes to a public log.

cosign signs the same bytes as an own key does, and its signature goes into the same kind of envelope. How it is told
to stay offline differs from version to version, so its own help is asked which options it has.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strix_finetune.errors import InputError, Problem, WorkError

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

PROGRAM = "cosign"
# the first of them that there is says it all; version 2 knows the last alone, version 3 wants both of the others
_OFFLINE = (("--offline",), ("--use-signing-config=false", "--tlog-upload=false"), ("--tlog-upload=false",))


def program() -> str | None:
    return shutil.which(PROGRAM)


class CosignSigner:
    """Signs by `cosign sign-blob`. A password that the key needs is asked for, or taken from COSIGN_PASSWORD."""

    def __init__(self, key: Path, public_key: SSlibKey) -> None:
        self._key = key
        self.public_key = public_key

    def sign(self, payload: bytes) -> Any:
        """The signature of these bytes. Raises WorkError where cosign refuses."""
        from securesystemslib.signer import Signature

        found = program()
        if found is None:
            raise InputError(
                "cosign is not installed", cure="install it, or sign with your own key: leave --cosign out"
            )
        with tempfile.TemporaryDirectory(prefix="strix-finetune-") as folder:
            blob, bundle = Path(folder, "payload"), Path(folder, "bundle")
            blob.write_bytes(payload)
            command = argv(found, _options(found), self._key, blob, bundle)
            # what asks for a password must be seen
            errors = None if sys.stdin.isatty() and "COSIGN_PASSWORD" not in os.environ else subprocess.PIPE
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
            if done.returncode != 0 or not bundle.is_file():
                lines = [line for line in (done.stderr or "").splitlines() if line.strip()]
                said = lines[-1] if lines else f"exit status {done.returncode}"
                raise WorkError(Problem(f"cosign did not sign: {said}"))
            signature = signature_in(bundle.read_bytes())
        return Signature(self.public_key.keyid, signature.hex())


def argv(found: str, options: str, key: Path, blob: Path, bundle: Path) -> list[str]:
    """The command. `options`: the text of cosign's own help."""
    offline = next((words for words in _OFFLINE if all(word.partition("=")[0] in options for word in words)), None)
    if offline is None:
        raise InputError("this cosign cannot sign offline", cure="use version 2 or newer")
    return [found, "sign-blob", "--yes", *offline, "--key", str(key), "--bundle", str(bundle), str(blob)]


def _options(found: str) -> str:
    env = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run([found, "sign-blob", "--help"], capture_output=True, text=True, check=False, env=env)
    return done.stdout + done.stderr


def signature_in(bundle: bytes) -> bytes:
    """The signature in a bundle of either form: version 2's own, and Sigstore's."""
    try:
        held = json.loads(bundle)
        text = held.get("base64Signature") or held["messageSignature"]["signature"]
        return base64.b64decode(text, validate=True)
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        raise WorkError("the bundle that cosign wrote holds no signature") from None
