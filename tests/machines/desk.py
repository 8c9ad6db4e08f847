"""A desk with two or three machines, a switch to the office and one between the machines.

Each machine is a set of namespaces with a process 1 of its own: network (own addresses, interface names, firewall and
MTU), hostname, mounts (own /etc, /run, home and image store), processes and cgroups, with a real OpenSSH server and a
real Podman. They share the kernel, its clock, and the rest of the file system, in which the product is. Nothing is
done to the network of the host that they run on. Pulling the plug kills all that ran there.

A machine has cgroups of its own where the host has hierarchies of the first version, beside the unified one or not.
Where it has the unified one alone, none are made.

    with Desk(folder) as desk:
        one = desk.put("strix1", office="eno1", link="enp1s0")
        two = desk.put("strix2", office="enp3s0", link="thunderbolt0")
        one.start(); two.start()
        one.well("ssh", "strix2", "true")
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.machines import cgroups
from tests.machines.machine import HOME, Machine, keygen
from tests.machines.switch import Switch

# root's Podman, in which the engine tests and the README's commands build
STORE = Path("/var/lib/containers/storage")


def stores_of(info: str) -> list[Path]:
    """The stores that Podman reads, by what `podman info --format json` printed, warnings before and after it too."""
    store = json.JSONDecoder().raw_decode(re.split(r"^(?={)", info, maxsplit=1, flags=re.MULTILINE)[1])[0]["store"]
    more = str(store["graphOptions"].get("overlay.imagestore", ""))
    return [Path(each) for each in (store["graphRoot"], *filter(None, more.split(",")))]


class Desk:
    """Machines below `folder`, which may read the images of `stores`. Everything is gone when its block is left."""

    def __init__(self, folder: Path, stores: Sequence[Path] = (STORE,)) -> None:
        self.folder = folder
        # each machine's own images are mounted there
        STORE.parent.mkdir(parents=True, exist_ok=True)
        self.stores = tuple(store for store in stores if store.is_dir())
        self.machines: list[Machine] = []
        cgroups.remove_leftovers()
        self.switches: dict[str, Switch] = {}

    def __enter__(self) -> Desk:
        for kind in ("office", "link"):
            self.switches[kind] = Switch()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for machine in self.machines:
            machine.stop()
        for switch in self.switches.values():
            switch.close()
        for machine in self.machines:
            shutil.rmtree(machine.root, ignore_errors=True)

    def put(self, name: str, office: str, link: str, *, service: bool = False) -> Machine:
        """Put a machine on the desk, switched off. `service`: its Podman listens from the start, as by systemd."""
        root = self.folder / name
        root.mkdir(parents=True)
        number = len(self.machines) + 1
        machine = Machine(name, root, office, link, number, self.switches, self.stores, service)
        self.machines.append(machine)
        self._introduce()
        return machine

    def _introduce(self) -> None:
        """Everybody's name in /etc/hosts, one user's key on all of them, their host keys known to that user."""
        key = self.folder / "id_ed25519"
        keygen(key, "somebody")
        names = [f"{each.office_address} {each.name}" for each in self.machines]
        known = [f"{each.name},{each.office_address},{each.address} {each.host_key}" for each in self.machines]
        for machine in self.machines:
            (machine.root / "etc/hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
            folder = machine.home / ".ssh"
            for name in ("id_ed25519", "id_ed25519.pub"):
                shutil.copy2(self.folder / name, folder / name)
            shutil.copyfile(key.with_suffix(".pub"), folder / "authorized_keys")
            (folder / "known_hosts").write_text("\n".join([*known, ""]))


__all__ = ["HOME", "STORE", "Desk", "Machine", "stores_of"]
