"""Whether somebody whom the user trusts has signed the very image that a registry offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strix_finetune.errors import Problem
from strix_finetune.registry.client import Registry
from strix_finetune.registry.faults import Untrusted
from strix_finetune.registry.release import Offer

if TYPE_CHECKING:
    from strix_finetune.supply.keyring import Trusted


def check_signed(registry: Registry, offer: Offer, place: str, keys: Sequence[Trusted]) -> str:
    """The key that signed a statement about the digests of the image and its configuration, as people know it.

    What others attach changes nothing. Raises Untrusted where no trusted key has signed.
    """
    from strix_finetune.supply import attached, envelope

    wanted = {offer.manifest.digest, offer.config.digest}
    for line in attached.fetch(registry, offer.manifest.digest):
        try:
            found = envelope.read(line, keys)
        except ValueError:
            continue
        if found.by and wanted <= set(found.statement.subjects.values()):
            return found.by[0].shown
    cure = "lay the public key of who signs it into ~/.config/strix-finetune/trusted/, or have it signed"
    raise Untrusted(Problem(f"{place} is not signed by a key that is trusted here", cure=cure))
