"""Keys: the user's own to sign with, and the public ones that are trusted, in the user's config folder.

`signing.key` (PKCS #8, mode 0600) and `signing.pub` are made at the first signature; `trusted/*.pub` are those of
other people. All public keys are PEM files, as cosign and openssl read and write them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune import leftovers
from strix_finetune.errors import InputError, Place, Problem

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

OWN = "signing.key"
OWN_PUBLIC = "signing.pub"
TRUSTED = "trusted"
COSIGN = "cosign.key"
COSIGN_PUBLIC = "cosign.pub"
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----")
# what stands before the 32 bytes of an ed25519 key (RFC 8410): such a key needs no library to be read
_ED25519 = bytes.fromhex("302a300506032b6570032100")
_EXTRA = "install it: pip install 'securesystemslib[crypto]', or strix-finetune with its extra 'sign'"


@dataclass(frozen=True, slots=True)
class Trusted:
    """A public key and the file that it is in."""

    key: SSlibKey
    path: Path

    @property
    def shown(self) -> str:
        return f"{self.key.keyid[:12]} ({self.path.name})"


def own(folder: Path) -> CryptoSigner:
    """The user's own key, made now where there is none. Raises InputError where it cannot be used."""
    path = folder / OWN
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
        from securesystemslib.signer import CryptoSigner
    except ImportError:
        raise InputError("signing needs a library that is not installed", cure=_EXTRA) from None
    if not path.exists():
        _make(folder)
    if path.stat().st_mode & 0o077:
        raise InputError(Problem("others may read this private key", Place(path), f"chmod 600 {path}"))
    try:
        private = load_pem_private_key(path.read_bytes(), None)
        text = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        signer = CryptoSigner(private, public(text, path))
    except (ValueError, TypeError) as error:
        raise InputError(Problem(f"this is no private key to sign with: {error}", Place(path))) from None
    if not (folder / OWN_PUBLIC).exists():
        leftovers.write(folder / OWN_PUBLIC, text.encode(), 0o644)
    return signer


def _make(folder: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = Ed25519PrivateKey.generate()
    leftovers.write(folder / OWN, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def public(text: str, path: Path) -> SSlibKey:
    """A PEM public key. Its id is the sha256 of the key itself, whatever the file is called.

    Raises InputError for anything else, and where it needs a library that is not installed.
    """
    from securesystemslib.signer import SSlibKey

    found = _PEM.search(text)
    try:
        der = base64.b64decode("".join(found[1].split()), validate=True) if found else b""
    except binascii.Error:
        der = b""
    if not der:
        raise InputError(Problem("this is no public key in PEM form", Place(path)))
    keyid = hashlib.sha256(der).hexdigest()
    if der.startswith(_ED25519) and len(der) == len(_ED25519) + 32:
        return SSlibKey(keyid, "ed25519", "ed25519", {"public": der[len(_ED25519) :].hex()})
    try:
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        return SSlibKey.from_crypto(load_pem_public_key(text.encode()), keyid)
    except ImportError:
        raise InputError(
            Problem("this kind of key needs a library that is not installed", Place(path), _EXTRA)
        ) from None
    except ValueError as error:
        raise InputError(Problem(f"this key is of no kind that can be used: {error}", Place(path))) from None


def trusted(folder: Path, given: Sequence[Path] = ()) -> tuple[Trusted, ...]:
    """The keys that signatures may be of: those given, else the user's own and what lies in trusted/."""
    paths = list(given) or list(_here(folder))
    return tuple(Trusted(public(_read(path), path), path) for path in paths)


def _here(folder: Path) -> Iterator[Path]:
    for name in (OWN_PUBLIC, COSIGN_PUBLIC):
        if (folder / name).is_file():
            yield folder / name
    yield from sorted((folder / TRUSTED).glob("*.pub"))


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except FileNotFoundError:
        raise InputError(Problem("there is no such key", Place(path))) from None
    except UnicodeDecodeError:
        raise InputError(Problem("this is no public key in PEM form", Place(path))) from None
