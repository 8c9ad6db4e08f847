"""Five small layers, once as this project's definitions and once as plain Dockerfiles for the peers."""

from __future__ import annotations

import shutil
from pathlib import Path

# no target that anybody has images for
TARGET = "bench"
LAYERS = ("one", "two", "three", "four", "five")
BUSYBOX = Path("/bin/busybox")


def write_definitions(root: Path) -> Path:
    """images/ with five layers, a channel and a lock; needs Debian's busybox-static."""
    if not BUSYBOX.exists():
        raise SystemExit("install the package busybox-static for this measurement")
    images = root / "images"
    (images / "channels").mkdir(parents=True)
    (images / "locks").mkdir()
    (images / "macros.j2").write_text("")
    (images / "targets.toml").write_text(f'default = "{TARGET}"\n[target.{TARGET}]\nkind = "cpu"\nmemory = "host"\n')
    (images / "channels" / "debian.toml").write_text(
        'name = "debian"\ndescription = "bench"\npython = "3.14"\n'
        'bootstrap = { source = "mmdebstrap" }\napt = { suite = "sid" }\n'
    )
    (images / "locks" / f"debian-{TARGET}.toml").write_text(
        f'format = 1\nchannel = "debian"\ntarget = "{TARGET}"\n\n[apt]\nsuite = "sid"\n\n[apt.releases.sid]\n'
        f'date = "2026-01-01T00:00:00Z"\nsha256 = "{"0" * 64}"\n'
    )
    for number, name in enumerate(LAYERS):
        folder = images / name
        (folder / "files").mkdir(parents=True)
        parent = f'parent = ["{LAYERS[number - 1]}"]\n' if number else ""
        final = "final = true\n" if name == LAYERS[-1] else ""
        (folder / "layer.toml").write_text(f'name = "{name}"\ndescription = "bench"\n{parent}{final}')
        (folder / "Dockerfile.j2").write_text(_dockerfile("{{ parent }}" if number else "scratch", name))
        _files(folder / "files", first=not number)
    return images


def write_dockerfiles(root: Path, prefix: str) -> list[tuple[str, Path]]:
    """The same five as (name, folder with a Dockerfile)."""
    made = []
    for number, name in enumerate(LAYERS):
        folder = root / name
        (folder / "files").mkdir(parents=True)
        parent = f"{prefix}/{LAYERS[number - 1]}:1" if number else "scratch"
        (folder / "Dockerfile").write_text(_dockerfile(parent, name))
        _files(folder / "files", first=not number)
        made.append((f"{prefix}/{name}:1", folder))
    return made


def _dockerfile(parent: str, name: str) -> str:
    return f'FROM {parent}\nCOPY files/ /\nRUN ["/bin/busybox", "mkdir", "-p", "/made/by/{name}"]\n'


def _files(folder: Path, *, first: bool) -> None:
    (folder / "text").write_text("the same for all\n" * 100)
    if first:
        (folder / "bin").mkdir()
        shutil.copy(BUSYBOX, folder / "bin" / "busybox")
