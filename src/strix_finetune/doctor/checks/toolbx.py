"""Toolbx, where it is installed: what it needs of the host, what it does not hand on, and the image for it."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor import gpus, user
from strix_finetune.doctor.checks.engine import has_program
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding
from strix_finetune.toolbx.contract import faults

_BUS = "/run/dbus/system_bus_socket"
_KFD = "/dev/kfd"


def toolbx(host: Host) -> Iterator[Finding]:
    if not has_program(host, "toolbox"):
        return
    found = [*_bus(host), *_groups(host), *_image(host)]
    if found:
        yield from found
    else:
        yield Finding("unknown", "Toolbx is installed; which image it would take shows on the machine itself")


def _bus(host: Host) -> Iterator[Finding]:
    # a copied tree has no sockets
    if host.edges is not None and not (host.exists(_BUS) or host.exists(f"/var{_BUS}")):
        yield Finding(
            "warning",
            f"Toolbx asks the system's D-Bus when it makes a container, and there is none at {_BUS}",
            "start it",
            ("sudo systemctl start dbus",),
        )


def _groups(host: Host) -> Iterator[Finding]:
    """A toolbox knows the groups of its image, not those that the host gave its user."""
    who, owner = user.find(host), host.owner(_KFD)
    if owner is None or not gpus.find(host) or who is None or who.root:
        return
    if owner.uid != who.uid and owner.mode & 0o006 != 0o006:
        group = user.group_name(host, owner.gid)
        yield Finding(
            "advice",
            f"a toolbox does not get your groups, and {_KFD} is open to the group {group} alone (mode "
            f"{owner.mode:04o}): ROCm finds no GPU in it",
            "use strix-finetune shell, which keeps the groups, or let whoever sits at the machine compute: "
            "strix-finetune emit udev --access seat",
            data={"group": group},
        )


def _image(host: Host) -> Iterator[Finding]:
    image = host.edges.toolbox_image() if host.edges else None
    if image is None:
        return
    data = {"image": image.ref}
    if image.config is None:
        yield Finding(
            "advice",
            f"Podman, which Toolbx reads, has no image {image.ref}",
            "strix-finetune toolbox create copies Docker's; or build one with strix-finetune build --engine podman",
            data=data,
        )
        return
    wrong = list(faults(image.config))
    if wrong:
        fix = "build it anew, or pull one of this project"
        yield Finding("warning", f"the image {image.ref} is none for Toolbx: it {', it '.join(wrong)}", fix, data=data)
    else:
        yield Finding("ok", f"Podman has {image.ref}, and it is what Toolbx asks for", data=data)


CHECKS = (
    Check(
        "toolbx",
        "A toolbox needs an image with a label, without an entry point, in Podman's own store; and it does not hand on "
        "the groups that may open the GPU.",
        "https://github.com/containers/toolbox/pull/1732, "
        "https://github.com/kyuz0/amd-strix-halo-image-video-toolboxes/issues/1",
        ("ok", "advice", "warning", "unknown"),
        toolbx,
    ),
)
