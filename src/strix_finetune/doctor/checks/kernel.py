"""The kernel and the GPU's firmware, held against the table of what is known."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor import distro, firmware, gpus, known, packages
from strix_finetune.doctor.checks.wsl import is_wsl
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding

# ids on the bus → target, for kernels that are too old to tell: all Radeon 8040S to 8060S have one id
_ON_BUS = {"1002:1586": "gfx1151"}
_UPDATES = "lib/firmware/updates/amdgpu"


def kernel(host: Host) -> Iterator[Finding]:
    targets = _targets(host)
    if is_wsl(host) or not targets:
        return
    name = host.line("proc/sys/kernel/osrelease")
    if not name:
        yield Finding("unknown", "the tree does not show which kernel runs")
        return
    system = distro.find(host)
    running = known.kernel(name, ubuntu=system.ubuntu)
    data = {"release": name, "flavour": running.flavour}
    for target in targets:
        entry = known.kernel_entry(known.table().kernels, target, running, system.codename)
        if entry is None:
            why = "a distribution's kernel with patches of its own" if running.flavour == "other" else "no entry for it"
            yield Finding("unknown", f"kernel {name} with {target}: not in the table ({why})", data=data)
            continue
        cure = f"install kernel {entry.cure} or later and restart" if entry.cure else ""
        yield Finding(
            entry.verdict,
            f"kernel {name} {entry.says}",
            cure,
            _newer(system, running) if cure else (),
            {**data, "source": entry.link, "date": entry.date},
        )


def mes(host: Host) -> Iterator[Finding]:
    """The firmware of the queue scheduler."""
    entries = known.table().firmware
    for target in _targets(host):
        if is_wsl(host) or not any(target in entry.targets for entry in entries):
            continue
        found = firmware.find(host, target)
        names = dict.fromkeys(name for entry in entries for name in entry.packages)
        package = packages.version(host, *names)
        if found:
            entry = known.firmware_entry(entries, target, found.version)
            what, data = f"MES firmware 0x{found.version:02x}", {"mes": f"0x{found.version:02x}", "place": found.place}
        elif package:
            entry = known.package_entry(entries, target, *package)
            what, data = f"{package[0]} {package[1]}", {"package": " ".join(package)}
        else:
            yield Finding("unknown", "neither the firmware nor its package can be read here")
            continue
        if entry is None:
            if found:
                yield Finding("ok", f"{what} is not among the bad ones", data=data)
            else:
                yield Finding(
                    "unknown", f"{what} is not in the table, and the firmware itself cannot be read", data=data
                )
            continue
        fix = ""
        if entry.verdict != "ok":
            fix = "update the firmware package, make the initramfs anew and restart"
            if found and "updates" in found.place:
                fix = (
                    f"remove {found.place}, which comes before the distribution's, make the initramfs anew, and restart"
                )
        if found and not found.loaded and entry.verdict != "ok":
            what += f" in {found.place}"
        yield Finding(
            entry.verdict,
            f"{what} {entry.says}",
            fix,
            _newer_firmware(distro.find(host)) if fix.startswith("update") else (),
            {**data, "source": entry.link, "date": entry.date},
        )


def dkms_firmware(host: Host) -> Iterator[Finding]:
    """Firmware that AMD's driver package leaves behind and the kernel prefers to the distribution's."""
    if not _targets(host):
        return
    name, driver = "amdgpu-dkms-firmware", packages.version(host, "amdgpu-dkms")
    package = packages.version(host, name)
    files = host.names(_UPDATES)
    if driver and package:
        yield Finding("ok", f"{name} {package[1]} belongs to the installed driver amdgpu-dkms {driver[1]}")
    elif package or files:
        what = f"the package {name} {package[1]}" if package else f"{len(files)} files in /{_UPDATES}"
        system = distro.find(host)
        removal = {"debian": f"sudo apt purge {name}", "fedora": f"sudo dnf remove {name}"}.get(system.family, "")
        yield Finding(
            "warning",
            f"{what} is left from AMD's driver, which is not installed: the kernel takes this firmware before the "
            "distribution's, whatever is updated",
            "remove it, make the initramfs anew and restart",
            tuple(filter(None, [removal if package else f"sudo rm -r /{_UPDATES}", _initramfs(system)])),
        )


def _targets(host: Host) -> list[str]:
    found = [item.gfx for item in gpus.meant(host)] or [
        _ON_BUS[card.ids] for card in gpus.on_bus(host) if card.ids in _ON_BUS
    ]
    return list(dict.fromkeys(found))


def _newer(system: distro.Distro, running: known.Kernel) -> tuple[str, ...]:
    if system.image:
        return ("sudo rpm-ostree upgrade",)
    if system.ubuntu:
        # which of Ubuntu's OEM kernels a machine wants only its maker knows
        oem = running.flavour == "ubuntu-oem"
        return ("sudo apt update && sudo apt full-upgrade" if oem else "sudo apt install linux-generic-hwe-24.04",)
    return {"fedora": ("sudo dnf upgrade kernel",), "arch": ("sudo pacman -Syu",)}.get(system.family, ())


def _newer_firmware(system: distro.Distro) -> tuple[str, ...]:
    if system.image:
        return ("sudo rpm-ostree upgrade",)
    commands = {
        "fedora": "sudo dnf upgrade amd-gpu-firmware",
        "arch": "sudo pacman -Syu",
        "debian": "sudo apt update && sudo apt install --only-upgrade "
        + ("linux-firmware" if system.ubuntu else "firmware-amd-graphics"),
    }
    return tuple(filter(None, [commands.get(system.family, ""), _initramfs(system)]))


def _initramfs(system: distro.Distro) -> str:
    if system.image:
        return ""
    return {"debian": "sudo update-initramfs -u -k all", "fedora": "sudo dracut -f", "arch": "sudo mkinitcpio -P"}.get(
        system.family, ""
    )


CHECKS = (
    Check(
        "kernel",
        "On gfx1151 older kernels compute for a while and then hang; two changes of the compute driver are needed.",
        "https://rocm.docs.amd.com/en/latest/reference/system-optimization/rdna3-5.html",
        ("ok", "warning", "unknown"),
        kernel,
    ),
    Check(
        "firmware",
        "One version of the queue scheduler's firmware hangs Strix Halo, and a new kernel does not help.",
        "https://github.com/ROCm/legacy-rocm-build/issues/5724",
        ("ok", "blocks", "unknown"),
        mes,
    ),
    Check(
        "dkms-firmware",
        "AMD's driver package leaves firmware that the kernel prefers for ever to what the distribution mends.",
        "https://github.com/ROCm/legacy-rocm-build/issues/5566",
        ("ok", "warning"),
        dkms_firmware,
    ),
)
