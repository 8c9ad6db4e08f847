"""The device files that ROCm opens, and whether this user may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from strix_finetune.doctor import gpus, user
from strix_finetune.doctor.checks.wsl import is_wsl
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding

_KFD = "/dev/kfd"
_MARKS = ("run/.containerenv", ".dockerenv")
_DENIED = "permission denied"
_TRIGGER = "sudo udevadm trigger --subsystem-match=kfd --subsystem-match=drm"
_RULE = (
    'printf \'%s\\n\' \'SUBSYSTEM=="kfd", GROUP="render", MODE="0660"\' '
    '\'SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="render", MODE="0660"\' | sudo tee /etc/udev/rules.d/70-amdgpu.rules'
)


def devices(host: Host) -> Iterator[Finding]:
    found = gpus.find(host)
    if is_wsl(host) or not (found or host.exists(_KFD)):
        return
    who = user.find(host)
    alike: dict[Finding, list[str]] = {}
    # what many devices have in common is said once; "@" stands for their names
    for path in dict.fromkeys([_KFD, *(item.device for item in found)]):
        alike.setdefault(_device(host, path, who), []).append(path)
    for finding, paths in alike.items():
        names = ", ".join(paths)
        fix = finding.fix.replace("@", " --device ".join(paths))
        yield replace(finding, says=finding.says.replace("@", names), fix=fix, data={"devices": paths})


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
    """What is to say of one device, with "@" in the place of its name."""
    owner = host.owner(path)
    if owner is None and _in_container(host):
        return Finding("blocks", "the container was started without @", "start it with --device @")
    if owner is None:
        return Finding("blocks", "@ is missing though the driver has the GPU", "have udev make it", (_TRIGGER,))
    group = user.group_name(host, owner.gid)
    rights = f"group {group}, mode {owner.mode:04o}"
    if who is None:
        return Finding("unknown", f"@ ({rights}): the tree does not show who you are")
    refusal = "" if who.may_use(owner) else _DENIED
    if host.edges is not None and not who.stands_for:
        refusal = host.edges.open(path)
    if not refusal:
        return Finding("ok", f"{who.name} can open @ ({rights})")
    if refusal != _DENIED:
        return Finding("blocks", f"@ cannot be opened: {refusal}", "look for the reason in `sudo dmesg | grep amdgpu`")
    if who.may_after_login(owner) and not who.stands_for:
        return Finding(
            "blocks",
            f"{who.name} is in the group {group} of @, but this session began before that",
            "log out and in again, or restart",
        )
    if owner.mode & 0o060 != 0o060 or owner.gid == 0:
        return Finding(
            "blocks",
            f"@ is root's alone ({rights}): the rule that gives it to a group is missing",
            "let udev give it to the group render",
            (_RULE, f"sudo udevadm control --reload && {_TRIGGER}"),
        )
    return Finding(
        "blocks",
        f"{who.name} may not open @ ({rights}), not being in the group {group} ({owner.gid})",
        f"join the group {group}, then log out and in again",
        (f"sudo usermod -aG {group} {who.name}",),
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
