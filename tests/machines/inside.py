"""What runs as process 1 of a machine: makes its file system its own, starts its services, and reaps orphans.

It is run by path and needs nothing but the standard library. It ends when its standard input does, which the kernel
brings about however the tests end; and with process 1 everything in its process namespace is gone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

# where the cgroups of this machine are written, as on every host
CGROUPS = Path("/sys/fs/cgroup")


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def file_system(root: Path, home: str, stores: list[str], cgroups: list[list[str]]) -> None:
    """/etc with changes of its own; its own /run, /sys, home, shared memory and images."""
    mount("-t", "overlay", "overlay", "-o", f"lowerdir=/etc,upperdir={root}/etc,workdir={root}/etc.work", "/etc")
    # a home at the same path on each machine with another content, as people have it
    lent = []
    for number, store in enumerate(stores):
        place = root / f"store{number}"
        place.mkdir(exist_ok=True)
        mount("--bind", store, str(place))
        mount("-o", "remount,bind,ro", str(place))
        lent.append(place)
    mount("--bind", f"{root}/containers", "/var/lib/containers")
    mount("-t", "tmpfs", "tmpfs", "/srv")
    for source, target in ((root / "home", Path(home)), *((place, Path(f"/srv/{place.name}")) for place in lent)):
        target.mkdir(parents=True)
        mount("--bind", str(source), str(target))
    for place in ("/run", "/dev/shm", "/var/tmp"):
        mount("-t", "tmpfs", "-o", "mode=1777" if place != "/run" else "mode=755", "tmpfs", place)
    for place in ("/run/sshd", "/run/lock", "/run/podman"):
        Path(place).mkdir()
    # the interfaces that a sysfs shows are those of the namespace in which it was mounted
    mount("-t", "sysfs", "sysfs", "/sys")
    if not cgroups:
        mount("-t", "cgroup2", "cgroup2", str(CGROUPS))
        return
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(CGROUPS))
    for kind, name, options in cgroups:
        (CGROUPS / name).mkdir()
        mount("-t", kind, *(["-o", options] if options else []), kind, str(CGROUPS / name))


def reap(_number: int, _frame: object) -> None:
    """Orphans are process 1's to bury."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> None:
    said = json.loads(sys.argv[1])
    socket.sethostname(said["name"])
    file_system(Path(said["root"]), said["home"], said["stores"], said["cgroups"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.chdir("/")
    for name, command in said["services"].items():
        with Path(said["root"], f"{name}.log").open("ab") as log:
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    signal.signal(signal.SIGCHLD, reap)
    reap(0, None)
    os.write(1, b"ready\n")
    # a signal that is handled does not end the wait
    select.select([0], [], [])


main()
