#!/bin/sh
# Makes a host ready: installs and starts what is missing, says so, and notes what it started.
#
#   scripts/host.sh python            a Python with venv
#   scripts/host.sh engine            a container engine that answers, and mmdebstrap where the host is a Debian
#   scripts/host.sh test              what the tests need on top: Podman, Toolbx, D-Bus, a registry, OpenSSH, sshd
#   scripts/host.sh stop NOTES        stop the services whose process ids an earlier call wrote to NOTES
#
# Services that were running already are never touched. Nothing is installed without root or sudo.
set -eu

notes=${STRIX_STARTED:-${XDG_STATE_HOME:-$HOME/.local/state}/strix-finetune/started}

# GiB that the tests take at the most
room=24

say() { printf 'host: %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null 2>&1; then sudo "$@"
  else die "'$*' needs root; run it as root or install sudo"
  fi
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

packages() { # packages NAME...: install those that are missing
  missing=
  for name in "$@"; do installed "$name" || missing="$missing $name"; done
  [ -z "$missing" ] && return 0
  command -v apt-get >/dev/null 2>&1 || die "please install:$missing (this script knows only apt)"
  say "installing$missing"
  # an index that is present may be new enough: only when it is not is the archive asked for a new one
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1 && return 0
  as_root apt-get update -qq
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
}

answers() { # answers SOCKET: does an engine answer there?
  [ -S "$1" ] || return 1
  "${PYTHON:-python3}" - "$1" <<'PY' 2>/dev/null
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(5)
s.connect(sys.argv[1])
s.sendall(b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n")
sys.exit(0 if b" 200 " in s.recv(64) else 1)
PY
}

start() { # start NAME PROGRAM ARGUMENT...: a daemon of our own, its process id in the notes
  name=$1; shift
  folder=$(dirname "$notes"); mkdir -p "$folder"
  say "starting $name (log in $folder/$name.log)"
  if [ "$(id -u)" = 0 ]; then setsid "$@" >"$folder/$name.log" 2>&1 </dev/null &
  else setsid sudo "$@" >"$folder/$name.log" 2>&1 </dev/null & fi
  echo "$!" >>"$notes"
}

docker_running() {
  answers /var/run/docker.sock && return 0
  [ -d /run/systemd/system ] && { say "starting docker.service"; as_root systemctl start docker; answers /var/run/docker.sock && return 0; }
  # a daemon that was killed leaves its process id behind, which may be another program's by now
  for file in /var/run/docker.pid /var/run/docker/containerd/containerd.pid; do
    pid=$(cat "$file" 2>/dev/null) || continue
    case $(cat "/proc/$pid/comm" 2>/dev/null) in
    dockerd | containerd) ;;
    *) as_root rm -f "$file" ;;
    esac
  done
  start dockerd dockerd
  tries=0
  until answers /var/run/docker.sock; do
    tries=$((tries + 1))
    [ "$tries" -lt 120 ] || die "dockerd does not answer; see $(dirname "$notes")/dockerd.log"
    sleep 0.5
  done
}

bus_running() {
  [ -S /run/dbus/system_bus_socket ] && "${PYTHON:-python3}" -c '
import socket; s = socket.socket(socket.AF_UNIX); s.connect("/run/dbus/system_bus_socket")' 2>/dev/null && return 0
  as_root mkdir -p /run/dbus
  as_root rm -f /run/dbus/pid
  start dbus dbus-daemon --system --nofork --nopidfile
}

case ${1:-} in
python)
  "${PYTHON:-python3}" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && exit 0
  packages python3 python3-venv
  "${PYTHON:-python3}" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    || die "Python 3.11 or later with venv is needed; set PYTHON to one"
  ;;
engine)
  # where there is no apt, the driver borrows mmdebstrap and apt from a Debian image
  ! command -v apt-get >/dev/null 2>&1 || packages mmdebstrap
  [ -n "${DOCKER_HOST:-}${CONTAINER_HOST:-}" ] && exit 0
  for socket in /var/run/docker.sock "${XDG_RUNTIME_DIR:-/nonexistent}/docker.sock" \
    "${XDG_RUNTIME_DIR:-/nonexistent}/podman/podman.sock" /run/podman/podman.sock; do
    answers "$socket" && exit 0
  done
  # the driver starts a private Podman service by itself
  command -v dockerd >/dev/null 2>&1 || ! command -v podman >/dev/null 2>&1 || exit 0
  command -v dockerd >/dev/null 2>&1 || command -v apt-get >/dev/null 2>&1 \
    || die "there is no container engine; install one (dnf install podman, or pacman -S podman)"
  command -v dockerd >/dev/null 2>&1 || packages docker.io
  docker_running
  ;;
test)
  # the ssh servers of the tests are the only ones that are wanted
  if ! installed openssh-server; then as_root mkdir -p /etc/ssh; as_root touch /etc/ssh/sshd_not_to_be_run; fi
  packages docker.io podman buildah podman-toolbox runc uidmap docker-registry dbus mmdebstrap busybox-static patch binutils
  # what the machines of the cluster tests are made of
  packages openssh-server openssh-client iproute2 iptables ethtool faketime
  # Slurm's daemons start only where there is a configuration, which the tests have in a folder of their own
  packages slurmctld slurmd slurm-client munge
  # the page about a run is looked at in a browser, where the archive has this one
  if apt-cache show chromium-headless-shell >/dev/null 2>&1; then packages chromium-headless-shell; fi
  docker_running
  bus_running
  # a full disk fails tests in many words; these were 21 GB at the most, of which images stay for the next time
  free=$(($(df -Pk . | awk 'NR == 2 { print $4 }') / 1048576))
  [ "$free" -ge "$room" ] || say "the disk has $free GiB free, and the tests may take $room"
  ;;
stop)
  [ -f "$2" ] || exit 0
  while read -r pid; do
    if kill -0 "$pid" 2>/dev/null; then
      say "stopping what was started here (process $pid)"
      as_root kill "$pid" || true
      tries=0
      while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 100 ]; do tries=$((tries + 1)); sleep 0.1; done
    fi
  done <"$2"
  rm -f "$2"
  ;;
*)
  die "say one of: python, engine, test, stop NOTES"
  ;;
esac
