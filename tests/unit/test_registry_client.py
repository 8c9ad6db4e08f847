"""The client of the distribution API, against a registry with faults to order."""

from __future__ import annotations

import base64
import gc
import json
import os
import resource
import socket
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strix_finetune.errors import WorkError
from strix_finetune.netconf import NetSettings
from strix_finetune.oci.descriptor import LAYER_GZIP, MANIFEST, Content, Descriptor, digest_of, image_manifest
from strix_finetune.registry import login, repository, uploads
from strix_finetune.registry.client import Registry
from strix_finetune.registry.faults import Denied, Missing, RegistryError, Unreachable, Untrusted
from strix_finetune.registry.http import Http, safe
from strix_finetune.registry.login import Login
from strix_finetune.registry.repository import Repository
from tests.unit.registry_double import ANYBODY, Double, Handler, double, times

CONTENT = os.urandom(100_000)


@pytest.fixture
def served() -> Iterator[Double]:
    with double() as made:
        yield made


def registry(
    served: Double, login: Login | None = None, waits: list[float] | None = None, path: str = "a/b"
) -> Registry:
    place = Repository(served.address.removeprefix("http://"), path)
    return Registry(Http(place, NetSettings(), login, sleep=(waits if waits is not None else []).append))


def blob(content: bytes = CONTENT) -> Content:
    def read(offset: int) -> Iterator[bytes]:
        yield from (content[at : at + 10_000] for at in range(offset, len(content), 10_000))

    return Content(Descriptor.of(LAYER_GZIP, content), read)


def upload(client: Registry, content: Content, piece: int) -> list[int]:
    """Send a blob in pieces; returns the progress."""
    heard: list[int] = []
    uploads.Upload(client.http, content, heard.append, piece=piece).run()
    return heard


@pytest.mark.parametrize(
    ("text", "host", "path"),
    [
        ("localhost:5000", "localhost:5000", "strix-finetune"),
        ("oci://ghcr.io/me/images/", "ghcr.io", "me/images"),
        ("registry.example", "registry.example", "strix-finetune"),
        ("[::1]:5000/x", "[::1]:5000", "x"),
        ("docker.io/me/x_y-z", "docker.io", "me/x_y-z"),
    ],
)
def test_names_of_repositories(text: str, host: str, path: str) -> None:
    found = repository.parse(text)
    assert (found.host, found.path) == (host, path)
    assert str(found) == f"{host}/{path}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("me/images", "host of a registry"),
        ("", "host of a registry"),
        ("ftp://ghcr.io/x", "host of a registry"),
        ("ghcr.io/me/x:1", "leave the tag out"),
        ("ghcr.io/Me", "small letters"),
        ("ghcr.io/a//b", "small letters"),
        ("ghcr.io/a/../b", "small letters"),
    ],
)
def test_names_that_are_none(text: str, words: str) -> None:
    with pytest.raises(Exception, match=words):
        repository.parse(text)


def test_only_the_loopback_is_spoken_to_in_the_clear() -> None:
    assert Repository("localhost:5000", "x").url("y") == "http://localhost:5000/v2/x/y"
    assert Repository("127.0.0.1", "x").root == "http://127.0.0.1"
    assert Repository("localhost.example:5000", "x").root == "https://localhost.example:5000"
    assert Repository("docker.io", "x").root == "https://registry-1.docker.io"
    # unless somebody says so
    box = repository.parse("http://box.lan:5000/x")
    assert (str(box), box.root) == ("box.lan:5000/x", "http://box.lan:5000")
    assert repository.parse("https://box.lan/x").root == "https://box.lan"


def test_nobody_is_led_to_a_place_without_encryption(served: Double) -> None:
    def elsewhere(handler: Handler) -> bool:
        handler.answer(307, Location="http://elsewhere.example/x")
        return True

    served.faults = [elsewhere]
    with pytest.raises(RegistryError, match="redirects to a place that is not safe"):
        registry(served).manifest("tag")
    served.faults = []
    served.login = ("me", "secret")
    served.realm = "http://elsewhere.example/token"
    with pytest.raises(Denied, match="to a place that is not safe"):
        registry(served, Login("me", "secret")).manifest("tag")
    # a registry that was asked for in the clear may send on within itself
    host = served.address.removeprefix("http://")
    inside = Repository(host, "a/b", plain=True)
    assert safe(inside, f"http://{host}/token")
    assert not safe(inside, "http://elsewhere.example/token")


def test_connections_end_with_who_asked(served: Double) -> None:
    """At once, and not when the collector of cycles comes by, in the middle of whatever."""
    client = registry(served)
    client.manifest("none")
    session = weakref.ref(client.http._session())
    gc.disable()
    try:
        del client
        assert session() is None
    finally:
        gc.enable()


def test_a_blob_comes_there_in_one_piece_and_only_once(served: Double) -> None:
    client = registry(served)
    assert client.upload(blob(), lambda done: None) == "sent"
    assert served.blobs[digest_of(CONTENT)] == CONTENT
    assert [line.split(" ")[0] for line in served.log] == ["HEAD", "POST", "PUT"]
    assert client.upload(blob(), lambda done: None) == "present"
    assert served.sent == len(CONTENT)


def test_an_empty_blob(served: Double) -> None:
    assert registry(served).upload(blob(b""), lambda done: None) == "sent"
    assert served.blobs[digest_of(b"")] == b""


def test_a_blob_of_another_repository_is_mounted(served: Double) -> None:
    registry(served, path="other").upload(blob(), lambda done: None)
    sent = served.sent
    assert registry(served).upload(blob(), lambda done: None, mount_from="other") == "mounted"
    assert served.sent == sent
    # a registry that does not do it opens an upload instead
    assert registry(served, path="third").upload(blob(), lambda done: None, mount_from="nothing") == "sent"


def test_a_large_blob_goes_in_pieces(served: Double) -> None:
    heard = upload(registry(served), blob(), 30_000)
    assert served.blobs[digest_of(CONTENT)] == CONTENT
    assert len(served.requests("PATCH")) == 4
    assert heard == sorted(heard)
    assert heard[-1] == len(CONTENT)


def test_a_cut_upload_is_gone_on_with(served: Double) -> None:
    served.cuts = [20_000, 5_000]
    upload(registry(served), blob(), 60_000)
    assert served.blobs[digest_of(CONTENT)] == CONTENT
    assert served.sent == len(CONTENT)


def test_a_registry_that_forgets_a_cut_upload_gets_the_blob_anew(served: Double) -> None:
    served.cuts, served.keeps = [20_000], False
    upload(registry(served), blob(), 60_000)
    assert served.blobs[digest_of(CONTENT)] == CONTENT
    assert served.sent == len(CONTENT) + 20_000


def test_an_upload_that_is_always_cut_ends_with_a_sentence(served: Double) -> None:
    served.cuts, served.keeps = [0] * 30, False
    with pytest.raises(Unreachable, match=r"could not push to 127.*: .*(does not answer|gave an upload up).*again"):
        upload(registry(served), blob(), 60_000)
    assert not served.blobs


def test_a_blob_that_is_shorter_here_than_it_says_is_not_sent(served: Double) -> None:
    short = Content(Descriptor.of(LAYER_GZIP, CONTENT), lambda offset: iter((CONTENT[offset:50_000],)))
    with pytest.raises(RegistryError, match="ends after 50000 of 100000 bytes"):
        registry(served).upload(short, lambda done: None)


def test_busy_and_broken_gateways_are_waited_for(served: Double) -> None:
    served.faults = [times(2, 503, "GET"), times(1, 429, "GET", Retry_After="7")]
    waits: list[float] = []
    assert registry(served, waits=waits).manifest("none") is None
    assert len(waits) == 3
    assert waits[-1] == 7


def test_a_registry_that_wants_an_hour_is_not_waited_for(served: Double) -> None:
    served.faults = [times(99, 429, Retry_After="3600")]
    waits: list[float] = []
    with pytest.raises(Unreachable, match="HTTP 429"):
        registry(served, waits=waits).manifest("none")
    assert sum(waits) < 60


@pytest.mark.parametrize("status", [400, 404, 405, 413, 500, 507])
def test_what_is_no_fault_of_the_network_is_not_tried_again(served: Double, status: int) -> None:
    served.faults = [times(99, status, "POST")]
    with pytest.raises(RegistryError, match=rf"could not push to .*: as ordered \(HTTP {status}\)"):
        registry(served).upload(blob(), lambda done: None)
    assert len(served.requests("POST")) == 1


def test_a_dead_registry_is_one_sentence() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    waits: list[float] = []
    client = Registry(Http(Repository(f"localhost:{port}", "x"), NetSettings(), sleep=waits.append))
    with pytest.raises(Unreachable) as caught:
        client.manifest("none")
    assert str(caught.value) == (
        f"could not read localhost:{port}/x:none: the registry localhost:{port} does not answer: "
        "connection refused; check its address and the network"
    )
    assert len(waits) == 1


def test_a_name_that_nobody_knows_is_one_sentence() -> None:
    client = Registry(Http(Repository("registry.invalid", "x"), NetSettings(), sleep=lambda wait: None))
    with pytest.raises(Unreachable, match="does not answer: ") as caught:
        client.manifest("none")
    assert "0x" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_login_is_changed_for_a_token(served: Double) -> None:
    served.login = ("me", "secret")
    client = registry(served, Login("me", "secret"))
    client.upload(blob(), lambda done: None)
    assert digest_of(CONTENT) in served.blobs
    tokens = served.requests("GET")
    assert len(tokens) == 1
    assert "scope=repository%3Aa%2Fb%3Apull%2Cpush" in tokens[0]


def test_no_login_and_a_wrong_one_are_told_apart(served: Double) -> None:
    served.login = ("me", "secret")
    with pytest.raises(Denied, match="log in: podman login 127"):
        registry(served).manifest("none")
    with pytest.raises(Denied, match=r"wrong password .*check what this login may do"):
        registry(served, Login("me", "wrong")).manifest("none")


@pytest.mark.parametrize("login", [Login("me", "secret"), Login(token="identity")], ids=["password", "token"])
@pytest.mark.parametrize("kind", ["bearer", "basic"])
def test_a_storage_that_wants_a_login_gets_none(served: Double, tmp_path: Path, login: Login, kind: str) -> None:
    heard: list[str | None] = []

    def send_on(handler: Handler) -> bool:
        heard.append(handler.headers.get("Authorization"))
        handler.answer(307, Location=f"{storage.address}{handler.path}")
        return True

    def greedy(handler: Handler) -> bool:
        heard.append(handler.headers.get("Authorization"))
        challenge = 'Basic realm="x"' if kind == "basic" else f'Bearer realm="{storage.address}/token",service="x"'
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        handler.answer(401, WWW_Authenticate=challenge)
        return True

    served.faults = [send_on]
    with double() as storage:
        storage.faults = [greedy]
        with pytest.raises(Denied, match=r"could not pull from 127.*check what this login may do"):
            registry(served, login).download(blob().descriptor, tmp_path / "blob", lambda done: None)
        assert storage.log == [f"GET /v2/a/b/blobs/{blob().descriptor.digest}"]
    assert heard == [None, None]


def test_a_refresh_token_is_not_sent_on(served: Double) -> None:
    def send_on(handler: Handler) -> bool:
        if handler.command != "POST":
            return False
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        handler.answer(307, Location=f"{other.address}/token")
        return True

    served.faults, served.login = [send_on], ("me", "secret")
    with double() as other:
        with pytest.raises(Denied):
            registry(served, Login(token="identity")).manifest("none")
        assert other.log == []
    assert any(line.startswith("POST ") for line in served.log)


@pytest.mark.parametrize("token", [b"[]", b"{}", b'{"token": 3}', b"no json"])
def test_a_token_that_is_none(served: Double, token: bytes) -> None:
    def useless(handler: Handler) -> bool:
        asked = handler.path.startswith("/token")
        if asked:
            handler.answer(200, token)
        return asked

    served.login = ANYBODY
    served.faults = [useless]
    with pytest.raises(Denied, match=r"could not log in to 127"):
        registry(served).manifest("none")


def test_a_manifest_is_read_back(served: Double) -> None:
    client = registry(served)
    client.upload(blob(), lambda done: None)
    client.upload(blob(b"{}"), lambda done: None)
    content = image_manifest(Descriptor.of("config", b"{}"), (blob().descriptor,), {})
    made = client.put_manifest("tag", content, MANIFEST)
    assert made == Descriptor(MANIFEST, digest_of(content), len(content))
    held = client.manifest("tag")
    assert held
    assert held.descriptor == made
    assert client.delete(made.digest)
    assert not client.delete(made.digest)
    assert client.manifest("tag") is None


def test_another_manifest_than_was_pushed_is_seen(served: Double) -> None:
    client = registry(served)
    served.manifests["a/b", "tag"] = (MANIFEST, b'{"other": 1}')

    served.faults = [times(1, 201, "PUT")]
    with pytest.raises(RegistryError, match=r"was pushed as sha256:.*, but the registry serves sha256:"):
        client.put_manifest("tag", b"{}", MANIFEST)


def test_other_bytes_than_those_of_the_digest_are_refused(served: Double, tmp_path: Path) -> None:
    client = registry(served)
    wanted = Descriptor.of("x", CONTENT)
    served.manifests["a/b", wanted.digest] = (MANIFEST, b"other")
    with pytest.raises(Untrusted, match="is not what its digest says"):
        client.manifest(wanted.digest)

    def other(handler: Handler) -> bool:
        handler.answer(200, b"{}", Docker_Content_Digest=wanted.digest)
        return True

    served.faults = [other]
    with pytest.raises(Untrusted, match="is not what its digest says"):
        client.manifest("tag")
    served.faults = []
    served.manifests["a/b", "tag"] = (MANIFEST, b"x" * (9 << 20))
    with pytest.raises(Untrusted, match="the answer is too long"):
        client.manifest("tag")
    served.links.add(("a/b", wanted.digest))
    served.blobs[wanted.digest] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(Untrusted, match="is not what its digest says"):
        client.small(wanted)
    with pytest.raises(Untrusted, match="is not what its digest says"):
        client.download(wanted, tmp_path / "blob", lambda done: None)
    served.blobs[wanted.digest] = CONTENT + b"more"
    with pytest.raises(Untrusted, match="longer than it says"):
        client.download(wanted, tmp_path / "blob", lambda done: None)
    assert not (tmp_path / "blob").exists()


def test_a_download_that_is_cut_is_gone_on_with(served: Double, tmp_path: Path) -> None:
    client = registry(served)
    client.upload(blob(), lambda done: None)
    served.answer_cuts = [40_000, 40_000]
    heard: list[int] = []
    client.download(blob().descriptor, tmp_path / "blob", heard.append)
    assert (tmp_path / "blob").read_bytes() == CONTENT
    assert [file.name for file in tmp_path.iterdir()] == ["blob"]
    assert heard == sorted(heard)
    assert len(served.requests("GET")) == 3


def test_a_file_of_the_right_size_that_is_another_is_fetched_again(served: Double, tmp_path: Path) -> None:
    client = registry(served)
    client.upload(blob(), lambda done: None)
    (tmp_path / "blob").write_bytes(bytes(len(CONTENT)))
    client.download(blob().descriptor, tmp_path / "blob", lambda done: None)
    assert (tmp_path / "blob").read_bytes() == CONTENT
    before = len(served.log)
    client.download(blob().descriptor, tmp_path / "blob", lambda done: None)
    assert len(served.log) == before


def test_a_download_of_an_earlier_process_is_gone_on_with(served: Double, tmp_path: Path) -> None:
    client = registry(served)
    client.upload(blob(), lambda done: None)
    (tmp_path / "blob.part").write_bytes(CONTENT[:90_000])
    heard: list[int] = []
    client.download(blob().descriptor, tmp_path / "blob", heard.append)
    assert (tmp_path / "blob").read_bytes() == CONTENT
    assert heard[0] > 90_000
    # what an earlier process left may be another's: then all of it is fetched
    (tmp_path / "blob").unlink()
    (tmp_path / "blob.part").write_bytes(b"x" * 90_000)
    client.download(blob().descriptor, tmp_path / "blob", heard.append)
    assert (tmp_path / "blob").read_bytes() == CONTENT


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_two_that_fetch_the_same_at_once(served: Double, tmp_path: Path, cut: bool) -> None:
    """As two processes do that share a cache: the second waits, and takes what the first has, or goes on with it."""
    begun = threading.Event()

    def slow(handler: Handler) -> bool:
        served.faults.clear()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        handler.wfile.write(CONTENT[:70_000])
        handler.wfile.flush()
        begun.set()
        # as long as the second takes to do what it should not
        time.sleep(0.3)
        if cut:
            served.faults = [times(6, 503)]
            handler.cut()
        else:
            handler.wfile.write(CONTENT[70_000:])
        return True

    registry(served).upload(blob(), lambda done: None)
    served.faults = [slow]
    heard: list[int] = []
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(registry(served).download, blob().descriptor, tmp_path / "blob", lambda done: None)
        assert begun.wait(5)
        second = pool.submit(registry(served).download, blob().descriptor, tmp_path / "blob", heard.append)
        assert second.exception() is None
        assert isinstance(first.exception(), Unreachable) if cut else first.exception() is None
    assert (tmp_path / "blob").read_bytes() == CONTENT
    assert [file.name for file in tmp_path.iterdir()] == ["blob"]
    assert heard[-1] == len(CONTENT)
    assert heard[0] > 60_000
    assert len(served.requests("GET")) == (8 if cut else 1)


def test_a_part_that_another_program_removes_or_changes_gets_no_name(served: Double, tmp_path: Path) -> None:
    client = registry(served)
    client.upload(blob(), lambda done: None)
    part = tmp_path / "blob.part"

    def change(done: int) -> None:
        with part.open("ab") as out:
            out.write(b"x")

    for fault in (lambda done: part.unlink(missing_ok=True), change):
        with pytest.raises(WorkError, match=r"blob.part: another program took or changed this file; try again"):
            client.download(blob().descriptor, tmp_path / "blob", fault)
        assert not (tmp_path / "blob").exists()
    client.download(blob().descriptor, tmp_path / "blob", lambda done: None)
    assert (tmp_path / "blob").read_bytes() == CONTENT


def test_a_disk_that_does_not_take_it(served: Double, tmp_path: Path) -> None:
    client = registry(served)
    client.upload(blob(), lambda done: None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(WorkError, match=rf"127.*@sha256:.* cannot be written to {tmp_path} \(File too large\)"):
            client.download(blob().descriptor, tmp_path / "blob", lambda done: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(served.requests("GET")) == 1


def test_a_folder_that_cannot_be_made(served: Double, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkError, match=rf"127.*@sha256:.* cannot be written to {tmp_path}/file/x \(Not a directory\)"):
        registry(served).download(blob().descriptor, tmp_path / "file/x/blob", lambda done: None)


def test_nobody_who_hears_of_the_progress_is_no_fault_of_the_disk(served: Double, tmp_path: Path) -> None:
    def progress(done: int) -> None:
        raise BrokenPipeError

    client = registry(served)
    client.upload(blob(), lambda done: None)
    with pytest.raises(BrokenPipeError):
        client.download(blob().descriptor, tmp_path / "blob", progress)


def test_a_file_is_for_all_whatever_the_umask(served: Double, tmp_path: Path) -> None:
    client = registry(served)
    client.upload(blob(), lambda done: None)
    before = os.umask(0o077)
    try:
        client.download(blob().descriptor, tmp_path / "blob", lambda done: None)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "blob").stat().st_mode) == 0o644


@pytest.mark.parametrize("status", [404, 410])
def test_a_blob_that_is_gone(served: Double, tmp_path: Path, status: int) -> None:
    served.faults = [times(1, status)]
    words = rf"the registry has no 127.*/a/b@{blob().descriptor.digest}; have it pushed again, or name another image"
    with pytest.raises(Missing, match=words):
        registry(served).download(blob().descriptor, tmp_path / "blob", lambda done: None)


def test_a_download_that_brings_nothing_ends(served: Double, tmp_path: Path) -> None:
    client = registry(served)
    client.upload(blob(), lambda done: None)
    served.answer_cuts = [50_000, *[0] * 20]
    with pytest.raises(Unreachable, match="the connection was cut; try again: what came is kept"):
        client.download(blob().descriptor, tmp_path / "blob", lambda done: None)
    assert 30_000 < (tmp_path / "blob.part").stat().st_size <= 50_000


def test_all_tags_are_listed_page_by_page(served: Double) -> None:
    for number in range(5):
        served.manifests["a/b", f"tag{number}"] = (MANIFEST, b"{}")
    assert list(registry(served).tags()) == [f"tag{number}" for number in range(5)]


def config(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def entry(user: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:pass:word".encode()).decode()}


def test_logins_are_found_where_the_engines_keep_them(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run"), "PATH": str(tmp_path)}
    place = Repository("registry.example", "team/images")
    assert login.find(place, env) is None
    config(tmp_path / ".docker/config.json", {"auths": {"https://registry.example/v2/": entry("docker")}})
    assert login.find(place, env) == Login("docker", "pass:word")
    podman = tmp_path / "run/containers/auth.json"
    config(podman, {"auths": {"registry.example": entry("host"), "registry.example/team": entry("team")}})
    assert login.find(place, env) == Login("team", "pass:word")
    assert login.find(Repository("registry.example", "other"), env) == Login("host", "pass:word")
    assert login.find(Repository("other.example", "x"), env) is None
    config(tmp_path / "own.json", {"auths": {"registry.example": {"identitytoken": "token"}}})
    assert login.find(place, env | {"REGISTRY_AUTH_FILE": str(tmp_path / "own.json")}) == Login(token="token")


def test_a_login_of_docker_hub_is_written_as_an_address(tmp_path: Path) -> None:
    config(tmp_path / ".docker/config.json", {"auths": {"https://index.docker.io/v1/": entry("hub")}})
    assert login.find(Repository("docker.io", "me/x"), {"HOME": str(tmp_path)}) == Login("hub", "pass:word")


@pytest.mark.parametrize("text", ["", "[]", "\0", '{"auths": 3}', '{"auths": {"registry.example": {"auth": "%%%"}}}'])
def test_files_without_a_login(tmp_path: Path, text: str) -> None:
    path = tmp_path / "auth.json"
    path.write_text(text)
    assert login.find(Repository("registry.example", "x"), {"REGISTRY_AUTH_FILE": str(path)}) is None


def test_credential_helpers_are_asked(tmp_path: Path) -> None:
    helper = tmp_path / "docker-credential-mine"
    helper.write_text(
        '#!/bin/sh\nread server\necho "{\\"Username\\": \\"<token>\\", \\"Secret\\": \\"of $server\\"}"\n'
    )
    helper.chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    place = Repository("registry.example", "x")
    config(tmp_path / ".docker/config.json", {"credHelpers": {"registry.example": "mine"}})
    assert login.find(place, env) == Login(token="of registry.example")
    config(tmp_path / ".docker/config.json", {"credsStore": "mine", "auths": {"registry.example": {}}})
    assert login.find(place, env) == Login(token="of registry.example")
    config(tmp_path / ".docker/config.json", {"credsStore": "missing"})
    assert login.find(place, env) is None
    helper.write_text("#!/bin/sh\nexit 1\n")
    config(tmp_path / ".docker/config.json", {"credsStore": "mine"})
    assert login.find(place, env) is None
