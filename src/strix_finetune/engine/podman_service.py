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
from contextlib import ExitStack, suppress
from pathlib import Path

from strix_finetune.engine.failures import one_line
from strix_finetune.engine.podman_conf import HostFacts, configuration, text_of
from strix_finetune.errors import EngineUnavailable, Problem

_MAX_SOCKET_PATH = 107
_VAR_TMP = Path("/var/tmp")

# $1 and $2 are the private folders for the socket and for Podman's temporary files, the rest is Podman's command
# line. Standard input is the listening socket, standard output the reading end of a pipe that only the driver can
# write to: it ends when the driver does. `exec` keeps the process id, which LISTEN_PID must name. The shell closes
# its own copy of the socket: with it open, clients of a dead service would wait for ever. Podman does not end a
# build whose client went away, and a step outlives even Podman itself: so the steps are ended first, which also
# makes Podman remove what it was building. Files of a rootless build may belong to its mapped users.
_KEEPER = """
trap '' INT HUP TERM QUIT
exec 3<&0 4<&1 </dev/null >/dev/null
dir=$1 tmp=$2; shift 2
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
grep -qF " $tmp/" /proc/self/mountinfo || rm -rf "$tmp" 2>/dev/null || "$1" unshare rm -rf "$tmp" >/dev/null 2>&1
"""


def available(env: Mapping[str, str]) -> bool:
    """Whether there is a podman program to start."""
    return _program(env) is not None


def start(env: Mapping[str, str]) -> PodmanService:
    """Start a service on a socket of our own. The caller must `stop` it; the kernel does if we die."""
    program = _program(env)
    if program is None:
        raise EngineUnavailable(Problem("Podman is not installed", cure="install it (Debian: apt install podman)"))
    with ExitStack() as undo:
        folder = _private_folder(env)
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        tmp = _private_tmp(env)
        undo.callback(shutil.rmtree, tmp, ignore_errors=True)
        service = PodmanService(folder, tmp, program, env)
        undo.pop_all()
        return service


class PodmanService:
    """A running private service. `url` is its address."""

    def __init__(self, folder: Path, tmp: Path, program: str, env: Mapping[str, str]) -> None:
        self._folder = folder
        path = folder / "podman.sock"
        self.url = f"unix://{path}"
        own_env = dict(env)
        conf = configuration(HostFacts.read(env), root=os.geteuid() == 0)
        if conf and not env.get("CONTAINERS_CONF"):
            (folder / "containers.conf").write_text(conf)
            own_env["CONTAINERS_CONF"] = str(folder / "containers.conf")
        own_env["TMPDIR"] = str(tmp)
        own_env.pop("CONTAINER_HOST", None)  # else podman would be a client of that
        own_env.pop("DOCKER_HOST", None)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(64)
            self._keeper, self._lifeline = _spawn(folder, tmp, program, own_env, listener.fileno())

    def failure(self) -> EngineUnavailable | None:
        """Why the service did not come up, from its own last words."""
        words = [line for line in text_of(self._folder / "log").splitlines() if line.strip()]
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
            self._keeper.wait(timeout=20)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._keeper.pid, signal.SIGKILL)
            self._keeper.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _spawn(
    folder: Path, tmp: Path, program: str, env: Mapping[str, str], listener: int
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the keeper; returns it and the writing end of its lifeline."""
    reading, writing = os.pipe()
    try:
        keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, "sh", str(folder), str(tmp), program, "system", "service", "--time=0"],
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


def _private_tmp(env: Mapping[str, str]) -> Path:
    """A folder for what Podman forgets, such as contexts of failed builds. Cache mounts outlive it.

    It lies where Podman would put such things, since they can be large.
    """
    base = Path(env.get("TMPDIR") or _VAR_TMP)
    folder = Path(tempfile.mkdtemp(prefix="strix-podman-", dir=base))
    try:
        lasting = _lasting_cache(base)
        for name in ("buildah-cache", f"buildah-cache-{os.geteuid()}"):  # before and since Buildah 1.29
            (folder / name).symlink_to(lasting)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _lasting_cache(base: Path) -> Path:
    """The folder of the cache mounts: Buildah's own, or one beside it where that is another user's."""
    for cache in (base / "buildah-cache", base / f"buildah-cache-{os.geteuid()}"):
        with suppress(OSError):
            cache.mkdir(mode=0o755, exist_ok=True)
            if cache.stat().st_uid == os.geteuid() and not cache.is_symlink():
                return cache
    raise EngineUnavailable(Problem(f"{base} has no place for cache mounts", cure="set TMPDIR to a folder of your own"))


def _program(env: Mapping[str, str]) -> str | None:
    return shutil.which("podman", path=env.get("PATH", os.defpath))
