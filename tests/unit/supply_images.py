"""Images as archives that hold what a bill of materials is made from, and an engine that exports them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from strix_finetune import names
from strix_finetune.engine.base import Engine, Image
from tests.unit.tars import tar

STATUS = """Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.3-4
Description: a shell
 with a second line

Package: libstdc++6
Status: install ok installed
Architecture: amd64
Source: gcc-16 (16.1.0-2)
Version: 16.1.0-2+b1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: strix-finetune-ucx-without-hip
Status: install ok installed
Architecture: all
Version: 1
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
License: GPL-3+

Files: debian/*
License: AGPL-3+

Files: lib/*
License: BSD-3-clause or GPL-2+ with Bison exception
 text
"""
VENV = "opt/venv/lib/python3.14/site-packages"
DEBIAN = "usr/lib/python3/dist-packages"


def metadata(name: str, version: str, *more: str) -> bytes:
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more]
    return "\n".join([*lines, "", "License: no header, a text\n"]).encode()


def base() -> dict[str, bytes | tuple[str, str]]:
    return {
        "var/lib/dpkg/status": STATUS.encode(),
        "usr/lib/os-release": b'ID=debian\nVERSION_CODENAME="sid"\n',
        "usr/share/doc/bash/copyright": COPYRIGHT.encode(),
        "usr/share/doc/gcc-16-base/copyright": b"This is GCC; it is not in a format that a machine reads.\n",
        "usr/share/doc/libstdc++6": ("sym", "gcc-16-base"),
        f"{DEBIAN}/numpy-2.4.0.dist-info/METADATA": metadata("numpy", "2.4.0", "License-Expression: BSD-3-Clause"),
        f"{DEBIAN}/old.egg-info": metadata("Old_Thing", "0.1", "License: UNKNOWN"),
    }


def top() -> dict[str, bytes | tuple[str, str]]:
    return {
        f"{VENV}/unsloth-2026.10.9.dist-info/METADATA": metadata(
            "unsloth", "2026.10.9", "Classifier: License :: OSI Approved :: Apache Software License"
        ),
        f"{VENV}/unsloth-2026.10.9.dist-info/RECORD": b"unsloth/__init__.py,sha256=x,1\n../../../bin/unsloth,,\n",
        f"{VENV}/unsloth/__init__.py": b"# Apache License, Version 2.0\n",
        f"{VENV}/unsloth/fsdp2.py": b"# SPDX-License-Identifier: AGPL-3.0-only\nimport os\n",
        f"{VENV}/unsloth/old.py": b'"""GNU Affero General Public License"""\n',
        f"{VENV}/unsloth/models.py": b"patched = True\n",
        "opt/strix-finetune/lib/strix_train/__init__.py": b'__version__ = "0.1.0"\n',
    }


@dataclass
class Store:
    """An engine with one image: its layers, lowest first, and its labels. The id follows from both."""

    layers: list[dict[str, bytes | tuple[str, str]]] = field(default_factory=lambda: [base(), top()])
    labels: dict[str, str] = field(
        default_factory=lambda: {
            names.KEY: "a" * 64,
            names.LAYER: "finetune",
            names.TARGET: "cpu",
            names.CHANNEL: "debian",
        }
    )
    exports: int = 0

    @property
    def engine(self) -> Engine:
        return cast(Engine, cast(Any, self))

    @property
    def archives(self) -> list[bytes]:
        return [tar(layer) for layer in self.layers]

    @property
    def config(self) -> bytes:
        platform = {"os": "linux", "architecture": "amd64"}
        return json.dumps(platform | self.described | {"history": []}).encode()

    @property
    def described(self) -> dict[str, Any]:
        diffs = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in self.archives]
        return {"config": {"Labels": self.labels}, "rootfs": {"type": "layers", "diff_ids": diffs}}

    def configuration(self, ref: str) -> dict[str, Any] | None:
        return self.described

    @property
    def id(self) -> str:
        return f"sha256:{hashlib.sha256(self.config).hexdigest()}"

    @property
    def held(self) -> Image:
        return Image(self.id, ("localhost/strix-finetune:cpu",), self.labels, 1000)

    def image(self, ref: str) -> Image | None:
        return self.held if ref in (self.id, *self.held.tags) else None

    def export(self, ref: str) -> Iterator[bytes]:
        assert ref == self.id
        self.exports += 1
        # as Docker does: not in their order, and what they are last
        blobs: dict[str, bytes | tuple[str, str]] = {
            f"{number}/layer.tar": layer for number, layer in reversed(list(enumerate(self.archives)))
        }
        described = [{"Config": "c.json", "Layers": [f"{number}/layer.tar" for number in range(len(self.layers))]}]
        whole = tar({**blobs, "c.json": self.config, "manifest.json": json.dumps(described).encode()})
        yield from (whole[at : at + 10000] for at in range(0, len(whole), 10000))

    def close(self) -> None:
        """Nothing was opened."""
