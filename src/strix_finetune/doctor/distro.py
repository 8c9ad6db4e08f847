"""Which distribution this is, and how one says things to it: packages, kernel arguments, a module's options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from strix_finetune.doctor.host import Host

_GRUB_FILE = "/etc/default/grub.d/strix-finetune.cfg"


@dataclass(frozen=True, slots=True)
class Distro:
    """`family`: debian, fedora, arch, suse, or empty. `image`: the system is replaced as a whole (rpm-ostree).

    `ubuntu`: Ubuntu or made of it; `codename` is then that of the Ubuntu.
    """

    id: str
    name: str
    family: str
    codename: str
    image: bool
    ubuntu: bool


def find(host: Host) -> Distro:
    fields = {}
    for line in (host.text("etc/os-release") or host.text("usr/lib/os-release") or "").splitlines():
        key, _, value = line.partition("=")
        fields[key.strip()] = value.strip().strip("\"'")
    kinds = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
    families = {
        "debian": {"debian", "ubuntu"},
        "fedora": {"fedora", "rhel", "centos"},
        "arch": {"arch"},
        "suse": {"suse", "opensuse"},
    }
    family = next((name for name, members in families.items() if members & set(kinds)), "")
    codename = fields.get("UBUNTU_CODENAME") or fields.get("VERSION_CODENAME", "")
    name = fields.get("PRETTY_NAME") or fields.get("ID") or "a distribution that does not say its name"
    return Distro(fields.get("ID", ""), name, family, codename, host.exists("run/ostree-booted"), "ubuntu" in kinds)


def install(distro: Distro, debian: str, fedora: str = "", arch: str = "", suse: str = "") -> tuple[str, ...]:
    """The command that installs a package, which has other names elsewhere; empty for other distributions."""
    fedora, arch, suse = fedora or debian, arch or debian, suse or debian
    if distro.image:
        return (f"sudo rpm-ostree install {fedora}",)
    return {
        "debian": (f"sudo apt install {debian}",),
        "fedora": (f"sudo dnf install {fedora}",),
        "arch": (f"sudo pacman -S {arch}",),
        "suse": (f"sudo zypper install {suse}",),
    }.get(distro.family, ())


def kernel_arguments(distro: Distro, add: Sequence[str] = (), remove: Sequence[str] = ()) -> tuple[str, ...]:
    """The commands that change the kernel's command line; they hold from the next start on.

    On Debian's family arguments are added in a file of their own, which is how one takes them back; what somebody
    wrote into /etc/default/grub has to be removed there.
    """
    if distro.image:
        flags = [*(f"--append-if-missing={item}" for item in add), *(f"--delete-if-present={item}" for item in remove)]
        return (f"sudo rpm-ostree kargs {shlex.join(flags)}",)
    if distro.family == "fedora":
        words = ["sudo", "grubby", "--update-kernel=ALL"]
        words += [f"--args={' '.join(add)}"] * bool(add) + [f"--remove-args={' '.join(remove)}"] * bool(remove)
        return (shlex.join(words),)
    if distro.family == "debian":
        steps = [rf"sudo sed -i 's/ *{item.replace('.', '[.]')}//' /etc/default/grub" for item in remove]
        if add:
            line = f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {" ".join(add)}"'
            steps.append(f"echo '{line}' | sudo tee -a {_GRUB_FILE}")
        return (*steps, "sudo update-grub")
    return ()
