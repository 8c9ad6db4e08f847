"""What is asked of a machine's shell: which engines it has, and a Podman service where none runs.

Scripts are plain POSIX, print lines "strix:NAME=VALUE", and are pure strings here; `parse` reads what they print.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from strix_finetune.engine.podman_conf import HostFacts, configuration

_PREFIX = "strix:"

# the places that engine/select.py and engine/podman_conf.py look at on this machine
LOOK = r"""
LC_ALL=C; export LC_ALL
say() { printf 'strix:%s=%s\n' "$1" "$2"; }
uid=$(id -u); say uid "$uid"; say gid "$(id -g)"; say user "$(id -un 2>/dev/null)"; say home "$HOME"
say connection "$SSH_CONNECTION"
run=${XDG_RUNTIME_DIR:-/run/user/$uid}
rooted=; [ "$uid" = 0 ] && rooted=/run/podman/podman.sock
seen=
for socket in "${DOCKER_HOST#unix://}" "${CONTAINER_HOST#unix://}" /var/run/docker.sock "$run/docker.sock" \
  "$run/podman/podman.sock" $rooted; do
  case $socket in /*) ;; *) continue ;; esac
  case $seen in *" $socket "*) continue ;; esac
  seen="$seen $socket "
  if [ ! -S "$socket" ]; then [ -e "$socket" ] && say "no-socket" "$socket"
  elif [ -r "$socket" ] && [ -w "$socket" ]; then say usable "$socket"
  else say denied "$(stat -c %G "$socket" 2>/dev/null) $socket"
  fi
done
PATH=$PATH:/usr/sbin:/sbin
say podman "$(command -v podman)"
say limits "$(ulimit -Hn) $(ulimit -Hu 2>/dev/null || ulimit -Hp) $(ulimit -Hl)"
for file in /dev/kfd /dev/dri/renderD* /dev/infiniband/*; do
  [ -c "$file" ] && say device "$file $(stat -c '%g %a' "$file")"; done
[ -e /sys/fs/selinux/enforce ] && say selinux 1
[ -e /sys/fs/cgroup/cgroup.controllers ] && say unified 1
[ -d /run/systemd/system ] && say systemd 1
say capeff "$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)"
for name in crun runc slirp4netns pasta; do command -v $name >/dev/null && say program $name; done
for place in usr/libexec/podman usr/lib/podman usr/local/libexec/podman; do
  [ -e /$place/catatonit ] && say catatonit 1; done
for place in usr/bin/catatonit usr/bin/tini-static usr/libexec/docker/docker-init; do
  [ -e /$place ] && say init /$place; done
for place in usr/lib/podman usr/libexec/podman usr/lib/cni usr/libexec/cni opt/cni/bin; do
  for name in netavark bridge; do [ -e /$place/$name ] && say bridge 1; done; done
:
"""

# ends the service of the script below
END = "strix_end; trap - EXIT"

# the service ends with the shell, which ends with the connection, whatever ended that
_SERVICE = r"""
strix_service=
strix_dir=$(mktemp -d "${XDG_RUNTIME_DIR:-/tmp}/strix-podman-XXXXXX") || strix_dir=
strix_end() {
  [ -n "$strix_service" ] || return 0
  kill -TERM $strix_service 2>/dev/null
  n=0; while kill -0 $strix_service 2>/dev/null && [ $n -lt 50 ]; do n=$((n + 1)); sleep 0.1; done
  kill -KILL $strix_service 2>/dev/null; rm -rf "$strix_dir"
}
if [ -n "$strix_dir" ]; then
  conf=%(conf)s
  # who configured Podman over there knows better
  for own in /etc/containers/containers.conf "${XDG_CONFIG_HOME:-$HOME/.config}/containers/containers.conf"; do
    [ -e "$own" ] && conf=; done
  if [ -n "$conf" ] && [ -z "$CONTAINERS_CONF" ]; then
    printf '%%s' "$conf" >"$strix_dir/containers.conf"
    CONTAINERS_CONF=$strix_dir/containers.conf; export CONTAINERS_CONF
  fi
  unset CONTAINER_HOST DOCKER_HOST
  podman system service --time=0 "unix://$strix_dir/podman.sock" </dev/null >"$strix_dir/log" 2>&1 &
  strix_service=$!
  trap strix_end EXIT; trap 'exit 1' HUP TERM INT
  n=0
  while [ ! -S "$strix_dir/podman.sock" ] && kill -0 $strix_service 2>/dev/null && [ $n -lt 150 ]; do
    n=$((n + 1)); sleep 0.1; done
  if [ -S "$strix_dir/podman.sock" ]; then say service "$strix_dir/podman.sock"
  else say failed "$(grep . "$strix_dir/log" | tail -n 1)"; fi
else say failed "there is no place for a socket in ${XDG_RUNTIME_DIR:-/tmp}"; fi
"""


@dataclass(frozen=True, slots=True)
class Device:
    """A device file over there: its numeric group, and whether everybody may use it."""

    path: str
    group: int
    open_to_all: bool


@dataclass(frozen=True, slots=True)
class Over:
    """What a machine said of itself. `address`: its own end of the ssh connection.

    `usable`: sockets that this user may open, best first; `denied`: (group, socket) of those that it may not.
    `limits`: hard limits of open files and processes, and of locked memory in KiB, -1 for none. `devices`: those of
    GPUs and RDMA adapters.
    """

    uid: int
    gid: int
    user: str
    home: str
    address: str
    usable: tuple[str, ...]
    denied: tuple[tuple[str, str], ...]
    podman: str
    facts: HostFacts
    limits: tuple[int, int, int] = (-1, -1, -1)
    devices: tuple[Device, ...] = ()
    selinux: bool = False


def parse(lines: Iterable[str]) -> Over:
    """Read what LOOK printed; lines of others, such as greetings, are passed over."""
    said: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith(_PREFIX):
            name, _, value = line.removeprefix(_PREFIX).partition("=")
            said.setdefault(name, []).append(value)

    def one(name: str) -> str:
        return next(iter(said.get(name, ())), "")

    programs = said.get("program", [])
    connection = one("connection").split()
    capabilities = int(one("capeff") or "0", 16)
    limits = [int(word) if word.isdigit() else -1 for word in one("limits").split()]
    devices = (value.rsplit(" ", 2) for value in said.get("device", ()))
    denied = (value.partition(" ") for value in said.get("denied", ()))
    return Over(
        uid=int(one("uid") or -1),
        gid=int(one("gid") or -1),
        user=one("user"),
        home=one("home"),
        address=connection[2] if len(connection) == 4 else "",
        usable=tuple(said.get("usable", ())),
        denied=tuple((group, socket) for group, _, socket in denied),
        podman=one("podman"),
        facts=HostFacts(
            unified_cgroups="unified" in said,
            systemd="systemd" in said,
            may_raise_limits=bool(capabilities >> 24 & 1),  # CAP_SYS_RESOURCE
            runtimes=tuple(name for name in ("crun", "runc") if name in programs),
            own_init="catatonit" in said,
            init=one("init"),
            bridge="bridge" in said,
            user_network=bool({"slirp4netns", "pasta"} & set(programs)),
        ),
        limits=(limits[0], limits[1], limits[2]) if len(limits) == 3 else (-1, -1, -1),
        devices=tuple(Device(path, int(group), int(mode, 8) & 0o006 == 0o006) for path, group, mode in devices),
        selinux="selinux" in said,
    )


def service(over: Over) -> str:
    """The script that starts a Podman service with what that machine needs of configuration."""
    return _SERVICE % {"conf": shlex.quote(configuration(over.facts, root=over.uid == 0))}


def started(lines: Iterable[str]) -> tuple[str, str]:
    """The socket of the service, or why there is none."""
    said = dict(line.removeprefix(_PREFIX).partition("=")[::2] for line in lines if line.startswith(_PREFIX))
    return said.get("service", ""), said.get("failed", "") or "it does not start"
