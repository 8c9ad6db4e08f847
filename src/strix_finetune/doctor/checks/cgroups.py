"""Control groups: the unified hierarchy, the old ones, or both."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor import distro, gpus, user
from strix_finetune.doctor.checks.engine import has_program, kind
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding

_MODES = (
    ("unified", "sys/fs/cgroup/cgroup.controllers"),
    ("hybrid", "sys/fs/cgroup/unified/cgroup.controllers"),
    ("old", "sys/fs/cgroup/memory"),
)


def cgroups(host: Host) -> Iterator[Finding]:
    mode = next((name for name, path in _MODES if host.exists(path)), "")
    data = {"mode": mode}
    if not mode:
        yield Finding("unknown", "the tree does not show how control groups are laid out")
        return
    if mode == "unified":
        yield Finding("ok", "control groups are unified", data=data)
        return
    argument = "systemd.unified_cgroup_hierarchy=1"
    commands = distro.kernel_arguments(distro.find(host), [argument])
    fix = f"start the kernel with {argument}"
    engine, who = kind(host), user.find(host)
    if engine == "podman" and who and not who.root and gpus.find(host):
        yield Finding(
            "blocks",
            f"control groups are {mode}: crun fails here, and runc loses the groups that may open the GPU",
            fix,
            commands,
            data,
        )
    elif engine == "podman" or has_program(host, "podman"):
        yield Finding(
            "warning",
            f"control groups are {mode}: crun fails on such hosts, and a user's containers have no memory limit",
            fix,
            commands,
            data,
        )
    else:
        yield Finding("ok", f"control groups are {mode}, which Docker can work with", data=data)


CHECKS = (
    Check(
        "cgroups",
        "On hosts with old or hybrid control groups crun fails to make a container; without crun a rootless one does "
        "not reach the GPU.",
        "https://github.com/containers/crun/issues/617",
        ("ok", "warning", "blocks", "unknown"),
        cgroups,
    ),
)
