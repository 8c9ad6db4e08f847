"""Only what somebody trusted has signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from strix_finetune.registry import pull
from strix_finetune.registry.faults import Untrusted
from strix_finetune.supply import attached, envelope, keyring
from strix_finetune.supply.statement import Statement
from tests.unit.registry.site import TARGET, Site, Store


def signed(site: Site, folder: Path, *digests: str) -> Path:
    """Attach a statement about digests to the final image, signed with the key of a folder; returns the public key."""
    signer = keyring.own(folder)
    said = Statement({str(number): digest for number, digest in enumerate(digests)}, "of a test", {})
    offer = pull.find(site.client, TARGET, TARGET).offer
    attached.attach(site.client, offer.manifest, [(said.kind, envelope.sign(said, signer))])
    return folder / keyring.OWN_PUBLIC


def test_only_what_a_trusted_key_has_signed(site: Site, tmp_path: Path) -> None:
    site.push()
    found = pull.find(site.client, TARGET, TARGET)
    engine, folder = Store(), site.images.root / "pulls"
    both = (found.offer.manifest.digest, found.offer.config.digest)
    mine = signed(site, tmp_path / "mine", *both)
    # who may write to a registry may attach what he likes
    signed(site, tmp_path / "theirs", *both)
    partly = signed(site, tmp_path / "partly", both[1], "sha256:" + "0" * 64)
    nobody = signed(site, tmp_path / "nobody")

    def pull_with(*files: Path) -> str:
        keys = keyring.trusted(tmp_path, files)
        return pull.pull(engine, site.client, found, TARGET, folder, site.events.append, keys).id

    for file in (partly, nobody):
        with pytest.raises(Untrusted, match="is not signed by a key that is trusted here"):
            pull_with(file)
    assert not engine.store
    assert pull_with(nobody, mine) == both[1]
    assert any("is signed by " in text and "signing.pub" in text for text in site.heard())


def test_a_build_takes_no_layer_that_nobody_trusted_signed(site: Site, tmp_path: Path) -> None:
    site.push()
    key = signed(site, tmp_path / "mine", "sha256:" + "0" * 64)
    engine = Store()
    source = site.source(engine)
    source.keys = keyring.trusted(tmp_path, [key])
    layer = site.keyed["app"]
    assert source.offers(layer)
    with (
        pytest.raises(Untrusted, match="is not signed"),
        source.take(layer, engine, site.events.append, lambda: None),
    ):
        pass
    assert not engine.store
