"""GPUs: is there one, does the driver have it, what is known of it, and which of several is meant."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor import distro, gpus
from strix_finetune.doctor.checks.wsl import is_wsl
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding

_HIDDEN = ("nomodeset", "amdgpu.modeset=0", "modprobe.blacklist=amdgpu")


def gpu(host: Host) -> Iterator[Finding]:
    found = gpus.find(host)
    if found:
        kinds = dict.fromkeys(item.gfx for item in found)
        names = [f"{item.device} (GPU {number})" if found[1:] else item.device for number, item in enumerate(found)]
        parts = [
            f"{kind} at {', '.join(name for name, item in zip(names, found, strict=True) if item.gfx == kind)}"
            for kind in kinds
        ]
        product = gpus.products(host, found[0].gfx) if len(kinds) == 1 else ""
        says = f"ROCm's driver has {' and '.join(parts)}{f': {product}' if product else ''}"
        yield Finding("ok", says, data={"targets": [item.gfx for item in found]})
        return
    if is_wsl(host):
        return
    on_bus = gpus.on_bus(host)
    if not on_bus:
        if host.exists("sys/bus/pci/devices") or host.exists("sys/class/drm"):
            yield Finding("advice", "there is no AMD GPU; images of the target cpu are what runs here")
        else:
            yield Finding("unknown", "the tree does not show which devices there are")
        return
    card = on_bus[0]
    words = (host.text("proc/cmdline") or "").split()
    hidden = [word for word in words if word in _HIDDEN]
    if hidden:
        yield Finding(
            "blocks",
            f"the GPU {card.ids} is switched off by '{hidden[0]}' on the kernel's command line",
            "remove it there and restart",
            distro.kernel_arguments(distro.find(host), remove=hidden),
        )
    elif card.driver == "vfio-pci":
        yield Finding("blocks", f"the GPU {card.ids} is given to virtual machines (vfio-pci)", "give it back to amdgpu")
    elif card.driver == "amdgpu":
        yield Finding(
            "blocks",
            f"the driver has the GPU {card.ids}, and offers no computing on it: the kernel is too old for it or built "
            "without HSA_AMD",
            "install a kernel of the table in docs/host.md",
        )
    else:
        release = host.line("proc/sys/kernel/osrelease") or "in use"
        yield Finding(
            "blocks",
            f"no driver has the GPU {card.ids} (kernel {release})",
            "load amdgpu; where that fails, `sudo dmesg | grep amdgpu` says why",
            ("sudo modprobe amdgpu",),
        )


def target(host: Host) -> Iterator[Finding]:
    for gfx in dict.fromkeys(item.gfx for item in gpus.meant(host)):
        entry = host.targets.get(gfx)
        if entry is None:
            yield Finding("warning", f"there are no images for {gfx}", "use the target cpu, or another GPU")
        elif entry.get("excluded"):
            yield Finding("warning", f"{gfx} is excluded: {entry['excluded']}", "use the target cpu, or another GPU")
        elif isinstance(problems := entry.get("problems"), list) and problems:
            for problem in problems:
                yield Finding("advice", f"{gfx}: {problem}")
        else:
            yield Finding("ok", f"nothing bad is known of {gfx}")


def several(host: Host) -> Iterator[Finding]:
    """More than one GPU: which is taken, and how a small one is kept out of a container."""
    found = gpus.find(host)
    kinds = list(dict.fromkeys(item.gfx for item in found))
    if len(found) < 2:
        return
    if len(kinds) == 1:
        yield Finding("ok", f"{len(found)} GPUs of one kind ({kinds[0]})", data={"gpus": len(found)})
        return
    best = gpus.meant(host)[0]
    devices = " ".join(f"--device {item.device}" for item in gpus.meant(host))
    rest = ", ".join(kind for kind in kinds if kind != best.gfx)
    says = f"beside {best.gfx} there is {rest}, which libraries built for {best.gfx} have no code for"
    yield Finding(
        "warning",
        says,
        f"strix-finetune train, run and shell with --target {best.gfx} give the container that kind alone, and --gpu "
        f"{found.index(best)} names one; with other tools `--device /dev/kfd {devices}` in the place of /dev/dri "
        "does it; the kernel hides the others, and no variable is needed",
        data={"best": best.gfx, "others": [kind for kind in kinds if kind != best.gfx]},
    )


CHECKS = (
    Check(
        "gpu",
        "Without the compute driver every program says only that there is no device.",
        "Linux, drivers/gpu/drm/amd/amdkfd (topology files)",
        ("ok", "advice", "blocks", "unknown"),
        gpu,
    ),
    Check(
        "target",
        "What is known to go wrong on a GPU is better read before a night of training.",
        "images/targets.toml",
        ("ok", "advice", "warning"),
        target,
    ),
    Check(
        "several-gpus",
        "An integrated GPU beside a card is found first, crashes libraries without code for it, and a variable that "
        "hides it, baked into an image, hides the only GPU of the next machine.",
        "https://rocm.docs.amd.com/en/latest/install/docker-containers.html",
        ("ok", "warning"),
        several,
    ),
)
