"""A registry image as an OCI layout: what it consists of, what dpkg has in it, and as an archive for an engine."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strix_finetune.errors import FetchFailed, InputError
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve import image
from strix_finetune.vendor import images, manifest

STATUS = "Package: {name}\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n"


def layer(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    return gzip.compress(buffer.getvalue(), mtime=0)


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@dataclass
class Registry:
    """An image with two layers for two platforms, behind tokens."""

    host: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    tokens: bool = True
    index: str = ""

    def put(self, body: bytes) -> dict[str, Any]:
        self.blobs[digest(body)] = body
        return {"digest": digest(body), "size": len(body)}

    @property
    def name(self) -> str:
        return f"{self.host}/library/debian:13"


@pytest.fixture
def registry() -> Iterator[Registry]:
    state = Registry()
    layers = [
        state.put(layer({"var/lib/dpkg/status": STATUS.format(name="old"), "var/lib/apt/extended_states": "x"})),
        state.put(layer({"./var/lib/dpkg/status": STATUS.format(name="bash"), "var/lib/apt/.wh.extended_states": ""})),
    ]
    config = state.put(b'{"architecture":"amd64"}')
    kind = "application/vnd.oci.image.manifest.v1+json"
    inner = state.put(json.dumps({"mediaType": kind, "config": config, "layers": layers}).encode())
    other = state.put(b'{"layers":[]}')
    rows = [
        {**other, "platform": {"os": "linux", "architecture": "arm64"}},
        {**inner, "platform": {"os": "linux", "architecture": "amd64"}},
    ]
    state.index = state.put(json.dumps({"schemaVersion": 2, "manifests": rows}).encode())["digest"]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/token"):
                self.reply(200, b'{"token": "t0ken"}')
            elif state.tokens and self.headers.get("Authorization") != "Bearer t0ken":
                challenge = f'Bearer realm="http://{state.host}/token",service="here"'
                self.reply(401, b"", {"WWW-Authenticate": challenge})
            else:
                body = state.blobs.get(self.path.rpartition("/")[2])
                self.reply(200 if body is not None else 404, body or b"")

        def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        state.host = f"127.0.0.1:{httpd.server_port}"
        yield state
        httpd.shutdown()


def vendored(registry: Registry, folder: Path) -> Path:
    """The layout, written as `vendor` does."""
    found = image.contents(registry.name, registry.index, NetSettings())
    for entry in images.entries(registry.name, found):
        manifest.write(folder, entry.path, registry.blobs[f"sha256:{entry.sha256}"])
    for path, content in images.layout(registry.name, found).items():
        manifest.write(folder, path, content)
    return folder


def test_an_image_is_taken_apart_for_this_platform(registry: Registry) -> None:
    found = image.contents(registry.name, registry.index, NetSettings())
    assert next(iter(found.manifests)) == registry.index
    assert len(found.manifests) == 2
    entries = list(images.entries(registry.name, found))
    assert len(entries) == 3
    for entry in entries:
        assert entry.path == f"images/{registry.host}/library/debian/blobs/sha256/{entry.sha256}"
        assert entry.source == f"http://{registry.host}/v2/library/debian/blobs/sha256:{entry.sha256}"
        assert len(registry.blobs[f"sha256:{entry.sha256}"]) == entry.size


def test_blobs_want_a_token_only_where_the_registry_does(registry: Registry) -> None:
    found = image.contents(registry.name, registry.index, NetSettings())
    assert image.authorization(found.config.url, NetSettings()) == {"Authorization": "Bearer t0ken"}
    registry.tokens = False
    assert image.authorization(found.config.url, NetSettings()) == {}
    assert image.authorization("http://127.0.0.1:9/v2/x/blobs/sha256:0", NetSettings()) == {}


def test_the_layout_is_one_that_others_read(registry: Registry, tmp_path: Path) -> None:
    root = vendored(registry, tmp_path) / "images" / registry.host / "library/debian"
    assert json.loads((root / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    [row] = json.loads((root / "index.json").read_text())["manifests"]
    assert row["digest"] == registry.index
    assert row["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert row["size"] == len((root / "blobs/sha256" / registry.index.removeprefix("sha256:")).read_bytes())
    for path in (root / "blobs/sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_what_dpkg_has_in_it_is_what_the_last_layer_says(registry: Registry, tmp_path: Path) -> None:
    root = vendored(registry, tmp_path)
    _, _, layers = images.parts(registry.name, registry.index, root)
    found = images.read_installed([root / path for path in layers])
    assert found.versions == [("bash", "1", "amd64")]
    assert found.extended == ""


def test_a_layer_in_several_members_of_gzip_is_read_to_its_end(tmp_path: Path) -> None:
    """So this project packs, and whoever packs with several threads, or for lazy pulling."""
    status = STATUS.format(name="bash")
    content = gzip.decompress(layer({"etc/hostname": "a" * 70_000, "var/lib/dpkg/status": status}))
    members = [gzip.compress(content[at : at + 4096]) for at in range(0, len(content), 4096)]
    (tmp_path / "layer").write_bytes(b"".join(members))
    assert images.read_installed([tmp_path / "layer"]).versions == [("bash", "1", "amd64")]
    (tmp_path / "layer").write_bytes(members[0] + members[1][:-12])
    with pytest.raises(FetchFailed, match="this layer cannot be read"):
        images.read_installed([tmp_path / "layer"])


def test_a_layer_that_is_packed_otherwise(tmp_path: Path) -> None:
    (tmp_path / "layer").write_bytes(b"\x28\xb5\x2f\xfd zstd")
    with pytest.raises(FetchFailed, match=r"this layer cannot be read .*; use an image that is packed by gzip"):
        images.read_installed([tmp_path / "layer"])


def test_an_engine_gets_it_as_an_archive(registry: Registry, tmp_path: Path) -> None:
    root = vendored(registry, tmp_path)
    stream = io.BytesIO(b"".join(images.archive(registry.name, registry.index, root)))
    with tarfile.open(fileobj=stream) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    [row] = json.loads(files.pop("manifest.json"))
    assert row["RepoTags"] == [f"localhost/strix-finetune/vendored:{registry.index[7:19]}"]
    assert {row["Config"], *row["Layers"]} == set(files)
    assert len(row["Layers"]) == 2
    for path, content in files.items():
        assert path == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


@pytest.mark.parametrize("lost", ["index", "manifest"])
def test_a_layout_without_its_manifests(registry: Registry, tmp_path: Path, lost: str) -> None:
    root = vendored(registry, tmp_path)
    first, second = image.contents(registry.name, registry.index, NetSettings()).manifests
    gone = (first if lost == "index" else second).removeprefix("sha256:")
    next(root.rglob(gone)).unlink()
    with pytest.raises(InputError, match="cannot be read" if lost == "index" else "no manifest of its index"):
        images.parts(registry.name, registry.index, root)


def test_an_image_for_other_machines_alone(registry: Registry) -> None:
    body = json.dumps({"manifests": [{"digest": "x", "platform": {"os": "linux", "architecture": "arm64"}}]}).encode()
    wanted = registry.put(body)["digest"]
    with pytest.raises(FetchFailed, match="has nothing for linux/amd64; name another image"):
        image.contents(registry.name, wanted, NetSettings())


def test_a_registry_that_lies(registry: Registry) -> None:
    registry.blobs[registry.index] = b"{}"
    with pytest.raises(FetchFailed, match="sent another manifest of"):
        image.contents(registry.name, registry.index, NetSettings())
    wanted = registry.put(b'{"layers": [], "config": {"digest": "md5:1", "size": 1}}')["digest"]
    with pytest.raises(FetchFailed, match=r"cannot be read \(ValueError: 'md5:1' is no sha256 digest\)"):
        image.contents(registry.name, wanted, NetSettings())
