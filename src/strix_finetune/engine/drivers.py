"""Which driver process a container belongs to, and whether that process still lives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PID_LABEL = "io.strix-finetune.pid"
UID_LABEL = "io.strix-finetune.uid"
BOOT_LABEL = "io.strix-finetune.boot"


def driver_labels() -> dict[str, str]:
    """The labels that tie a container to this process."""
    pid = os.getpid()
    return {PID_LABEL: str(pid), UID_LABEL: str(os.getuid()), BOOT_LABEL: f"{_here()}+{_start_ticks(pid)}"}


def is_orphan(labels: Mapping[str, str], *, running: bool, age: float) -> bool:
    """Whether the driver of a container with these labels is gone.

    A process id says nothing beyond its own boot and pid namespace: a container of another one (a reboot, a
    shared remote engine) counts as orphaned only when it does not run and is older than an hour (`age` in seconds).
    """
    pid, boot = labels.get(PID_LABEL, ""), labels.get(BOOT_LABEL, "")
    here, _, ticks = boot.partition("+")
    if not pid.isdigit() or not ticks:
        return False
    # another user's processes may be hidden from us, and would all look dead
    if labels.get(UID_LABEL, str(os.getuid())) != str(os.getuid()):
        return False
    if here != _here():
        return not running and age > 3600
    return _start_ticks(int(pid)) != ticks


@cache
def _here() -> str:
    """This boot and this pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"


def _start_ticks(pid: int) -> str:
    """When a process began, in clock ticks since boot; empty when there is none (zombies count as gone)."""
    try:
        # The command name, in parentheses, may hold anything: count fields behind its end.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
