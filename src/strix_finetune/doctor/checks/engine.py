"""The container engine: is there one, does it answer, what does it lack."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor import distro
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Datum, Finding

_FOLDERS = ("usr/bin", "usr/local/bin", "usr/sbin", "bin", "snap/bin")


def has_program(host: Host, name: str) -> bool:
    return any(host.exists(f"{folder}/{name}") for folder in _FOLDERS)


def kind(host: Host) -> str:
    """ "docker" or "podman": the engine that answers, else the one whose program is there; empty without any."""
    if host.edges is not None and (info := host.edges.engine().info):
        return info.kind
    return next((name for name in ("docker", "podman") if has_program(host, name)), "")


def engine(host: Host) -> Iterator[Finding]:
    there = [name for name in ("docker", "podman") if has_program(host, name)]
    system = distro.find(host)
    install = distro.install(
        system, "podman" if system.family == "fedora" else "docker.io", "podman", "docker", "podman"
    )
    if host.edges is None:
        if there:
            yield Finding("unknown", f"{' and '.join(there)} installed; whether it answers shows on the machine itself")
        elif host.exists("usr/bin"):
            yield Finding("blocks", "neither Docker nor Podman is installed", "install one", install)
        else:
            yield Finding("unknown", "the tree does not show which programs are installed")
        return
    state = host.edges.engine()
    if state.info is None:
        problem = state.problem
        says = problem.message if problem else "no container engine answers"
        if not there:
            yield Finding("blocks", "neither Docker nor Podman is installed", "install one", install)
        else:
            yield Finding("blocks", says, problem.cure if problem else "", data={"programs": there})
        return
    info = state.info
    data: dict[str, Datum] = {
        "kind": info.kind, "version": info.version, "rootless": info.rootless, "url": info.url,
        "runtime": state.runtime, "storage": state.storage, "data_root": state.data_root,
    }  # fmt: skip
    name = f"{info.kind.capitalize()} {info.version}{' (rootless)' if info.rootless else ''}"
    if state.storage == "vfs":
        yield Finding(
            "warning",
            f"{name} keeps images with the driver vfs: every layer is a full copy of all below it",
            "install fuse-overlayfs, or use a kernel and file system with overlay",
            distro.install(system, "fuse-overlayfs"),
            data,
        )
    else:
        yield Finding("ok", f"{name} answers", data=data)


CHECKS = (
    Check(
        "engine",
        "Three states look alike from afar: not running, running and not for this user, and an address in DOCKER_HOST "
        "that leads elsewhere.",
        "https://docs.docker.com/engine/daemon/troubleshoot/",
        ("ok", "warning", "blocks", "unknown"),
        engine,
    ),
)
