"""Signed statements about an image: each thing is changed in turn, and exactly the check of that thing must see it."""

from __future__ import annotations

import base64
import copy
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from strix_finetune import lockfile, names, tested
from strix_finetune.errors import InputError, WorkError
from strix_finetune.events import SmokeResult
from strix_finetune.lockmodel import AptLock, AptPackage, Lock, PipLock, Release
from strix_finetune.supply import attest, keyring, provenance, statement
from strix_finetune.supply.envelope import Signer, sign
from strix_finetune.supply.keyring import Trusted
from strix_finetune.supply.statement import Statement
from strix_finetune.supply.subject import Known, Subject
from strix_finetune.supply.verify import Check, verify
from strix_finetune.workspace import Workspace, locked
from tests.conftest import Images
from tests.unit.supply_images import VENV, Store, base, metadata, top

CHECKS = ("signature", "digest", "key", "contents", "provenance", "smoke")
REF = "localhost/strix-finetune:cpu"
LOCK = Lock(
    "debian",
    "cpu",
    AptLock("sid", {"sid": Release("2026-10-30T08:08:01Z", "6" * 64)}, {"bash": AptPackage("5.3-4", 10, "7" * 64)}),
    pip={"app": PipLock("3.14", f"unsloth==2026.10.9 --hash=sha256:{'3' * 64}\n", "8" * 64)},
)


@dataclass
class Site:
    """An image as it would lie in a store, what is known of how it was made, and keys."""

    store: Store
    known: Known
    home: Path

    @property
    def subject(self) -> Subject:
        return Subject(REF, self.store.held, self.known)

    @property
    def keys(self) -> tuple[Trusted, ...]:
        return keyring.trusted(self.home)

    @property
    def signer(self) -> Signer:
        return keyring.own(self.home)

    def statements(self) -> tuple[Statement, Statement]:
        return attest.statements(self.store.engine, self.subject, attest.local(self.subject))

    def sign(self) -> list[bytes]:
        return attest.envelopes(self.statements(), self.signer)

    def check(self, lines: list[bytes], **changes: Any) -> tuple[Check, ...]:
        subject = replace(self.subject, **changes)
        return verify(self.store.engine, subject, lines, self.keys)

    def failing(self, lines: list[bytes], **changes: Any) -> list[str]:
        found = self.check(lines, **changes)
        assert tuple(check.name for check in found) == CHECKS
        assert all(check.said for check in found)
        return [check.name for check in found if not check.holds]


SMOKE = '[[smoke]]\nfile = "smoke/{}.sh"\nkind = "{}"\n'


@pytest.fixture
def site(images: Images, tmp_path: Path) -> Site:
    images.layer("base", 'packages = { rootfs = ["bash"] }\n', "FROM scratch\nADD {{ rootfs }} /\n")
    images.layer(
        "finetune",
        'parent = ["base"]\nfinal = true\npip = { app = { requirements = ["unsloth"] } }\n'
        + SMOKE.format("own", "static")
        + SMOKE.format("gpu", "device"),
        "FROM {{ parent }}\nCOPY {{ pip('app') }} /r.txt\n",
    )
    for name in ("own", "gpu"):
        images.write(f"images/finetune/smoke/{name}.sh", "#!/bin/sh\n", executable=True)
    lockfile.save(LOCK, images.path / "locks")
    return make(images, tmp_path)


def make(images: Images, home: Path) -> Site:
    project, stack = images.load(), images.stack("cpu")
    workspace = Workspace(images.folders, project, stack)
    layers = tuple(images.render("cpu", locked=locked(LOCK)).values())
    known = Known(workspace, LOCK, layers)
    layer = known.layer("finetune")
    store = Store()
    store.labels |= {
        names.KEY: layer.key,
        names.PARTS: json.dumps(dict(layer.parts)),
        names.TESTS: tested.label(tested.digests(stack, "finetune")),
    }
    site = Site(store, known, home / "config")
    results = (
        SmokeResult("finetune", "finetune/own.sh", "static", "passed", "fine"),
        SmokeResult("finetune", "finetune/gpu.sh", "device", "not-run", "no GPU"),
    )
    tested.record(images.folders.state, stack, layer, store.id, results)
    return site


def resigned(site: Site, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> list[bytes]:
    """The statements with their predicates (bill, provenance) changed, signed by the right key all the same."""
    bill, made = site.statements()
    predicates = copy.deepcopy((dict(bill.predicate), dict(made.predicate)))
    change(*predicates)
    changed = [replace(one, predicate=new) for one, new in zip((bill, made), predicates, strict=True)]
    return [sign(one, site.signer) for one in changed]


def test_what_was_signed_holds(site: Site) -> None:
    lines = site.sign()
    assert site.failing(lines) == []
    said = {check.name: check.said for check in site.check(lines)}
    assert said["smoke"] == "1 passed, 1 need a GPU and were not run"
    assert said["key"].endswith("follows from the recorded parts of 2 layers")
    assert "is the one here, with 3 inputs" in said["provenance"]


def test_statements_are_the_same_each_time(site: Site) -> None:
    # ed25519 signatures are, too
    assert site.sign() == site.sign()


def test_an_image_without_statements_holds_nothing(site: Site) -> None:
    assert site.failing([]) == list(CHECKS)


def test_a_changed_statement_is_no_longer_signed(site: Site) -> None:
    first, second = site.sign()
    envelope = json.loads(first)
    payload = base64.b64decode(envelope["payload"]).replace(b'"5.3-4"', b'"5.3-9"')
    envelope["payload"] = base64.b64encode(payload).decode()
    found = site.check([json.dumps(envelope).encode(), second])
    assert found[0] == Check("signature", False, "what is signed was changed afterwards")


def test_a_key_that_nobody_trusts(site: Site, tmp_path: Path) -> None:
    other = keyring.own(tmp_path / "other")
    lines = [sign(one, other) for one in site.statements()]
    site.signer  # noqa: B018 (makes the key that is trusted)
    assert site.failing(lines) == ["signature"]
    # one of them is not enough
    assert site.failing([sign(site.statements()[0], site.signer), lines[1]]) == ["signature"]


def test_two_keys_that_are_trusted_but_sign_one_statement_each(site: Site, tmp_path: Path) -> None:
    other = keyring.own(tmp_path / "other")
    bill, made = site.statements()
    lines = [sign(bill, site.signer), sign(made, other)]
    trusted = keyring.trusted(site.home, [site.home / keyring.OWN_PUBLIC, tmp_path / "other" / keyring.OWN_PUBLIC])
    [first, *_] = verify(site.store.engine, site.subject, lines, trusted)
    assert first.said == "the statements are signed by different keys"


def test_a_missing_statement(site: Site) -> None:
    bill, made = site.sign()
    assert "signature" in site.failing([bill])
    assert {"signature", "contents"} <= set(site.failing([made]))
    assert "signature" in site.failing([bill, b"{}"])


def test_what_others_attach_makes_nothing_worse(site: Site, tmp_path: Path) -> None:
    lines = site.sign()
    other = keyring.own(tmp_path / "other")
    wrong = [sign(replace(one, subjects={"x": "sha256:" + "d" * 64}), other) for one in site.statements()]
    assert site.failing([*wrong, b"{}", *lines]) == []
    assert site.check([*wrong, b"{}", *lines])[0].said.endswith("; 3 more that do not count")
    assert site.failing([b"{}", *lines]) == []
    # nor does what another trusted key says of another image
    trusted = keyring.trusted(site.home, [tmp_path / "other" / keyring.OWN_PUBLIC, site.home / keyring.OWN_PUBLIC])
    found = verify(site.store.engine, site.subject, [*wrong, *lines], trusted)
    assert [check.name for check in found if not check.holds] == []


def test_the_last_word_of_a_key_counts(site: Site) -> None:
    def late(bill: dict[str, Any], made: dict[str, Any]) -> None:
        made["runDetails"]["metadata"]["finishedOn"] = "2099-01-01T00:00:00Z"
        made["runDetails"]["byproducts"][1]["annotations"]["state"] = "failed"

    def early(bill: dict[str, Any], made: dict[str, Any]) -> None:
        late(bill, made)
        made["runDetails"]["metadata"]["finishedOn"] = "1999-01-01T00:00:00Z"

    assert site.failing([*site.sign(), *resigned(site, early)]) == []
    assert site.failing([*resigned(site, late), *site.sign()]) == ["smoke"]


def test_an_image_that_is_another(site: Site) -> None:
    lines = site.sign()
    # the layers are others, though nothing that is installed is
    site.store.layers = [base(), {**top(), "etc/motd": b"hello"}]
    assert site.failing(lines) == ["digest"]


def test_a_package_more_in_the_image(site: Site) -> None:
    lines = site.sign()
    site.store.layers = [base(), {**top(), f"{VENV}/evil-1.dist-info/METADATA": metadata("evil", "1")}]
    assert site.failing(lines) == ["digest", "contents"]


def test_a_file_under_the_agpl_more_in_the_image(site: Site) -> None:
    lines = site.sign()
    site.store.layers = [base(), {**top(), f"{VENV}/unsloth/more.py": b"# SPDX-License-Identifier: AGPL-3.0-only\n"}]
    assert site.failing(lines) == ["digest", "contents"]


@pytest.mark.parametrize(
    ("label", "value", "checks"),
    [
        (names.KEY, "f" * 64, ["digest", "key"]),
        (names.PARTS, '{"apt bash":"1"}', ["digest", "key"]),
        (names.TARGET, "gfx1151", ["digest", "key"]),
        (names.CHANNEL, "amd", ["digest", "key"]),
        (names.TESTS, '{"finetune/unheard.sh":"1"}', ["digest", "smoke"]),
        (names.TESTS, "[]", ["digest", "smoke"]),
    ],
)
def test_a_changed_label(site: Site, label: str, value: str, checks: list[str]) -> None:
    lines = site.sign()
    site.store.labels[label] = value
    assert site.failing(lines) == checks


def _bill(bill: dict[str, Any], made: dict[str, Any]) -> None:
    bill["components"][0]["version"] = "other"


def _bill_misses(bill: dict[str, Any], made: dict[str, Any]) -> None:
    del bill["components"][-1]


def _key(bill: dict[str, Any], made: dict[str, Any]) -> None:
    made["buildDefinition"]["internalParameters"]["key"] = "e" * 64


def _record(bill: dict[str, Any], made: dict[str, Any]) -> None:
    layers = made["buildDefinition"]["internalParameters"]["layers"]
    layers["base"] = layers["base"].replace("5.3-4", "5.3-5")


def _dependency(bill: dict[str, Any], made: dict[str, Any]) -> None:
    made["buildDefinition"]["resolvedDependencies"][2]["digest"]["sha256"] = "e" * 64


def _failed(bill: dict[str, Any], made: dict[str, Any]) -> None:
    made["runDetails"]["byproducts"][1]["annotations"]["state"] = "failed"


def _untested(bill: dict[str, Any], made: dict[str, Any]) -> None:
    made["runDetails"]["byproducts"].clear()


def _other_build(bill: dict[str, Any], made: dict[str, Any]) -> None:
    made["buildDefinition"]["buildType"] = "urn:other"


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (_bill, ["contents"]),
        (_bill_misses, ["contents"]),
        (_key, ["key"]),
        (_record, ["key"]),
        (_dependency, ["provenance"]),
        (_failed, ["smoke"]),
        (_untested, ["smoke"]),
        (_other_build, ["key", "provenance", "smoke"]),
    ],
)
def test_a_statement_that_is_wrong_and_signed(site: Site, change: Any, checks: list[str]) -> None:
    assert site.failing(resigned(site, change)) == checks


def test_a_test_that_could_not_show_anything_is_told_as_that(site: Site) -> None:
    def change(bill: dict[str, Any], made: dict[str, Any]) -> None:
        made["runDetails"]["byproducts"][1]["annotations"]["state"] = "not-run"

    [*_, smoke] = site.check(resigned(site, change))
    assert smoke == Check("smoke", True, "0 passed, 1 need a GPU and were not run, 1 could not show anything")


def test_statements_of_another_image_with_the_right_key(site: Site) -> None:
    bill, made = site.statements()
    other = {REF: "sha256:" + "d" * 64}
    assert site.failing([sign(replace(one, subjects=other), site.signer) for one in (bill, made)]) == ["digest"]
    assert site.failing([sign(bill, site.signer), sign(replace(made, subjects=other), site.signer)]) == ["digest"]


def test_without_the_definitions_it_is_checked_all_the_same(site: Site) -> None:
    lines = site.sign()
    assert site.failing(lines, known=None, unknown="there is no lock here") == []
    said = {check.name: check.said for check in site.check(lines, known=None, unknown="there is no lock here")}
    assert "not compared with a lock, since there is no lock here" in said["contents"]
    site.store.layers = [base(), {f"{VENV}/evil-1.dist-info/METADATA": metadata("evil", "1")}]
    assert site.failing(lines, known=None, unknown="there is no lock here") == ["digest", "contents"]


def test_another_lock_that_gives_the_same_key_is_told(site: Site) -> None:
    lines = site.sign()
    more = replace(LOCK, images={"docker.io/library/debian:sid": "sha256:" + "1" * 64})
    said = {check.name: check for check in site.check(lines, known=replace(site.known, lock=more))}
    assert said["provenance"].holds
    assert "gives the same key" in said["provenance"].said


def test_only_what_is_known_and_tested_is_signed(site: Site, images: Images) -> None:
    engine = site.store.engine
    unknown = replace(site.subject, known=None, unknown="of that")
    with pytest.raises(WorkError, match="nothing can be said of how"):
        attest.statements(engine, unknown, {})
    stack, layer = site.known.workspace.stack, site.known.layer("finetune")
    state = images.folders.state
    untested = replace(site.subject, image=replace(site.subject.image, id="sha256:other"))
    with pytest.raises(WorkError, match=r"results of the smoke tests .* are not known here"):
        attest.statements(engine, untested, {})
    results = [SmokeResult("finetune", "finetune/own.sh", "static", "failed", "")]
    tested.record(state, stack, layer, site.store.id, results)
    with pytest.raises(WorkError, match=r"has not passed finetune/own\.sh"):
        attest.statements(engine, site.subject, {})


def test_an_image_that_is_not_what_its_lock_says_is_not_signed(site: Site) -> None:
    more = replace(LOCK.pip["app"], text=LOCK.pip["app"].text + f"trl==1.0 --hash=sha256:{'9' * 64}\n")
    known = replace(site.known, lock=replace(LOCK, pip={"app": more}))
    with pytest.raises(WorkError, match="trl is missing, locked is"):
        attest.statements(site.store.engine, replace(site.subject, known=known), {})


def test_the_provenance_names_every_input(site: Site) -> None:
    made = site.statements()[1].predicate
    found = made["buildDefinition"]["resolvedDependencies"]
    assert [row["name"] for row in found] == ["lock", "Release of sid", "bash", "unsloth"]
    assert found[2]["uri"] == "pkg:deb/debian/bash@5.3-4"
    assert provenance.keys(provenance.read(made).layers)["finetune"] == site.known.layer("finetune").key


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b"\xff", b'{"_type": "x"}', b"[" * 100000])
def test_what_is_no_statement_is_told(payload: bytes) -> None:
    with pytest.raises(ValueError, match="statement"):
        statement.read(payload)


def test_the_key_is_made_once_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "a/config"
    first = keyring.own(folder)
    assert (folder / keyring.OWN).stat().st_mode & 0o777 == 0o600
    assert keyring.own(folder).public_key == first.public_key
    assert [key.key for key in keyring.trusted(folder)] == [first.public_key]
    assert sorted(path.name for path in folder.iterdir()) == [keyring.OWN, keyring.OWN_PUBLIC]
    (folder / keyring.OWN_PUBLIC).unlink()
    keyring.own(folder)
    assert [key.key for key in keyring.trusted(folder)] == [first.public_key]
    (folder / keyring.OWN).chmod(0o640)
    with pytest.raises(InputError, match="others may read this private key"):
        keyring.own(folder)
    (folder / keyring.OWN).write_text("x")
    (folder / keyring.OWN).chmod(0o600)
    with pytest.raises(InputError, match="no private key to sign with"):
        keyring.own(folder)


def test_signing_without_its_library_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(InputError, match="needs a library that is not installed; install it: pip install"):
        keyring.own(tmp_path)
    assert not list(tmp_path.iterdir())


def test_public_keys_of_both_kinds(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = generate_private_key(SECP256R1()).public_key()
    text = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    found = keyring.public(text, tmp_path)
    assert (found.keytype, found.scheme) == ("ecdsa", "ecdsa-sha2-nistp256")
    for wrong in ("", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", text[:60]):
        with pytest.raises(InputError, match=r"public key|kind that can be used"):
            keyring.public(wrong, tmp_path)
    with pytest.raises(InputError, match="there is no such key"):
        keyring.trusted(tmp_path, [tmp_path / "missing.pub"])


def test_a_signature_is_checked_without_the_extra(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """securesystemslib alone must do for an ed25519 key: whoever pulls an image need not install more."""
    from securesystemslib.signer import _key

    lines = site.sign()
    monkeypatch.setattr(_key, "CRYPTO_IMPORT_ERROR", "it is not installed")
    assert site.failing(lines) == []
    wrong = resigned(site, _bill)
    envelope = json.loads(wrong[0])
    envelope["signatures"] = json.loads(lines[0])["signatures"]
    assert "signature" in site.failing([json.dumps(envelope).encode(), wrong[1]])
