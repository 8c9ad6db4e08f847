"""SELinux: whether its policy lets containers use the GPU's device files."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor import gpus, packages
from strix_finetune.doctor.checks.engine import kind
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding

_BOOLEANS = "sys/fs/selinux/booleans"
_ALL = "container_use_devices"
_DRI = "container_use_dri_devices"


def selinux(host: Host) -> Iterator[Finding]:
    state = host.line("sys/fs/selinux/enforce")
    if not state:
        return
    if state != "1":
        yield Finding("ok", "SELinux only warns (permissive)")
        return
    if not gpus.find(host):
        yield Finding("ok", "SELinux is enforcing; there is no GPU that it could keep from a container")
        return
    package = packages.version(host, "container-selinux")
    data = {"container_selinux": package[1] if package else ""}
    # "now" and "after the next change", such as "1 1"
    values = {name: host.line(f"{_BOOLEANS}/{name}")[:1] for name in (_ALL, _DRI)}
    if values[_ALL] == "1":
        yield Finding("ok", f"SELinux is enforcing, and {_ALL} lets containers use devices", data=data)
    elif not any(values.values()):
        yield Finding("unknown", "SELinux is enforcing, and its switches for containers cannot be read", data=data)
    elif values[_DRI] == "1":
        yield Finding(
            "advice",
            f"SELinux is enforcing: {_DRI} lets containers use /dev/dri, and some policies deny them to map /dev/kfd",
            f"where ROCm finds no device and `sudo ausearch -m avc -ts recent` names hsa_device_t, switch {_ALL} on",
            (f"sudo setsebool -P {_ALL} 1",),
            data,
        )
    elif kind(host) == "docker":
        yield Finding(
            "advice",
            "SELinux is enforcing and denies devices to labelled containers; Docker labels its own only when told to",
            f"with selinux-enabled in Docker's daemon.json, switch {_ALL} on",
            (f"sudo setsebool -P {_ALL} 1",),
            data,
        )
    else:
        yield Finding(
            "blocks",
            "SELinux is enforcing and denies containers the GPU's devices",
            f"switch {_ALL} on (for all containers of this machine); Toolbx needs none of this",
            (f"sudo setsebool -P {_ALL} 1",),
            data,
        )


CHECKS = (
    Check(
        "selinux",
        "A denial looks as if there were no GPU. Labels are switched off by many guides; one switch of the policy is "
        "narrower.",
        "https://github.com/containers/podman/issues/15930, https://github.com/containers/container-selinux/issues/269",
        ("ok", "advice", "blocks", "unknown"),
        selinux,
    ),
)
