"""What Podman must be told on this host, decided by looking at the host.

A usual host needs nothing. Containers within containers, hosts with the old cgroups, without systemd or with few
capabilities need a line each.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_CAP_SYS_RESOURCE = 24
_CATATONIT = ("usr/libexec/podman/catatonit", "usr/lib/podman/catatonit", "usr/local/libexec/podman/catatonit")
_STATIC_INITS = ("usr/bin/catatonit", "usr/bin/tini-static", "usr/libexec/docker/docker-init")
_BRIDGES = tuple(
    f"{folder}/{program}"
    for folder in ("usr/lib/podman", "usr/libexec/podman", "usr/lib/cni", "usr/libexec/cni", "opt/cni/bin")
    for program in ("netavark", "bridge")
)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What decides Podman's configuration.

    `runtimes`: OCI runtimes on the PATH. `own_init`: Podman's own init program is there; `init`: the path of another
    one that is static, as it must be. `bridge`, `user_network`: there is something that makes a network for root's
    containers, for a user's.
    """

    unified_cgroups: bool
    systemd: bool
    may_raise_limits: bool
    runtimes: tuple[str, ...]
    own_init: bool = True
    init: str = ""
    bridge: bool = True
    user_network: bool = True

    @classmethod
    def read(cls, env: Mapping[str, str], root: Path = Path("/")) -> HostFacts:
        """Look at this host (or at one laid out under `root`)."""
        status = text_of(root / "proc/self/status")
        effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
        # A user's PATH often lacks the folder that Debian keeps runc in.
        path = f"{env.get('PATH', os.defpath)}:{root / 'usr/sbin'}"
        return cls(
            unified_cgroups=(root / "sys/fs/cgroup/cgroup.controllers").exists(),
            systemd=(root / "run/systemd/system").is_dir(),
            may_raise_limits=bool(int(effective, 16) >> _CAP_SYS_RESOURCE & 1),
            runtimes=tuple(name for name in ("crun", "runc") if shutil.which(name, path=path)),
            own_init=any((root / place).exists() for place in _CATATONIT),
            init=next((f"/{place}" for place in _STATIC_INITS if (root / place).exists()), ""),
            user_network=any(shutil.which(name, path=path) for name in ("slirp4netns", "pasta")),
            bridge=any((root / place).exists() for place in _BRIDGES),
        )


def configuration(facts: HostFacts, *, root: bool) -> str:
    """The containers.conf that this host needs, as TOML; empty when Podman's defaults do.

    Without unified cgroups crun fails on hybrid hosts, so runc is used with cgroupfs; without systemd its
    cgroup manager and its journal are not there; without CAP_SYS_RESOURCE Podman, as root, would
    fail to raise limits for its containers. Where nothing makes a network for containers, they share the host's.
    """
    engine: list[str] = []
    containers: list[str] = []
    if not facts.unified_cgroups and "runc" in facts.runtimes:
        engine.append('runtime = "runc"')
    if not facts.systemd or not facts.unified_cgroups:
        engine.append('cgroup_manager = "cgroupfs"')
    if not facts.systemd:
        engine.append('events_logger = "file"')
    if root and not facts.may_raise_limits:
        containers.append('default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]')
    if not facts.systemd:
        containers.append('log_driver = "k8s-file"')
    if not facts.own_init and facts.init:
        # Podman 4 looks in one table, Podman 5 in the other.
        containers.append(f'init_path = "{facts.init}"')
        engine.append(f'init_path = "{facts.init}"')
    if not (facts.bridge if root else facts.user_network):
        containers.append('netns = "host"')
    text = ""
    if containers:
        text += "[containers]\n" + "\n".join(containers) + "\n"
    if engine:
        text += "[engine]\n" + "\n".join(engine) + "\n"
    return text


def text_of(path: Path) -> str:
    """What a file says; empty where there is none, or it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
