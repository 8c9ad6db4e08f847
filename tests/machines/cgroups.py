"""A cgroup for each machine, so that its containers are its own and nothing of them is left."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PREFIX = "strix-machine-"


class Cgroups:
    """The groups of one machine in each hierarchy of this host; none where it has only the unified one."""

    def __init__(self, name: str) -> None:
        self.name = f"{_PREFIX}{os.getpid()}-{name}"
        self.mounts = _hierarchies()

    def make(self) -> None:
        for _, mounted, _ in self.mounts:
            group = Path(mounted, self.name)
            group.mkdir(exist_ok=True)
            # a new cpuset holds no processor, and would take no process
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (group / file).exists():
                    (group / file).write_text(Path(mounted, file).read_text())

    @property
    def joining(self) -> str:
        """A line of shell by which a process goes into all of them."""
        files = " ".join(f"{mounted}/{self.name}/cgroup.procs" for _, mounted, _ in self.mounts)
        return f"for file in {files}; do echo $$ >$file; done" if files else ":"

    @property
    def seen(self) -> list[list[str]]:
        """What is to be mounted inside: kind, name of the folder, options."""
        return [[kind, Path(mounted).name, options] for kind, mounted, options in self.mounts]

    def remove(self) -> None:
        _remove([Path(mounted, self.name) for _, mounted, _ in self.mounts])


def remove_leftovers() -> None:
    """Those of tests that were killed."""
    for _, mounted, _ in _hierarchies():
        for group in Path(mounted).glob(f"{_PREFIX}*"):
            number = group.name.removeprefix(_PREFIX).partition("-")[0]
            if not Path(f"/proc/{number}").exists():
                _remove([group])


def _remove(groups: list[Path]) -> None:
    for group in groups:
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()


def _hierarchies() -> list[tuple[str, str, str]]:
    """Kind, mount point and the options that name it, of each hierarchy of the first version and what is beside it."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()
        if kind in ("cgroup", "cgroup2"):
            named = ",".join(word for word in options.split(",") if word not in ("rw", "ro", "xattr", "nsdelegate"))
            found.append((kind, before.split()[4], named if kind == "cgroup" else ""))
    return found if any(kind == "cgroup" for kind, _, _ in found) else []
