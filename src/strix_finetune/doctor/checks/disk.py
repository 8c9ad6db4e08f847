"""Room for images, where the engine really keeps them, and for temporary files."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator

from strix_finetune.doctor import user
from strix_finetune.doctor.checks.engine import kind
from strix_finetune.doctor.edges import Space
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.memory import GIB, gib, words
from strix_finetune.doctor.values import Check, Datum, Finding

# images hold many small files: some 100,000 with ROCm
_INODES = 400_000
_TMP = 4 * GIB
# overlay and rootless stores do not work there
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "vboxsf", "drvfs")


def store(host: Host) -> Iterator[Finding]:
    path = _data_root(host)
    if not path:
        return
    kind_of = file_system(host, path)
    if kind_of in _REMOTE:
        yield Finding(
            "blocks",
            f"images are kept in {path}, on {kind_of}, where containers' file systems do not work",
            "move the engine's data root to a local disk",
            data={"path": path, "file_system": kind_of},
        )
        return
    space = host.edges.space(path) if host.edges else None
    if host.edges is None or space is None:
        why = "how much is free shows on the machine itself" if host.edges is None else "nothing there can be read"
        yield Finding("unknown", f"images are kept in {path}; {why}", data={"path": path})
        return
    need = host.edges.budget()
    # while a layer is built and committed, its files exist twice
    wish = need * 2
    data: dict[str, Datum] = {"path": path, "free_gib": gib(space.free), "needed_gib": gib(need), **_inode_data(space)}
    if need and space.free < need:
        yield Finding(
            "blocks",
            f"{path} has {words(space.free)} free, and the images may take {words(need)}",
            "make room there, or move the engine's data root",
            data=data,
        )
    elif space.inodes and space.inodes_free < _INODES:
        yield Finding(
            "blocks" if space.inodes_free < _INODES // 4 else "warning",
            f"{path} has {space.inodes_free:,} inodes free, and images may need {_INODES:,}",
            "remove many small files there, or move the engine's data root",
            data=data,
        )
    elif space.free < wish:
        yield Finding(
            "warning",
            f"{path} has {words(space.free)} free; images may take {words(need)}, and twice that while they are built",
            "make room there before building",
            data=data,
        )
    else:
        yield Finding("ok", f"{path} has {words(space.free)} free", data=data)


def temporary(host: Host) -> Iterator[Finding]:
    """TMPDIR, or what stands in for it: build contexts and downloads pass through."""
    named = host.env.get("TMPDIR", "")
    path = named or ("/var/tmp" if kind(host) == "podman" else "/tmp")
    if host.edges is None:
        return
    space = host.edges.space(path)
    if space is None or (named and not host.exists(named)):
        yield Finding(
            "blocks",
            f"TMPDIR is {path}, which cannot be used",
            "name a folder that exists, or unset it",
            ("unset TMPDIR",),
        )
        return
    data: dict[str, Datum] = {"path": path, "free_gib": gib(space.free), "needed_gib": gib(_TMP), **_inode_data(space)}
    memory = " (in memory)" if file_system(host, path) == "tmpfs" else ""
    if space.free < _TMP:
        yield Finding(
            "warning",
            f"{path}{memory} has {words(space.free)} free, and build contexts with wheels need up to {words(_TMP)}",
            "set TMPDIR to a folder on a disk",
            ("export TMPDIR=/var/tmp",) if path == "/tmp" else (),
            data,
        )
    elif space.inodes and space.inodes_free < _INODES // 4:
        yield Finding(
            "warning",
            f"{path}{memory} has {space.inodes_free:,} inodes free",
            "remove many small files there, or set TMPDIR to another folder",
            data=data,
        )
    else:
        yield Finding("ok", f"{path}{memory} has {words(space.free)} free", data=data)


def file_system(host: Host, path: str) -> str:
    """The type of the file system that a path is on, by the mount table; empty without one."""
    best, found = -1, ""
    for line in (host.text("proc/self/mountinfo") or "").splitlines():
        words_ = line.split()
        if "-" not in words_[6:] or len(words_) < 5:
            continue
        after = words_[words_.index("-", 6) + 1 :]
        point = words_[4].replace("\\040", " ")
        below = point == "/" or path == point or path.startswith(f"{point}/")
        # of several mounts at one place the last is what one sees
        if after and below and len(point) >= best:
            best, found = len(point), after[0]
    return found


def _data_root(host: Host) -> str:
    """Where images are kept: as the engine says, else as its configuration does."""
    if host.edges is not None:
        state = host.edges.engine()
        if state.info is not None:
            return state.data_root
    match kind(host):
        case "docker":
            try:
                found = json.loads(host.text("etc/docker/daemon.json") or "{}")
            except (ValueError, RecursionError):
                found = {}
            root = found.get("data-root") if isinstance(found, dict) else None
            return root if isinstance(root, str) and root.startswith("/") else "/var/lib/docker"
        case "podman":
            return _podman_root(host)
    return ""


def _podman_root(host: Host) -> str:
    who = user.find(host)
    if who is None:
        return ""
    home = f"/{who.home.strip('/')}"
    path = "etc/containers/storage.conf" if who.root else f"{home}/.config/containers/storage.conf"
    try:
        found = tomllib.loads(host.text(path) or "").get("storage")
    except (ValueError, RecursionError):
        found = None
    root = found.get("graphroot") if isinstance(found, dict) else None
    if isinstance(root, str) and root.startswith("/"):
        return root
    return "/var/lib/containers/storage" if who.root else f"{home}/.local/share/containers/storage"


def _inode_data(space: Space) -> dict[str, Datum]:
    return {"inodes_free": space.inodes_free} if space.inodes else {}


CHECKS = (
    Check(
        "disk",
        "A full disk shows late in a build, often as another error; the engine's folder is often on a small partition "
        "or a network drive.",
        "https://docs.podman.io/en/latest/markdown/podman.1.html (rootless mode and network file systems)",
        ("ok", "warning", "blocks", "unknown"),
        store,
    ),
    Check(
        "temporary",
        "Build contexts and wheels pass through TMPDIR; /tmp is often in memory, and small.",
        "https://docs.podman.io/en/latest/markdown/podman-build.1.html (TMPDIR)",
        ("ok", "warning", "blocks"),
        temporary,
    ),
)
