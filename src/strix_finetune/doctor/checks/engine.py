"""The container engine: is there one, does it answer, what does it lack."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from strix_finetune.doctor import distro, gpus
from strix_finetune.doctor.edges import EngineState
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Datum, Finding
from strix_finetune.engine.base import EngineInfo

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
    yield _answering(host, state, system)


def _answering(host: Host, state: EngineState, system: distro.Distro) -> Finding:
    info = state.info
    assert info is not None
    data: dict[str, Datum] = {
        "kind": info.kind,
        "version": info.version,
        "rootless": info.rootless,
        "url": info.url,
        "runtime": state.runtime,
        "storage": state.storage,
        "data_root": state.data_root,
    }
    name = f"{info.kind.capitalize()} {info.version}{' (rootless)' if info.rootless else ''}"
    devices = bool(gpus.find(host))
    if devices and "Docker Desktop" in state.system:
        return Finding(
            "blocks",
            f"{name} answers from Docker Desktop's virtual machine, which has no GPU",
            "use the engine of this machine itself",
            ("docker context use default",),
            data,
        )
    if devices and info.kind == "docker" and info.rootless:
        return Finding(
            "warning",
            f"{name} answers; it cannot hand on the groups that may open the GPU's devices",
            "use rootless Podman with crun, or Docker's usual service",
            distro.install(system, "podman crun"),
            data,
        )
    if state.storage == "vfs":
        message = f"{name} keeps images with the driver vfs: every layer, and every container, is a full copy"
        return Finding("warning", message, *_instead_of_vfs(host, info, system), data)
    return Finding("ok", f"{name} answers", data=data)


def _instead_of_vfs(host: Host, info: EngineInfo, system: distro.Distro) -> tuple[str, tuple[str, ...]]:
    """What to do, and the commands for it.

    Podman 4.3 takes vfs for a user where no fuse-overlayfs is installed, also where the kernel could do without:
    Linux mounts overlay within user namespaces since 5.11, with SELinux since 5.13.
    """
    if info.kind != "podman":
        return "keep images on a file system with overlay (ext4, xfs, btrfs), and take vfs out of its settings", ()
    place = "~/.config/containers/storage.conf" if info.rootless else "/etc/containers/storage.conf"
    reset = "podman system reset" if info.rootless else "sudo podman system reset"
    numbers = re.match(r"(\d+)\.(\d+)", host.line("proc/sys/kernel/osrelease"))
    if info.rootless and (numbers is None or (int(numbers[1]), int(numbers[2])) < (5, 13)):
        cure = "install fuse-overlayfs, then reset the store, which removes its images and containers"
        return cure, (*distro.install(system, "fuse-overlayfs"), reset)
    cure = "reset the store, which removes its images and containers, and write driver = 'overlay' under [storage] in"
    return f"{cure} {place}", (reset,)


def cdi(host: Host) -> Iterator[Finding]:
    """Specifications of AMD's GPUs as named devices, which engines then read before every start."""
    for path in (*host.glob("etc/cdi/*.json"), *host.glob("var/run/cdi/*.json")):
        try:
            spec = json.loads(host.text(path) or "")
        except (ValueError, RecursionError):
            spec = None
        nodes = _nodes(spec)
        if not isinstance(spec, dict) or not str(spec.get("kind", "")).startswith("amd.com/"):
            continue
        lacking = [node for node in nodes if not host.exists(node)]
        if lacking:
            yield Finding(
                "warning",
                f"/{path} names {', '.join(lacking)}, which this machine does not have: containers with "
                f"{spec['kind']}=all do not start",
                "make it anew; each change of the GPUs or of the kernel's numbering asks for that",
                (f"sudo amd-ctk cdi generate --output=/{path}",),
                {"path": f"/{path}", "lacking": lacking},
            )
        else:
            yield Finding("ok", f"/{path} names devices that are there", data={"path": f"/{path}"})


def _nodes(spec: object) -> list[str]:
    """The device files in a specification, each once; nothing for what has another form."""
    found: dict[str, None] = {}
    devices = spec.get("devices") if isinstance(spec, dict) else None
    for device in devices if isinstance(devices, list) else []:
        edits = device.get("containerEdits") if isinstance(device, dict) else None
        nodes = edits.get("deviceNodes") if isinstance(edits, dict) else None
        for node in nodes if isinstance(nodes, list) else []:
            path = node.get("path") if isinstance(node, dict) else None
            if isinstance(path, str):
                found[path] = None
    return list(found)


CHECKS = (
    Check(
        "engine",
        "Three states look alike from afar: not running, running and not for this user, and an address in DOCKER_HOST "
        "that leads elsewhere.",
        "https://docs.docker.com/engine/daemon/troubleshoot/",
        ("ok", "warning", "blocks", "unknown"),
        engine,
    ),
    Check(
        "cdi",
        "A specification of named devices (CDI) is made once; with other GPUs, or another numbering, no container that "
        "asks for one starts.",
        "https://github.com/ROCm/container-toolkit",
        ("ok", "warning"),
        cdi,
    ),
)
