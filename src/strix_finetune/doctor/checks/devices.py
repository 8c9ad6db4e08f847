"""The device files that ROCm opens, and whether this user may."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor import gpus, user
from strix_finetune.doctor.checks.wsl import is_wsl
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Datum, Finding

_KFD = "/dev/kfd"
_MARKS = ("run/.containerenv", ".dockerenv")


def devices(host: Host) -> Iterator[Finding]:
    found = gpus.find(host)
    if is_wsl(host) or not (found or host.exists(_KFD)):
        return
    who = user.find(host)
    for path in dict.fromkeys([_KFD, *(item.device for item in found)]):
        yield _device(host, path, who)


def container(host: Host) -> Iterator[Finding]:
    """Doctor itself in a container sees what the container was given."""
    if _in_container(host):
        yield Finding(
            "advice",
            "this is the inside of a container: what follows is what it was given, not what the host has",
            "run doctor on the host",
        )


def _in_container(host: Host) -> bool:
    return any(host.exists(mark) for mark in _MARKS)


def _device(host: Host, path: str, who: user.User | None) -> Finding:
    owner = host.owner(path)
    if owner is None:
        if _in_container(host):
            return Finding(
                "blocks",
                f"the container was started without {path}",
                f"start it with --device {path} (strix-finetune run does)",
            )
        return Finding(
            "blocks", f"{path} does not exist though the driver has the GPU", "load the module anew",
            ("sudo udevadm trigger --subsystem-match=drm --subsystem-match=kfd",),
        )  # fmt: skip
    group = user.group_name(host, owner.gid)
    data: dict[str, Datum] = {"mode": f"{owner.mode:04o}", "gid": owner.gid, "group": group}
    if who is None:
        return Finding("unknown", f"{path} belongs to group {group}; the tree does not show who you are", data=data)
    if host.edges is not None and not who.stands_for:
        refusal = host.edges.open(path)
        allowed = not refusal
    else:
        allowed = who.may_use(owner)
        refusal = "permission denied"
    if allowed:
        return Finding("ok", f"{who.name} can open {path} (group {group}, mode {owner.mode:04o})", data=data)
    if refusal != "permission denied":
        return Finding(
            "blocks", f"{path} cannot be opened: {refusal}", "`sudo dmesg | grep amdgpu` says why", data=data
        )
    if who.may_after_login(owner) and not who.stands_for:
        return Finding(
            "blocks",
            f"{who.name} is in group {group} since the last login, and this session does not know it",
            "log out and in again (or restart)",
            data=data,
        )
    if owner.mode & 0o060 != 0o060 or group == "root":
        return Finding(
            "blocks",
            f"{path} is root's alone (mode {owner.mode:04o}): the rules that give it to a group are missing",
            "let udev give it to group render",
            (
                'echo \'SUBSYSTEM=="kfd", GROUP="render", MODE="0660"\' | sudo tee /etc/udev/rules.d/70-kfd.rules',
                "sudo udevadm control --reload && sudo udevadm trigger --subsystem-match=kfd --subsystem-match=drm",
            ),
            data=data,
        )
    return Finding(
        "blocks",
        f"{who.name} may not open {path}: it belongs to group {group} ({owner.gid}), which {who.name} is not in",
        f"join the group {group}, then log out and in again",
        (f"sudo usermod -aG {group} {who.name}",),
        data=data,
    )


CHECKS = (
    Check(
        "container",
        "A check from inside a toolbox or container sees its mounts and groups, and blames the wrong ones.",
        "https://github.com/containers/podman (/run/.containerenv), Docker (/.dockerenv)",
        ("advice",),
        container,
    ),
    Check(
        "devices",
        "ROCm opens /dev/kfd and /dev/dri/renderD*; who may not is told that there is no device. Mode 0666 is no cure: "
        "it lets every account of the machine compute, and read what is left in the GPU's memory.",
        "https://github.com/kyuz0/amd-strix-halo-llm-finetuning/issues/3",
        ("ok", "blocks", "unknown"),
        devices,
    ),
)
