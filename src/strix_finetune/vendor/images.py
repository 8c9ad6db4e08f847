"""Registry images in a vendored folder: each an OCI layout, of this machine's platform alone.

`images/<host>/<path>/` holds `oci-layout`, `index.json` and `blobs/sha256/`, as skopeo, podman and others read it.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strix_finetune.engine import saved
from strix_finetune.errors import FetchFailed, InputError, Place, Problem
from strix_finetune.names import PREFIX
from strix_finetune.oci import whole
from strix_finetune.oci.descriptor import INDEX
from strix_finetune.oci.scan import RawLayer
from strix_finetune.registry import repository
from strix_finetune.registry.parts import Parts
from strix_finetune.registry.repository import Repository
from strix_finetune.vendor.manifest import Entry
from strix_finetune.vendor.solve import EXTENDED, STATUS, Installed, installed

ROOT = "images"
_BLOBS = "/blobs/sha256/"


def folder(name: str) -> str:
    """Where the image lies."""
    where, _ = repository.of_image(name)
    return f"{ROOT}/{where}"


def origin(path: str) -> Repository:
    """Where a part of an image comes from, by its place in the folder."""
    host, _, rest = path.removeprefix(f"{ROOT}/").partition("/")
    return Repository(host, rest.rpartition(_BLOBS)[0])


def entries(name: str, found: Parts) -> Iterator[Entry]:
    """The parts that are to be fetched."""
    where, _ = repository.of_image(name)
    for part in {part.digest: part for part in (found.config, *found.layers)}.values():
        url = where.url(f"blobs/{part.digest}")
        yield Entry(_path(name, part.digest), part.digest.removeprefix("sha256:"), part.size, url)


def layout(name: str, found: Parts) -> dict[str, bytes]:
    """Path → content of what the layout has beside them."""
    root, (_, tag) = folder(name), repository.of_image(name)
    row = found.manifests[0].descriptor.as_json() | {"annotations": {"org.opencontainers.image.ref.name": tag}}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [row]}
    made = {_path(name, served.digest): served.content for served in found.manifests}
    made[f"{root}/oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}\n'
    made[f"{root}/index.json"] = (json.dumps(index, indent=1) + "\n").encode()
    return made


def local_name(digest: str) -> str:
    """What an engine calls the image once it is loaded: `FROM name@digest` would be asked of a registry."""
    return f"{PREFIX}/vendored:{digest.removeprefix('sha256:')[:12]}"


def parts(name: str, digest: str, root: Path) -> tuple[str, str, tuple[str, ...]]:
    """The paths of the platform's manifest, the configuration and the layers of an image, below `root`.

    Raises InputError where the layout lacks a manifest.
    """
    told = _manifest(name, digest, root)
    path = _path(name, digest)
    if "layers" not in told:
        listed = [row["digest"] for row in told["manifests"] if (root / _path(name, row["digest"])).is_file()]
        if not listed:
            raise InputError(Problem("no manifest of its index was vendored", Place(root / path)))
        path = _path(name, listed[0])
        told = _manifest(name, listed[0], root)
    return path, _path(name, told["config"]["digest"]), tuple(_path(name, row["digest"]) for row in told["layers"])


def archive(name: str, digest: str, root: Path) -> Iterator[bytes]:
    """Stream the image for an engine, with the layers as they are."""
    _, config, layers = parts(name, digest, root)
    members = [(_inside(path), root / path) for path in dict.fromkeys((config, *layers))]
    return saved.archive(local_name(digest), _inside(config), [_inside(path) for path in layers], members)


def read_installed(layers: Sequence[Path]) -> Installed:
    """What dpkg has installed in an image. Raises FetchFailed for a layer that is packed in a way not known here."""
    found: list[RawLayer] = []
    for number, path in enumerate(layers):
        try:
            found.append(whole.stored_layer(path, number, (STATUS, EXTENDED).__contains__, kept_alone=True))
        except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
            cure = "use an image that is packed by gzip or zstd"
            raise FetchFailed(Problem(f"this layer cannot be read ({error})", Place(path), cure)) from None
    _, texts = whole.laid(found)
    return installed(*(texts.get(name, b"").decode("utf-8", "replace") for name in (STATUS, EXTENDED)))


def _manifest(name: str, digest: str, root: Path) -> Mapping[str, Any]:
    path = root / _path(name, digest)
    try:
        told = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(Problem(f"this manifest cannot be read ({error.strerror})", Place(path))) from None
    except ValueError:
        raise InputError(Problem("this is no manifest of an image", Place(path))) from None
    assert isinstance(told, dict)
    return told


def _path(name: str, digest: str) -> str:
    return f"{folder(name)}{_BLOBS}{digest.removeprefix('sha256:')}"


def _inside(path: str) -> str:
    """The path of a part in the engine's archive."""
    return f"blobs/sha256/{path.rpartition('/')[2]}"
