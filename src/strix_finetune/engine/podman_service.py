"""A private `podman system service` for a driver that found no engine running, ended with the driver.

The listening socket is made here and handed over the way systemd does it, so that nobody has to wait for
the service: a connection is queued until Podman takes it, and is reset when Podman dies before that.

A small shell stands between: it ends the service and removes the folder when its standard input closes,
which the kernel does for us however this process ends, SIGKILL included.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from strix_finetune.engine.failures import one_line
from strix_finetune.errors import EngineUnavailable, Problem

_CAP_SYS_RESOURCE = 24
_CATATONIT = ("usr/libexec/podman/catatonit", "usr/lib/podman/catatonit", "usr/local/libexec/podman/catatonit")
_STATIC_INITS = ("usr/bin/catatonit", "usr/bin/tini-static", "usr/libexec/docker/docker-init")
_BRIDGES = tuple(
    f"{folder}/{program}"
    for folder in ("usr/lib/podman", "usr/libexec/podman", "usr/lib/cni", "usr/libexec/cni", "opt/cni/bin")
    for program in ("netavark", "bridge")
)
_MAX_SOCKET_PATH = 107
_VAR_TMP = Path("/var/tmp")

# $1 the private folder, the rest Podman's command line. Standard input is the listening socket, standard output
# the reading end of a pipe that only the driver can write to: it ends when the driver does. `exec` keeps the
# process id, which LISTEN_PID must name. The shell closes its own copy of the socket: with it open, clients of a
# dead service would wait for ever. Podman does not end a build whose client went away, and a step outlives even
# Podman itself: so the steps are ended first, which also makes Podman remove what it was building.
_KEEPER = """
trap '' INT HUP TERM QUIT
exec 3<&0 4<&1 </dev/null >/dev/null
dir=$1; shift
( trap - INT HUP TERM QUIT; exec 4<&-
  exec sh -c 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"' sh "$@" ) >>"$dir/log" 2>&1 &
service=$!
exec 3<&-
read -r _ <&4
builds() {
  for child in $(cat /proc/$service/task/*/children 2>/dev/null); do
    read -r line <"/proc/$child/cmdline"
    case $line in buildah-oci*) echo $child;; esac
  done 2>/dev/null
}
for child in $(builds); do kill -TERM $child; done
n=0
while [ -n "$(builds)" ] && [ $n -lt 50 ]; do n=$((n + 1)); sleep 0.1; done
[ $n -eq 0 ] || sleep 0.5
kill -TERM $service 2>/dev/null
n=0
while [ -e /proc/$service/exe ] && [ $n -lt 100 ]; do n=$((n + 1)); sleep 0.05; done
kill -KILL $service 2>/dev/null
wait $service 2>/dev/null
rm -rf "$dir"
"""


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
        status = _read(root / "proc/self/status")
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


def available(env: Mapping[str, str]) -> bool:
    """Whether there is a podman program to start."""
    return _program(env) is not None


def start(env: Mapping[str, str]) -> PodmanService:
    """Start a service on a socket of our own. The caller must `stop` it; the kernel does if we die."""
    program = _program(env)
    if program is None:
        raise EngineUnavailable(Problem("Podman is not installed", cure="install it (Debian: apt install podman)"))
    folder = _private_folder(env)
    try:
        return PodmanService(folder, program, env)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class PodmanService:
    """A running private service. `url` is its address."""

    def __init__(self, folder: Path, program: str, env: Mapping[str, str]) -> None:
        self._folder = folder
        path = folder / "podman.sock"
        self.url = f"unix://{path}"
        own_env = dict(env)
        conf = configuration(HostFacts.read(env), root=os.geteuid() == 0)
        if conf and not env.get("CONTAINERS_CONF"):
            (folder / "containers.conf").write_text(conf)
            own_env["CONTAINERS_CONF"] = str(folder / "containers.conf")
        if not env.get("TMPDIR") and _cache_of_another_user():
            own_env["TMPDIR"] = _own_tmp()
        own_env.pop("CONTAINER_HOST", None)  # else podman would be a client of that
        own_env.pop("DOCKER_HOST", None)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(64)
            self._keeper, self._lifeline = _spawn(folder, program, own_env, listener.fileno())

    def failure(self) -> EngineUnavailable | None:
        """Why the service did not come up, from its own last words."""
        words = [line for line in _read(self._folder / "log").splitlines() if line.strip()]
        if not words:
            return None
        return EngineUnavailable(
            Problem(f"Podman does not start: {one_line(words[-1])}", cure="run `podman info` to see what it lacks")
        )

    def stop(self) -> None:
        """End the service and remove its folder. May be called twice."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        try:
            self._keeper.wait(timeout=10)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._keeper.pid, signal.SIGKILL)
            self._keeper.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _spawn(folder: Path, program: str, env: Mapping[str, str], listener: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start the keeper; returns it and the writing end of its lifeline."""
    reading, writing = os.pipe()
    try:
        keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, "sh", str(folder), program, "system", "service", "--time=0"],
            env=dict(env),
            stdin=listener,
            stdout=reading,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us: containers must be removed before the service ends
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return keeper, writing


def _private_folder(env: Mapping[str, str]) -> Path:
    """A folder of our own, mode 0700, whose path leaves room for a socket's."""
    for parent in (env.get("XDG_RUNTIME_DIR"), env.get("TMPDIR"), "/tmp"):
        if parent and Path(parent).is_dir() and os.access(parent, os.W_OK) and len(parent) < _MAX_SOCKET_PATH - 40:
            return Path(tempfile.mkdtemp(prefix="strix-podman-", dir=parent))
    return Path(tempfile.mkdtemp(prefix="strix-podman-"))


def _cache_of_another_user() -> bool:
    """Buildah before 1.29 keeps the cache mounts of all users in one folder, which only its maker can use."""
    try:
        return (_VAR_TMP / "buildah-cache").stat().st_uid != os.geteuid()
    except OSError:
        return False


def _own_tmp() -> str:
    """A lasting folder of our own on the same file system."""
    own = _VAR_TMP / f"strix-finetune-{os.geteuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    if own.is_symlink() or own.stat().st_uid != os.geteuid():
        raise EngineUnavailable(Problem(f"{own} belongs to someone else", cure="set TMPDIR to a folder of your own"))
    return str(own)


def _program(env: Mapping[str, str]) -> str | None:
    return shutil.which("podman", path=env.get("PATH", os.defpath))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
