"""Archives of images as engines write them, made of a few words: for tests that need layers and no engine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes import FakeEngine

# a text is a file's content, None a removal, a number the mode of a folder, ("link", target), ("hard", target)
Layer = Mapping[str, object]


def layer_tar(files: Layer, *, mtime: int = 1_900_000_000, owner: str = "root", backwards: bool = False) -> bytes:
    """The tar of a layer, with times and names by chance, as builders write them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, what in sorted(files.items(), reverse=backwards):
            folder, slash, name = path.rpartition("/")
            info = tarfile.TarInfo(f"{folder}{slash}.wh.{name}" if what is None else path)
            info.mtime, info.uname, info.mode = mtime, owner, 0o644
            content = b""
            if isinstance(what, str):
                content = what.encode()
                info.size = len(content)
            elif isinstance(what, int):
                info.type, info.mode = tarfile.DIRTYPE, what
            elif isinstance(what, tuple):
                info.type = tarfile.SYMTYPE if what[0] == "link" else tarfile.LNKTYPE
                info.linkname = what[1]
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def archive(layers: Sequence[bytes], config: Mapping[str, Any]) -> bytes:
    """What `docker save` writes: each layer's tar, the configuration, and what tells which is which."""
    ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    whole = dict(config) | {"rootfs": {"type": "layers", "diff_ids": ids}}
    text = json.dumps(whole).encode()
    names = [f"{number}-{digest[7:19]}/layer.tar" for number, digest in enumerate(ids)]
    manifest = json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": names}]).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        # not in the order of the layers
        for name, content in [*reversed(list(zip(names, layers, strict=True))), ("config.json", text)]:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        info = tarfile.TarInfo("manifest.json")
        info.size = len(manifest)
        tar.addfile(info, io.BytesIO(manifest))
    return buffer.getvalue()


@dataclass
class ImageEngine(FakeEngine):
    """An engine that holds images of a few words: reference → its layers, and its configuration."""

    held: dict[str, tuple[list[bytes], dict[str, Any]]] = field(default_factory=dict)

    def hold(self, ref: str, layers: Sequence[bytes], **config: Any) -> None:
        self.held[ref] = (list(layers), {"architecture": "amd64", "os": "linux", "config": config})

    def export(self, ref: str) -> Iterator[bytes]:
        layers, config = self.held[ref]
        data = archive(layers, config)
        yield from (data[at : at + 65536] for at in range(0, len(data), 65536))

    def configuration(self, ref: str) -> dict[str, Any] | None:
        if ref not in self.held:
            return None
        layers, config = self.held[ref]
        ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        return config | {"rootfs": {"type": "layers", "diff_ids": ids}}
