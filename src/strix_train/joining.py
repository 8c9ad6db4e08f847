"""A container that a scheduler has started takes its place among the others: `python3 -m strix_train.joining -- WORDS`.

Slurm and Kubernetes say how many nodes there are, which one this is and where the first one is, in the names that
torchrun reads (PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_MASTER_ADDR, PET_MASTER_PORT). What they do not say
is by which interface the others are reached: gloo asks what the own host name means, which on many hosts is the
loopback. So the interface is the one that the kernel takes for the first node, found here, on this node; the first node
itself asks for another one, where STRIX_PEER names it.

One process a node runs directly and not below torchrun, which kills 30 seconds after a signal, in the middle of a
checkpoint. Needs the standard library only.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

# seconds until the first node's name must mean something: Kubernetes makes it when that pod has an address
NAMED_WITHIN = 300.0
# seconds that a checkpoint may take when whoever started this has gone without a word
GRACE = 90.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = 130
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915
_SIX = Path("/proc/net/if_inet6")


class NotJoined(Exception):
    """The others cannot be joined; the text is a sentence with its cure."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which of how many this node is, and where the first one listens. `address` is numeric."""

    rank: int
    nodes: int
    processes: int
    address: str
    port: int


def read(env: Mapping[str, str], named_within: float = NAMED_WITHIN) -> Place:
    """This node's place, from what the scheduler said. Raises NotJoined."""
    numbers = {}
    for name, least in (("NNODES", 1), ("NODE_RANK", 0), ("NPROC_PER_NODE", 1), ("MASTER_PORT", 1)):
        word = env.get(f"PET_{name}", "")
        if not word.isdecimal() or int(word) < least:
            raise NotJoined(f"PET_{name} is '{word}' and not a number of at least {least}; start this by emit's files")
        numbers[name] = int(word)
    if numbers["NODE_RANK"] >= numbers["NNODES"]:
        raise NotJoined(f"there is no node {numbers['NODE_RANK']} of {numbers['NNODES']}; start this by emit's files")
    peer = env.get("STRIX_PEER", "") if numbers["NODE_RANK"] == 0 else ""
    address = resolve(peer or env.get("PET_MASTER_ADDR", ""), time.monotonic() + named_within)
    # what a host calls itself is its loopback in many an /etc/hosts
    address = own_address(address) if peer else address
    return Place(numbers["NODE_RANK"], numbers["NNODES"], numbers["NPROC_PER_NODE"], address, numbers["MASTER_PORT"])


def resolve(name: str, deadline: float) -> str:
    """The address of the first node, IPv4 where it has both, asked for again until `deadline` (monotonic).

    An address stays what it is. Raises NotJoined.
    """
    with suppress(ValueError):
        return str(ipaddress.ip_address(name))
    # one that is mistyped is not known later either
    final = not name or ":" in name or name.replace(".", "").isdecimal()
    while True:
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                return str(socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)[0][4][0])
            except OSError as error:
                reason = error.strerror or str(error)
        if final or time.monotonic() > deadline:
            raise NotJoined(f"the node '{name}' has no address here ({reason}); is it running?")
        time.sleep(1)


def own_address(peer: str) -> str:
    """The address of this machine that packets to `peer` come from; nothing is sent. Raises NotJoined."""
    with socket.socket(socket.AF_INET6 if ":" in peer else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError as error:
            raise NotJoined(f"there is no route to {peer} ({error.strerror}); see 'ip route get {peer}'") from error
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """The interface that holds an address of this machine. Raises NotJoined."""
    found = _interface_of_six(address) if ":" in address else _interface_of_four(address)
    if not found:
        raise NotJoined(f"no interface holds {address}; name it in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME")
    return found


def _interface_of_four(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                held = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))[20:24]
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(held) == address:
                return name
    return ""


def _interface_of_six(address: str) -> str:
    """From the kernel's list: address in hex, index, length of the prefix, scope, flags, name."""
    # one that is valid on one link only says on which
    address, _, zone = address.partition("%")
    wanted = ipaddress.IPv6Address(address).packed.hex()
    with suppress(OSError), _SIX.open(encoding="ascii") as lines:
        for words in map(str.split, lines):
            if words[0] == wanted and zone in ("", words[5]):
                return words[5]
    return ""


def chosen(env: Mapping[str, str], place: Place) -> dict[str, str]:
    """The variables that name this node's interface, without those that somebody has set; none for a node alone."""
    missing = [name for name in _INTERFACES if not env.get(name)]
    if place.nodes == 1 or not missing:
        return {}
    found = interface_of(own_address(place.address))
    # to RCCL a name is a beginning of names, unless it says so
    return {name: f"={found}" if name.startswith("NCCL") else found for name in missing}


def direct(place: Place) -> dict[str, str]:
    """What torchrun would tell the one process of a node."""
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.nodes),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(place.rank),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
    }


def command(place: Place, words: Sequence[str]) -> list[str]:
    """`words`, below torchrun where a node has several processes. A node alone with one process is no group."""
    if place.processes == 1:
        return list(words)
    ours = ["-m", "strix_train", *words[1:]] if words[0] == "train" else ["--no-python", *words]
    return [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "0", *ours]


def main(arguments: Sequence[str]) -> int:
    """Become what is to run, or, attended, run it; returns its exit code, 128 + N for signal N, 1 for nothing ran.

    Raises SystemExit with 130 when it is asked to stop before that begins.
    """
    attended = list(arguments[:1]) == ["--attended"]
    words = list(arguments[attended:])
    words = words[words[:1] == ["--"] :]
    if not words:
        return _refuse("there is nothing to run; write it behind --", 2)
    asked = _Asked()
    try:
        place = read(os.environ)
        env = {**os.environ, **chosen(os.environ, place)}
    except NotJoined as refused:
        return _refuse(str(refused), 1)
    if place.nodes > 1 or place.processes > 1:
        env |= direct(place) if place.processes == 1 else {"PET_MASTER_ADDR": place.address}
        by = env["GLOO_SOCKET_IFNAME"] if place.nodes > 1 else "loopback"
        where = f"[{place.address}]:{place.port}" if ":" in place.address else f"{place.address}:{place.port}"
        print(f"node {place.rank} of {place.nodes} ({socket.gethostname()}): {by}, first node at {where}", flush=True)
    argv = command(place, words)
    try:
        if not attended and place.processes == 1:
            asked.restore()
            os.execvpe(argv[0], argv, env)
        code = _attend(asked.start(argv, env), attended=attended)
    except OSError as error:
        return _refuse(f"{argv[0]} does not start: {error.strerror}", 1)
    # torchrun calls it a failure that it was asked to stop, and who has just begun ends by the signal itself
    stopped = (code and place.processes > 1) or code - 128 in asked.came
    return _INTERRUPTED if asked.came and stopped else code


class _Asked:
    """The signals that ask this process to stop, handled from the beginning: process 1 gets no others.

    `came`: those of them that came while something runs, which has got them, too.
    """

    def __init__(self) -> None:
        self.came: list[int] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._begun = False
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._begun:
            raise SystemExit(_INTERRUPTED)
        self.came.append(number)
        if self._child is not None:
            self._child.send_signal(number)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def start(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start what is to run, and hand it what comes meanwhile. Raises OSError."""
        self._begun = True
        child = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._child = child
        for number in self.came:
            child.send_signal(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return child


def _attend(child: subprocess.Popen[bytes], *, attended: bool) -> int:
    """Wait for the child, and end it when our standard input is closed, where `attended`. Returns its exit code.

    A scheduler that has lost its patience kills the engine's client, and not what runs in the container; the closed
    input is what tells.
    """
    watched = [0] if attended else []
    while child.poll() is None:
        if select.select(watched, [], [], 0.1)[0] and not os.read(0, 4096):
            print("whoever started this has gone: stopping", file=sys.stderr, flush=True)
            child.terminate()
            try:
                child.wait(GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _refuse(sentence: str, code: int) -> int:
    print(f"train: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
