"""A registry image as an OCI layout: what it consists of, what dpkg has in it, and as an archive for an engine."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from strix_finetune.codeobject.codec import zstd_module
from strix_finetune.errors import FetchFailed, InputError, LockError
from strix_finetune.netconf import NetSettings
from strix_finetune.oci.descriptor import (
    CONFIG,
    INDEX,
    LAYER_GZIP,
    MANIFEST,
    Descriptor,
    canonical,
    image_manifest,
)
from strix_finetune.registry import client, repository
from strix_finetune.registry.faults import RegistryError, Untrusted
from strix_finetune.registry.parts import Parts
from strix_finetune.resolve import image
from strix_finetune.vendor import images, manifest
from tests.unit.registry_double import ANYBODY, Double, double
from tests.unit.tars import tar

STATUS = "Package: {name}\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n"


def layer(files: dict[str, str]) -> bytes:
    return gzip.compress(tar({name: content.encode() for name, content in files.items()}), mtime=0)


@dataclass
class Registry:
    """An image with two layers for two platforms, behind tokens for anybody."""

    double: Double
    index: str = ""

    @property
    def host(self) -> str:
        return self.double.address.removeprefix("http://")

    @property
    def name(self) -> str:
        return f"{self.host}/library/debian:13"

    @property
    def client(self) -> client.Registry:
        return image.at(repository.of_image(self.name)[0], NetSettings(), lambda text: None)

    def blob(self, body: bytes, media_type: str = LAYER_GZIP) -> Descriptor:
        made = Descriptor.of(media_type, body)
        self.double.blobs[made.digest] = body
        self.double.links.add(("library/debian", made.digest))
        return made

    def manifest(self, body: bytes, media_type: str = MANIFEST, **platform: str) -> dict[str, Any]:
        made = Descriptor.of(media_type, body, platform=platform)
        self.double.manifests["library/debian", made.digest] = (media_type, body)
        return made.as_json()

    def contents(self, digest: str = "") -> Parts:
        return image.contents(self.name, digest or self.index, self.client)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))
    with double() as served:
        served.login = ANYBODY
        state = Registry(served)
        layers = (
            state.blob(layer({"var/lib/dpkg/status": STATUS.format(name="old"), "var/lib/apt/extended_states": "x"})),
            state.blob(
                layer({"./var/lib/dpkg/status": STATUS.format(name="bash"), "var/lib/apt/.wh.extended_states": ""})
            ),
        )
        config = state.blob(b'{"architecture":"amd64"}', CONFIG)
        rows = [
            state.manifest(b'{"layers":[]}', os="linux", architecture="arm64"),
            state.manifest(image_manifest(config, layers, {}), os="linux", architecture="amd64"),
        ]
        state.index = state.manifest(canonical({"schemaVersion": 2, "manifests": rows}), INDEX)["digest"]
        yield state


def vendored(registry: Registry, folder: Path) -> Path:
    """The layout, written as `vendor` does."""
    found = registry.contents()
    for entry in images.entries(registry.name, found):
        manifest.write(folder, entry.path, registry.double.blobs[f"sha256:{entry.sha256}"])
    for path, content in images.layout(registry.name, found).items():
        manifest.write(folder, path, content)
    return folder


def test_an_image_is_taken_apart_for_this_platform(registry: Registry) -> None:
    found = registry.contents()
    assert found.manifests[0].digest == registry.index
    assert len(found.manifests) == 2
    entries = list(images.entries(registry.name, found))
    assert len(entries) == 3
    for entry in entries:
        assert entry.path == f"images/{registry.host}/library/debian/blobs/sha256/{entry.sha256}"
        assert entry.source == f"http://{registry.host}/v2/library/debian/blobs/sha256:{entry.sha256}"
        assert len(registry.double.blobs[f"sha256:{entry.sha256}"]) == entry.size
        assert str(images.origin(entry.path)) == f"{registry.host}/library/debian"


def test_one_token_holds_for_all_parts(registry: Registry, tmp_path: Path) -> None:
    asked = registry.client
    found = image.contents(registry.name, registry.index, asked)
    for part in (found.config, *found.layers):
        asked.download(part, tmp_path / part.digest, lambda done: None)
    assert len([line for line in registry.double.log if "/token" in line]) == 1


def test_the_layout_is_one_that_others_read(registry: Registry, tmp_path: Path) -> None:
    root = vendored(registry, tmp_path) / "images" / registry.host / "library/debian"
    assert json.loads((root / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    [row] = json.loads((root / "index.json").read_text())["manifests"]
    assert row["digest"] == registry.index
    assert row["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert row["size"] == len((root / "blobs/sha256" / registry.index.removeprefix("sha256:")).read_bytes())
    for path in (root / "blobs/sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


@pytest.mark.parametrize("told", ["", "application/json", "text/plain; charset=utf-8"])
def test_a_server_that_knows_no_types_of_manifests(registry: Registry, tmp_path: Path, told: str) -> None:
    """A proxy or a server of files: what is written down is what the documents are, and not what they came as."""
    wanted = registry.contents().manifests
    held = registry.double.manifests
    held.update({name: (told, body) for name, (_, body) in held.items()})
    assert registry.contents().manifests == wanted
    index = vendored(registry, tmp_path) / "images" / registry.host / "library/debian/index.json"
    assert [row["mediaType"] for row in json.loads(index.read_text())["manifests"]] == [INDEX]
    alone = registry.contents(wanted[-1].digest)
    made = images.layout(registry.name, alone)[f"{images.folder(registry.name)}/index.json"]
    assert [row["mediaType"] for row in json.loads(made)["manifests"]] == [MANIFEST]


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


def test_a_layer_that_is_packed_by_zstd(tmp_path: Path) -> None:
    content = gzip.decompress(layer({"var/lib/dpkg/status": STATUS.format(name="bash")}))
    (tmp_path / "layer").write_bytes(zstd_module().compress(content))
    assert images.read_installed([tmp_path / "layer"]).versions == [("bash", "1", "amd64")]


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, bytes], ids=["bzip2", "xz", "none"])
def test_a_layer_that_is_packed_as_engines_load_it_too(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    content = gzip.decompress(layer({"var/lib/dpkg/status": STATUS.format(name="bash")}))
    (tmp_path / "layer").write_bytes(pack(content))
    assert images.read_installed([tmp_path / "layer"]).versions == [("bash", "1", "amd64")]


def test_a_hard_link_to_a_file_of_a_layer_below(tmp_path: Path) -> None:
    status = STATUS.format(name="bash").encode()
    (tmp_path / "0").write_bytes(tar({"var/lib/dpkg/status": status, "usr/bin/perl": b"x"}))
    (tmp_path / "1").write_bytes(tar({"usr/bin/perl5": ("hard", "usr/bin/perl"), "usr/bin/perl": ("hard", "perl5")}))
    assert images.read_installed([tmp_path / "0", tmp_path / "1"]).versions == [("bash", "1", "amd64")]


@pytest.mark.parametrize("content", [b"\x28\xb5\x2f\xfd zstd", b"\x1f\x8b gzip", b"BZh9", gzip.compress(b"x")])
def test_a_layer_that_is_packed_otherwise_or_wrongly(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "layer").write_bytes(content)
    with pytest.raises(FetchFailed, match=r"this layer cannot be read .*; use an image that is packed by gzip or zstd"):
        images.read_installed([tmp_path / "layer"])


def test_an_engine_gets_it_as_an_archive(registry: Registry, tmp_path: Path) -> None:
    root = vendored(registry, tmp_path)
    stream = io.BytesIO(b"".join(images.archive(registry.name, registry.index, root)))
    with tarfile.open(fileobj=stream) as held:
        files = {member.name: held.extractfile(member).read() for member in held}  # type: ignore[union-attr]
    [row] = json.loads(files.pop("manifest.json"))
    assert row["RepoTags"] == [f"localhost/strix-finetune/vendored:{registry.index[7:19]}"]
    assert {row["Config"], *row["Layers"]} == set(files)
    assert len(row["Layers"]) == 2
    for path, content in files.items():
        assert path == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


@pytest.mark.parametrize("lost", ["index", "manifest"])
def test_a_layout_without_its_manifests(registry: Registry, tmp_path: Path, lost: str) -> None:
    root = vendored(registry, tmp_path)
    first, second = registry.contents().manifests
    gone = (first if lost == "index" else second).digest.removeprefix("sha256:")
    next(root.rglob(gone)).unlink()
    with pytest.raises(InputError, match="cannot be read" if lost == "index" else "no manifest of its index"):
        images.parts(registry.name, registry.index, root)


def test_an_image_for_other_machines_alone(registry: Registry) -> None:
    rows = [registry.manifest(b"{}", os="linux", architecture="arm64")]
    wanted = registry.manifest(canonical({"manifests": rows}), INDEX)["digest"]
    with pytest.raises(RegistryError, match="has no image for linux/amd64; name another one"):
        registry.contents(wanted)


def test_of_an_index_that_names_no_platform_the_first_is_taken_but_one_that_names_ours_goes_before(
    registry: Registry,
) -> None:
    _, ours = registry.contents().manifests
    unsaid = {name: value for name, value in ours.descriptor.as_json().items() if name != "platform"}
    wanted = registry.manifest(canonical({"manifests": [unsaid]}), INDEX)["digest"]
    assert registry.contents(wanted).manifests[-1].digest == ours.digest
    other = registry.manifest(b'{"layers": []}')
    rows = [other, {**unsaid, "platform": {"os": "linux", "architecture": "amd64"}}]
    wanted = registry.manifest(canonical({"manifests": rows}), INDEX)["digest"]
    assert registry.contents(wanted).manifests[-1].digest == ours.digest


def test_an_image_that_is_gone(registry: Registry) -> None:
    with pytest.raises(LockError, match="has no image '127"):
        registry.contents(f"sha256:{'0' * 64}")


def test_a_registry_that_lies(registry: Registry) -> None:
    registry.double.manifests["library/debian", registry.index] = (INDEX, b"{}")
    with pytest.raises(Untrusted, match="is not what its digest says"):
        registry.contents()
    wanted = registry.manifest(b'{"layers": [], "config": {"mediaType": "x", "digest": "md5:1", "size": 1}}')["digest"]
    with pytest.raises(RegistryError, match="is no image that can be read: a descriptor has no media type or no sha"):
        registry.contents(wanted)
    wanted = registry.manifest(b"[]", INDEX)["digest"]
    with pytest.raises(RegistryError, match="is no image that can be read: its index cannot be read"):
        registry.contents(wanted)
