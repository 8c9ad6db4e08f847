"""A Slurm of two nodes on this machine: Debian's own daemons, with files, ports and a key of the test's own."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

# the machine may be a container without cgroups of its own: processes are found by /proc, and bound to nothing
_CONFIGURATION = """
ClusterName=strix
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName=strix1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000
NodeName=strix2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES State=UP
"""

# a job that goes on is told in more ways, some of them for moments: SIGNALING is one
_ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")


@dataclass(frozen=True)
class Slurm:
    """The running cluster. `env`: of whoever calls its commands, who has the machine's Podman and the demo's model."""

    folder: Path
    env: Mapping[str, str]

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """What a command printed; fails with all of it when it fails."""
        done = subprocess.run(command, cwd=cwd, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def state(self, job: str) -> str:
        """RUNNING, PENDING, COMPLETED and the like; the controller remembers ended jobs for minutes."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return next(word.removeprefix("JobState=") for word in words if word.startswith("JobState="))

    def wait(self, job: str, done: Callable[[], bool], seconds: float, logs: Path) -> None:
        """Wait until `done` says so; fails with all logs when it does not, or when the job has ended before."""
        deadline = time.monotonic() + seconds
        while not done():
            ended = self.state(job) in _ENDED
            said = "\n".join(f"{path.name}: {path.read_text()}" for path in sorted(logs.glob("*.log")))
            assert not (ended and not done()), f"the job has ended as {self.state(job)}\n{said}{self.logs()}"
            assert time.monotonic() < deadline, f"nothing came of it in {seconds:.0f} s\n{said}{self.logs()}"
            time.sleep(0.3)

    def logs(self) -> str:
        """The last lines of each daemon."""
        texts = {path.name: path.read_text().splitlines()[-8:] for path in sorted(self.folder.glob("*.log"))}
        return "".join(f"\n{name}: " + "\n  ".join(lines) for name, lines in texts.items())


@contextmanager
def slurm(folder: Path, env: Mapping[str, str]) -> Iterator[Slurm]:
    """Start it and end it again. `folder`: empty, and short enough for a socket in it."""
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(host=host, folder=folder, ports=_ports(3)))
    (folder / "state").mkdir()
    for name in ("strix1", "strix2"):
        (folder / f"spool-{name}").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    folder.chmod(0o755)  # munge trusts no folder that others may write to
    known = {**env, "SLURM_CONF": str(folder / "slurm.conf")}
    paths = [f"--{name}={folder}/munge.{end}" for name, end in (("key-file", "key"), ("socket", "sock"))]
    paths += [f"--{name}-file={folder}/munge.{name}" for name in ("log", "pid", "seed")]
    with ExitStack() as stack:
        stack.enter_context(_daemon(folder, known, "munged", "--foreground", "--force", *paths))
        stack.enter_context(_daemon(folder, known, "slurmctld", "-D", "-f", f"{folder}/slurm.conf"))
        for name in ("strix1", "strix2"):
            stack.enter_context(_daemon(folder, known, "slurmd", "-D", "-N", name, "-f", f"{folder}/slurm.conf"))
        made = Slurm(folder, known)
        deadline = time.monotonic() + 60
        while _idle(known) != 2:
            assert time.monotonic() < deadline, f"two nodes do not become idle{made.logs()}"
            time.sleep(0.2)
        yield made
        made.run("scancel", "--full", "--user", "root")
        while made.run("squeue", "--noheader", "--states=RUNNING,COMPLETING"):
            time.sleep(0.2)


@contextmanager
def _daemon(folder: Path, env: Mapping[str, str], *command: str) -> Iterator[None]:
    name = "-".join([command[0], *(word for word in command if word.startswith("strix"))])
    with (folder / f"{name}-console.log").open("w") as log:
        process = subprocess.Popen(
            (f"/usr/sbin/{command[0]}", *command[1:]), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _idle(env: Mapping[str, str]) -> int:
    asked = ("sinfo", "--noheader", "--Node", "--format=%T")
    return subprocess.run(asked, env=env, capture_output=True, text=True).stdout.split().count("idle")


def _ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


def available() -> bool:
    """Whether Debian's Slurm is here, and whoever asks may run it: it changes users."""
    return os.geteuid() == 0 and all(Path("/usr/sbin", name).exists() for name in ("slurmctld", "slurmd", "munged"))
