"""What a new container costs on the disk, and whether there is room for it.

Three kinds of stores (https://github.com/containers/storage): `vfs` copies the whole image for each container;
`overlay` copies it once for a rootless user's ids; `overlay` with fuse-overlayfs shifts ids without a copy.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from strix_finetune.engine.base import Image
from strix_finetune.errors import Problem, WorkError
from strix_finetune.toolbx.programs import Programs
from strix_finetune.toolbx.store import Say

_SHIFTS = "fuse-overlayfs"
# bytes: 1.3 GB in 12 s, rootless Podman 4.3 on two cores (docs/toolbox.md)
_COPIED_A_SECOND = 1.3e9 / 12


@dataclass(frozen=True, slots=True)
class Storage:
    """Podman's store: the folder that it is in, its driver, and the program that mounts for it, if any."""

    root: Path
    driver: str
    program: str

    @classmethod
    def of(cls, info: str) -> Storage:
        """As `podman info --format json` says it."""
        store = json.loads(info)["store"]
        program = str(store.get("graphOptions", {}).get("overlay.mount_program", ""))
        return cls(Path(store["graphRoot"]), str(store.get("graphDriverName", "")), program)

    @property
    def copies_always(self) -> bool:
        """Each container is a whole copy of its image."""
        return self.driver == "vfs"

    def has_copy(self, image: Image) -> bool:
        """The image was copied for the user's ids before. False where the store's own list cannot be read."""
        try:
            listed = json.loads((self.root / f"{self.driver}-images" / "images.json").read_bytes())
            known = {str(one["id"]): one.get("mapped-layers") for one in listed}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return False
        return bool(known.get(image.id.removeprefix("sha256:")))


def cost(programs: Programs, image: Image, say: Say) -> None:
    """Tell what a container of the image takes. Raises WorkError where the disk is too small for it."""
    storage = Storage.of(programs.pod("info", "--format", "json", doing="ask Podman where its store is"))
    size = f"{image.size / 1e9:.1f} GB"
    if storage.copies_always:
        what = f"Podman's driver vfs copies the whole image for each container, {size}"
        cure = "make room there, or change to overlay (strix-finetune doctor says how)"
        tail = "with overlay it would not: strix-finetune doctor says how"
    elif os.geteuid() == 0 or _SHIFTS in storage.program or storage.has_copy(image):
        return
    else:
        what = f"rootless Podman copies the image once for your user id, {size}"
        cure = "make room there"
        tail = "the next one costs nothing"
    free = shutil.disk_usage(storage.root).free
    if free < image.size:
        message = f"{what}, and {storage.root} has {free / 1e9:.1f} GB"
        raise WorkError(Problem(message, cure=cure))
    say(f"{what} more below {storage.root} ({free / 1e9:.0f} GB free), {_time(image.size)}; {tail}")


def _time(size: int) -> str:
    seconds = size / _COPIED_A_SECOND
    took = f"some {seconds:.0f} s" if seconds < 90 else f"some {seconds / 60:.0f} min"
    return f"and {took} where files are copied as fast as was measured"
