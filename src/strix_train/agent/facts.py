"""What this node is like, as training inside this container would see it. Bytes and numbers, no judgement."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

from . import netlink, rdma
from .sysfs import names, read

# of which another version on another node computes or saves something else
PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "datasets",
    "unsloth",
    "unsloth_zoo",
    "bitsandbytes",
    "deepspeed",
    "numpy",
    "tokenizers",
    "safetensors",
    "triton",
)
_NET = Path("/sys/class/net")


def facts(seconds: float, folder: str = "/", root: str = "/") -> dict[str, Any]:
    """Everything but the clock. `folder`: where runs would be written, for the free space. `root`: for tests."""
    base = Path(root)
    memory = _memory(base)
    return {
        "hostname": socket.gethostname(),
        "hostname_addresses": _own_name(),
        "interfaces": interfaces(),
        "local_ports": _numbers(base / "proc/sys/net/ipv4/ip_local_port_range"),
        "memory_bytes": memory.get("MemTotal", 0),
        "memory_free_bytes": memory.get("MemAvailable", 0),
        "disk_free_bytes": shutil.disk_usage(folder).free,
        "shm_bytes": _shm(),
        "memlock_bytes": _limit(),
        "kernel": platform.release(),
        "command_line": read(base / "proc/cmdline"),
        "iommu_groups": len(names(base / "sys/kernel/iommu_groups")),
        "ttm_pages": next(iter(_numbers(base / "sys/module/ttm/parameters/pages_limit")), 0),
        "cwsr": read(base / "sys/module/amdgpu/parameters/cwsr_enable"),
        "gpus": _gpus(base),
        "rdma": rdma.adapters(base),
        "uverbs": names(base / "dev/infiniband"),
        "python": platform.python_version(),
        "packages": _packages(),
        "image_key": os.environ.get("STRIX_IMAGE_KEY", ""),
        "uid": os.getuid(),
    }


def routes(seconds: float, peers: list[str]) -> dict[str, str]:
    """Peer → the address that this node sends from to it, empty where there is no route. Nothing is sent."""
    found = {}
    for peer in peers:
        family = socket.AF_INET6 if ":" in peer else socket.AF_INET
        found[peer] = ""
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((peer, 9))
                found[peer] = str(probe.getsockname()[0])
        except OSError:
            continue
    return found


def interfaces() -> list[dict[str, Any]]:
    """The network interfaces, in the kernel's order. `mbit` is 0 where the driver does not say it."""
    addresses = netlink.addresses()
    found = []
    for _index, name in socket.if_nameindex():
        base = _NET / name
        found.append(
            {
                "name": name,
                "addresses": addresses.get(name, []),
                "mtu": next(iter(_numbers(base / "mtu")), 0),
                "up": _up(base),
                "mbit": max(0, next(iter(_numbers(base / "speed")), 0)),
                "kind": _kind(base, name),
            }
        )
    return found


def _up(base: Path) -> bool:
    """Whether it carries something; the loopback and tunnels say "unknown" of themselves."""
    state = read(base / "operstate")
    flags = int(read(base / "flags") or "0", 16)
    return bool(flags & 1) and state in ("up", "unknown", "")


def _kind(base: Path, name: str) -> str:
    """What it is: by what the kernel shows of it, not by its name, where that is possible."""
    if read(base / "type") == "772":
        return "loopback"
    if (base / "bridge").exists():
        return "bridge"
    if (base / "wireless").exists() or (base / "phy80211").exists():
        return "wireless"
    if (base / "tun_flags").exists() or name.startswith(("wg", "tailscale")):
        return "tunnel"
    uevent = read(base / "uevent")
    if "DEVTYPE=" in uevent:
        return uevent.partition("DEVTYPE=")[2].split("\n")[0]
    driver = base / "device/driver"
    if driver.exists() and "thunderbolt" in driver.resolve().name:
        return "thunderbolt"
    if (base / "device").exists():
        return "ethernet"
    return "virtual"


def _own_name() -> list[str]:
    """What the own host name resolves to; gloo takes the first that it can bind where nobody names an interface."""
    try:
        return list(dict.fromkeys(str(item[4][0]) for item in socket.getaddrinfo(socket.gethostname(), None)))
    except OSError:
        return []


def _gpus(base: Path) -> list[str]:
    """GPU targets that the kernel's compute driver shows to this container, or names of NVIDIA's."""
    found = []
    nodes = base / "sys/class/kfd/kfd/topology/nodes"
    for node in sorted(names(nodes), key=lambda name: (len(name), name)):
        fields = dict(line.split(" ", 1) for line in read(nodes / node / "properties").splitlines() if " " in line)
        version = int(fields.get("gfx_target_version", "0") or 0)
        if version and (base / "dev/kfd").exists():
            found.append(f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}")
    nvidia = base / "proc/driver/nvidia/gpus"
    found += [f"nvidia {name}" for name in names(nvidia) if (base / "dev/nvidiactl").exists()]
    return found


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _memory(base: Path) -> dict[str, int]:
    found = {}
    for line in read(base / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _shm() -> int:
    try:
        return shutil.disk_usage("/dev/shm").total
    except OSError:
        return 0


def _limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def _numbers(path: Path) -> list[int]:
    return [int(word) for word in read(path).split() if word.lstrip("-").isdigit()]
