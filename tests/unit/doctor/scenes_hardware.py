"""GPUs, rights, kernels, firmware and memory."""

from __future__ import annotations

from strix_finetune.doctor.edges import EngineState
from strix_finetune.errors import Problem
from tests.unit.doctor.hosts import (
    DEBIAN,
    FEDORA,
    NOBLE,
    PHOENIX,
    RESOLUTE,
    RX7700S,
    RX7900,
    VAN_GOGH,
    FakeEdges,
    halo,
    running,
)
from tests.unit.doctor.scenes import (
    FEDORA_KERNEL,
    SECURE_BOOT,
    Scene,
    carved_halo,
    desktop,
    docker,
    expects,
    fedora_halo,
    itself,
    noble_halo,
    podman,
    server,
    wsl,
)

_LIMIT = "ttm.pages_limit=29360128"
_FILES = {"cgroups": "ok", "engine": "unknown", "disk": "unknown"}
_DESKTOP = expects(
    gpu="ok", target="advice", several_gpus="warning", devices="ok", kernel="unknown", memory="ok", iommu="ok",
    variables="ok", **_FILES,
)  # fmt: skip
_SERVER = {
    "gpu": "ok", "target": "ok", "several_gpus": "ok", "devices": "ok", "kernel": "unknown", "memory": "ok",
    "iommu": "warning", "variables": "ok", **_FILES,
}  # fmt: skip
_CARDS = ["/dev/kfd", "/dev/dri/renderD128"]

HARDWARE: dict[str, Scene] = {
    "Fedora 43, Strix Halo": Scene(
        fedora_halo,
        podman(),
        {
            "memory": {"installed_gib": 128.0, "usable_gib": 112.0, "advised_gib": 112.0, "carved_gib": 0.5},
            "kernel": {"flavour": "mainline", "release": FEDORA_KERNEL},
            "firmware": {"mes": "0x80", "place": "/lib/firmware/amdgpu/gc_11_5_1_mes_2.bin"},
            "subids": {"held": 65536, "needed": 65536},
            "iommu": {"mode": "absent"},
        },
        ("a full fine-tune of a 12B model", "/home/kim/.local/share/containers/storage"),
    ),
    "Fedora 43, Strix Halo, the machine itself": Scene(
        fedora_halo,
        itself(),
        {
            "engine": {"kind": "podman", "rootless": True},
            "disk": {"free_gib": 500.0, "needed_gib": 10.0},
            "devices": {"devices": _CARDS},
        },
        ("Podman 5.6.0 (rootless) answers",),
        FakeEdges(running("podman", rootless=True)),
    ),
    "Ubuntu 24.04, Strix Halo": Scene(
        noble_halo,
        docker(),
        {"kernel": {"flavour": "ubuntu"}, "firmware": {"mes": "0x92"}, "iommu": {"mode": "off"}},
        ("MES firmware 0x92 is not among the bad ones", "/var/lib/docker"),
    ),
    "Ubuntu 24.04, OEM kernel with amdttm, limits for the other module": Scene(
        lambda tree: noble_halo(tree, "6.14.0-1018-oem", gtt=62.5).put(
            "sys/module/amdttm/parameters/pages_limit", "16384000\n"
        ),
        docker(memory="advice", memory_settings="warning"),
        {"memory": {"usable_gib": 62.5, "installed_gib": 128.0}, "kernel": {"flavour": "ubuntu-oem"}},
        ("amdttm.pages_limit=29360128", "ttm.pages_limit (the kernel's command line) is not read by this driver"),
    ),
    "amdttm is told, and not there": Scene(
        lambda tree: fedora_halo(tree).put("etc/modprobe.d/amdttm.conf", "options amdttm pages_limit=29360128\n"),
        podman(memory_settings="warning"),
        words=(f"--args={_LIMIT}",),
    ),
    "Ubuntu 24.04 with its first kernel": Scene(
        lambda tree: tree.system(NOBLE, "6.8.0-60-generic").user().bus("0000:c3:00.0", (0x1002, 0x1586), "").docker(),
        expects(gpu="blocks", kernel="warning", firmware="unknown", variables="ok", **_FILES),
        {"kernel": {"flavour": "ubuntu", "release": "6.8.0-60-generic"}},
        ("no driver has the GPU 1002:1586", "6.17.0-19 of linux-generic-hwe-24.04"),
    ),
    "Ubuntu 24.04 with a kernel that is a little too old": Scene(
        lambda tree: noble_halo(tree, "6.17.0-14-generic"),
        docker(kernel="warning"),
        words=("kernel 6.17.0-14-generic lacks two changes",),
    ),
    "Ubuntu 26.04, Strix Halo with half of its memory": Scene(
        lambda tree: (
            tree.system(RESOLUTE, "7.0.0-22-generic").user().gpus(halo(gtt=62)).firmware(0x80).iommu().docker()
        ),
        docker(memory="advice", iommu="advice"),
        {
            "memory": {"usable_gib": 62.0, "advised_gib": 112.0, "installed_gib": 128.0},
            "iommu": {"mode": "translating"},
        },
        (_LIMIT, "with more also a full fine-tune of a 12B model", "amd_iommu=off"),
    ),
    "RX 7900 desktop whose processor has a GPU, too": Scene(
        desktop,
        _DESKTOP,
        {"several-gpus": {"best": "gfx1100", "others": ["gfx1036"]}, "memory": {"usable_gib": 24.0}},
        (
            "gfx1036 at /dev/dri/renderD128 (GPU 0) and gfx1100 at /dev/dri/renderD129 (GPU 1)",
            "--device /dev/kfd --device /dev/dri/renderD129",
            "--gpu 1 names one",
        ),
    ),
    "the same desktop, the card asked for": Scene(
        desktop,
        _DESKTOP,
        words=("beside gfx1100 there is gfx1036, which libraries built for gfx1100 have no code for |",),
        wanted="gfx1100",
    ),
    "laptop with a GPU to hide": Scene(
        lambda tree: tree.system(FEDORA, FEDORA_KERNEL, memory=30).user().gpus(RX7700S, PHOENIX).rootless(),
        podman(target="ok", several_gpus="warning", kernel="unknown", firmware="", memory_settings=""),
        {
            "several-gpus": {"best": "gfx1102", "others": ["gfx1103"]},
            "memory": {"usable_gib": 8.0, "fits": []},
        },
        (
            "strix-finetune train, run and shell with --target gfx1102 give the container that kind alone",
            "--gpu 0 names one",
            "--device /dev/kfd --device /dev/dri/renderD128",
            "none of the measured recipes fits",
        ),
    ),
    "MI300X server": Scene(
        server,
        expects(**_SERVER, secure_boot="ok"),
        {"several-gpus": {"gpus": 8}, "memory": {"usable_gib": 192.0}, "iommu": {"mode": "translating"}},
        ("start the kernel with iommu=pt", "signed with a key that this machine knows"),
    ),
    "Secure Boot against a module of DKMS": Scene(
        lambda tree: server(tree).rename("sys/module/amdgpu", "sys/module/none"),
        expects(**_SERVER, secure_boot="blocks"),
        words=("the module amdgpu, which DKMS built, is not loaded", "mokutil --import"),
    ),
    "no Secure Boot": Scene(
        lambda tree: server(tree).rename("sys/module/amdgpu", "sys/module/none").put(SECURE_BOOT, b"\6\0\0\0\0"),
        expects(**_SERVER, secure_boot="ok"),
        words=("Secure Boot is off",),
    ),
    "Strix Halo with a card outside": Scene(
        lambda tree: tree.system(FEDORA, FEDORA_KERNEL).user().gpus(halo(vram=96, gtt=15), RX7900).docker(),
        _DESKTOP,
        {"several-gpus": {"best": "gfx1100", "others": ["gfx1151"]}},
        ("--target gfx1100",),
    ),
    "Secure Boot against the NPU's module": Scene(
        lambda tree: server(tree).put("var/lib/dkms/amdxdna/7.0/source/dkms.conf"),
        expects(**_SERVER, secure_boot="warning"),
    ),
    "Secure Boot that cannot be read": Scene(
        lambda tree: server(tree).drop(SECURE_BOOT), expects(**_SERVER, secure_boot="unknown")
    ),
    "WSL2": Scene(wsl, expects(wsl="advice", **_FILES), words=("/opt/rocm/lib/librocdxg.so.1",)),
    "WSL2 without librocdxg": Scene(
        lambda tree: wsl(tree).drop("opt/rocm/lib/librocdxg.so.1"), expects(wsl="warning", **_FILES)
    ),
    "WSL2 without a GPU": Scene(
        lambda tree: wsl(tree).drop("dev/dxg"), expects(wsl="blocks", **_FILES), words=("/dev/dxg is missing",)
    ),
    "WSL2, told to look away": Scene(
        lambda tree: wsl(tree).user(env="HSA_ENABLE_DXG_DETECTION=0\0"), expects(wsl="blocks", **_FILES)
    ),
    "firmware left by AMD's driver": Scene(
        lambda tree: (
            noble_halo(tree)
            .dpkg(linux_firmware="20240318.git3b128b60-0ubuntu2.21", amdgpu_dkms_firmware="30.10.2.0.30100200")
            .firmware(0x83, "lib/firmware/updates/amdgpu/gc_11_5_1_mes_2.bin")
        ),
        docker(firmware="blocks", dkms_firmware="warning"),
        {"firmware": {"mes": "0x83", "place": "/lib/firmware/updates/amdgpu/gc_11_5_1_mes_2.bin"}},
        ("sudo apt purge amdgpu-dkms-firmware", "remove /lib/firmware/updates/amdgpu/gc_11_5_1_mes_2.bin"),
    ),
    "AMD's driver with its firmware": Scene(
        lambda tree: noble_halo(tree).dpkg(amdgpu_dkms="1:6.14.14", amdgpu_dkms_firmware="30.10.2.0"),
        docker(dkms_firmware="ok"),
    ),
    "firmware by its package": Scene(
        lambda tree: (
            fedora_halo(tree)
            .drop("lib/firmware/amdgpu/gc_11_5_1_mes_2.bin")
            .put("var/lib/pacman/local/linux-firmware-amdgpu-20251125-2/desc")
        ),
        podman(firmware="blocks"),
        {"firmware": {"package": "linux-firmware-amdgpu 20251125-2"}},
    ),
    "BIOS gives 96 GB away": Scene(
        lambda tree: carved_halo(tree, 30.9, 96, 15.4),
        podman(memory="advice"),
        {"memory": {"carved_gib": 96.0, "system_gib": 30.9, "installed_gib": 128.0, "usable_gib": 96.0}},
        ("gives the GPU 96 GiB of 128 GiB for good", _LIMIT),
    ),
    "BIOS gives 32 GB away, which lie idle": Scene(
        lambda tree: carved_halo(tree, 93, 32, 46.5),
        podman(memory="warning"),
        {"memory": {"carved_gib": 32.0, "usable_gib": 46.5, "installed_gib": 128.0}},
        ("lie idle",),
    ),
    "a limit that leaves nothing": Scene(
        lambda tree: fedora_halo(tree, gtt=128).system(
            FEDORA, FEDORA_KERNEL, cmdline="amd_iommu=pt amdgpu.gttsize=131072 ttm.pages_limit=33554432"
        ),
        podman(memory="warning", memory_settings="advice", iommu="warning ok"),
        {"memory": {"limit_gib": 128.0, "system_gib": 125.1}},
        ("leaves 0 GiB", "amd_iommu=pt does not exist", "is deprecated", "--remove-args=ttm.pages_limit=33554432"),
    ),
    "a limit of before the BIOS was changed, and a gttsize beyond it": Scene(
        lambda tree: carved_halo(tree, 30.9, 96, 48, "ttm.pages_limit=12582912").put(
            "etc/modprobe.d/amdgpu.conf", "# mine\noptions amdgpu gttsize=100000\n"
        ),
        podman(memory="warning", memory_settings="warning"),
        {"memory-settings": {"gttsize_gib": 97.7, "limit_gib": 48.0}},
        ("was not made for a BIOS that keeps 96 GiB",),
    ),
    "a container without the devices": Scene(
        lambda tree: (
            tree.system(DEBIAN, FEDORA_KERNEL).user(uid=0).gpus(halo(), devices=False).put("run/.containerenv")
        ),
        docker(container="advice", devices="blocks", firmware="unknown", engine="blocks", cgroups="unknown", disk=""),
        {"devices": {"devices": _CARDS}},
        (f"start it with --device {' --device '.join(_CARDS)}", "neither Docker nor Podman is installed"),
    ),
    "a user outside the group render": Scene(
        lambda tree: noble_halo(tree).user(groups=(1000, 998), members=False),
        docker(devices="blocks"),
        {"devices": {"devices": _CARDS}},
        ("kim may not open /dev/kfd, /dev/dri/renderD128 (group render, mode 0660)", "usermod -aG render kim"),
    ),
    "a user who joined the group since the login": Scene(
        lambda tree: noble_halo(tree).user(groups=(1000, 998)),
        docker(devices="blocks"),
        words=("this session began before that", "log out and in again"),
    ),
    "devices of root alone, and one that fails": Scene(
        lambda tree: fedora_halo(tree).own("dev/kfd", 0o600, 105),
        itself(devices="blocks blocks"),
        words=("is root's alone (group render, mode 0600)", "/dev/dri/renderD128 cannot be opened: no such device"),
        edges=FakeEdges(
            running("podman", rootless=True),
            {"/dev/kfd": "permission denied", "/dev/dri/renderD128": "no such device"},
        ),
    ),
    "a device that udev did not make": Scene(
        lambda tree: noble_halo(tree).gone("dev/kfd"), docker(devices="blocks ok"), words=("udevadm trigger",)
    ),
    "leftovers of old guides": Scene(
        lambda tree: (
            noble_halo(tree)
            .user(env="HIP_VISIBLE_DEVICES=0\0LD_PRELOAD=/opt/rocm-7.0/lib/librocm_smi64.so.1.0\0HSA_ENABLE_SDMA=1\0")
            .put("home/kim/.bashrc", "# mine\n  export HSA_OVERRIDE_GFX_VERSION=11.0.0 # for old ROCm\n")
            .put("home/kim/.config/fish/config.fish", "set -gx ROCR_VISIBLE_DEVICES -1\n")
        ),
        docker(variables="advice warning warning warning"),
        words=("/home/kim/.bashrc:2", "hides every GPU", "sed -i.bak '2d' /home/kim/.bashrc"),
    ),
    "a GPU without images, and its driver's silence": Scene(
        lambda tree: tree.system(DEBIAN, "6.18.4-1-pve").user().gpus(VAN_GOGH).docker(),
        docker(target="warning", kernel="unknown", firmware="", memory="unknown"),
        words=("gfx1033 is excluded: its builds compute NaN", "patches of its own"),
    ),
    "a disk taken out of its machine": Scene(
        lambda tree: noble_halo(tree).drop(
            "proc/self/status", "proc/cmdline", "proc/meminfo", "proc/sys/kernel/osrelease"
        ),
        docker(devices="unknown", kernel="unknown", memory="unknown", iommu="unknown"),
    ),
    "no machine to speak of": Scene(
        lambda tree: tree.put("etc/os-release", DEBIAN), expects(gpu="unknown", engine="unknown", cgroups="unknown")
    ),
    "a GPU that is switched off": Scene(
        lambda tree: (
            tree.system(NOBLE, "7.0.0-22-generic", cmdline="quiet nomodeset")
            .user()
            .bus("0000:c3:00.0", (0x1002, 0x744C), "")
        ),
        expects(gpu="blocks", variables="ok", engine="blocks", cgroups="unknown"),
        words=("'nomodeset'", "update-grub"),
    ),
    "a GPU lent to a virtual machine, and an engine that hangs": Scene(
        lambda tree: tree.system(DEBIAN, FEDORA_KERNEL).user().bus("0000:03:00.0", (0x1002, 0x744C), "vfio-pci"),
        expects(gpu="blocks", variables="ok", engine="blocks", cgroups="unknown", temporary="ok", network="unknown"),
        words=("vfio-pci",),
        edges=FakeEdges(EngineState(None, Problem("the container engine does not answer", cure="restart it"))),
    ),
    "a driver that cannot compute": Scene(
        lambda tree: tree.system(DEBIAN, "5.10.0-9-amd64").user().bus("0000:03:00.0", (0x1002, 0x744C), "amdgpu"),
        expects(gpu="blocks", variables="ok", engine="blocks", cgroups="unknown"),
        words=("HSA_AMD",),
    ),
}
