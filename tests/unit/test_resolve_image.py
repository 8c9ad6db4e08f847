"""A registry is asked for a digest: what it says is the lock's, and what it refuses is a sentence."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from strix_finetune.errors import InputError, LockError
from strix_finetune.netconf import NetSettings
from strix_finetune.oci.descriptor import INDEX, digest_of
from strix_finetune.registry.faults import Denied, RegistryError, Unreachable
from strix_finetune.registry.repository import of_image
from strix_finetune.resolve.image import digest
from tests.unit.registry_double import ANYBODY, Double, double, times

MANIFEST = b'{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}'


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    with double() as made:
        made.manifests["library/debian", "sid"] = (INDEX, MANIFEST)
        yield made


def host(served: Double) -> str:
    return served.address.removeprefix("http://")


def ask(served: Double, name: str = "library/debian:sid") -> str:
    return digest(f"{host(served)}/{name}", NetSettings(), lambda text: None)


def test_an_open_registry(served: Double) -> None:
    assert ask(served) == digest_of(MANIFEST)
    assert served.log == ["GET /v2/library/debian/manifests/sid"]


def test_a_registry_that_wants_an_anonymous_token(served: Double) -> None:
    served.login = ANYBODY
    assert ask(served) == digest_of(MANIFEST)
    assert served.log[1] == "GET /token?service=double&scope=repository%3Alibrary%2Fdebian%3Apull"


def test_a_registry_that_lets_in_who_is_logged_in_with_the_engines(served: Double, tmp_path: Path) -> None:
    served.login = ("me", "secret")
    with pytest.raises(Denied, match=r"could not .*wrong password.*; log in: podman login 127"):
        ask(served)
    entry = {"auth": base64.b64encode(b"me:secret").decode()}
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {host(served): entry}}))
    assert ask(served) == digest_of(MANIFEST)


def test_what_a_registry_lacks_is_a_fault_of_the_channel(served: Double) -> None:
    with pytest.raises(LockError, match=r"has no image '127.*/debian:13'; check the name and the tag in the channel"):
        ask(served, "library/debian:13")


@pytest.mark.parametrize(("status", "kind"), [(403, Denied), (500, RegistryError)])
def test_refusals(served: Double, status: int, kind: type[Exception]) -> None:
    served.faults = [times(1, status)]
    with pytest.raises(kind, match=rf"could not read 127.*/library/debian:sid: as ordered \(HTTP {status}\)") as caught:
        ask(served)
    assert "\n" not in str(caught.value)


def test_no_registry_there() -> None:
    with pytest.raises(Unreachable, match=r"127.0.0.1:9 does not answer: connection refused; check its address"):
        digest("127.0.0.1:9/debian:sid", NetSettings(), lambda text: None)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("docker.io/library/debian:sid-slim", "https://registry-1.docker.io/v2/library/debian/manifests/sid-slim"),
        ("registry.example:5000/a/b__c", "https://registry.example:5000/v2/a/b__c/manifests/latest"),
        ("localhost:5000/a:1", "http://localhost:5000/v2/a/manifests/1"),
        ("127.0.0.1.example/a:1", "https://127.0.0.1.example/v2/a/manifests/1"),
    ],
)
def test_names(name: str, url: str) -> None:
    where, tag = of_image(name)
    assert where.url(f"manifests/{tag}") == url


@pytest.mark.parametrize(
    "name",
    [
        "debian",
        "library/debian:sid",
        "x.example",
        "x.example/Upper:1",
        "x.example/a:",
        "x.example/../a",
        "https://x.example/a:1",
        "",
    ],
)
def test_names_that_are_not_full(name: str) -> None:
    with pytest.raises(InputError, match="is not a full image name; write it as host/name:tag"):
        of_image(name)
