"""One connection from every process to process 0, on which a fault, or a death, is told to all within seconds.

A collective that waits for a dead process may wait for as long as its timeout. The kernel closes the connections of a
process that dies, however it dies, and its keepalive notices a machine that is gone; it answers for a process that is
merely busy. So a healthy run is never taken for a dead one. Nothing of torch is needed.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# Seconds of silence before the kernel asks, between two of its questions, and how many may stay unanswered.
_KEEPALIVE = (5, 4, 3)


@dataclass(frozen=True, slots=True)
class Fault:
    """What ended a run: process `rank` says `text`, or said nothing where `lost`. `code`: the exit code."""

    rank: int
    text: str
    code: int
    lost: bool = False


def _alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    idle, between, count = _KEEPALIVE
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
    # what was sent and never acknowledged: keepalive does not look while data is under way
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (idle + between * count))


class _Line:
    """One connection: JSON objects, one a line, in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._reader = connection.makefile("r", encoding="utf-8", newline="\n")
        self._lock = threading.Lock()

    def send(self, **value: Any) -> None:
        """Send an object; a peer that is gone is found by reading."""
        with self._lock, contextlib.suppress(OSError):
            self.connection.sendall((json.dumps(value) + "\n").encode())

    def receive(self) -> dict[str, Any] | None:
        """Return the next object, or None at the end."""
        try:
            text = self._reader.readline()
            value = json.loads(text) if text.endswith("\n") else None
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def close(self) -> None:
        """Close, also for a thread that reads."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class Lifeline:
    """What both ends have in common. `told` is called once, in a thread of its own, with the first fault of another."""

    def __init__(self, rank: int, told: Callable[[Fault], None]) -> None:
        self.rank, self._told = rank, told
        self.fault: Fault | None = None
        self._closing = False
        self._lock = threading.Lock()

    def _learn(self, fault: Fault) -> bool:
        """Keep the first fault; say whether this is the one."""
        with self._lock:
            if self._closing or self.fault is not None:
                return False
            self.fault = fault
        if fault.rank != self.rank:
            threading.Thread(target=self._told, args=(fault,), daemon=True).start()
        return True

    def fail(self, text: str, code: int) -> None:
        """Tell all others that this process ends, and why."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave in peace."""
        raise NotImplementedError


class Head(Lifeline):
    """The end at process 0: listens, and passes on what one process says to all others."""

    def __init__(self, told: Callable[[Fault], None], ports: Iterable[int] = ()) -> None:
        super().__init__(0, told)
        self.token = secrets.token_hex(8)
        self._server = _listen(ports)
        self.port: int = self._server.getsockname()[1]
        self._lines: dict[int, _Line] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            _alive(connection)
            threading.Thread(target=self._serve, args=(_Line(connection),), daemon=True).start()

    def _serve(self, line: _Line) -> None:
        hello = line.receive() or {}
        rank = hello.get("rank")
        if hello.get("token") != self.token or not isinstance(rank, int):
            line.close()
            return
        with self._lock:
            self._lines[rank] = line
        line.send(welcome=self.token)
        # one that was welcomed too late has closed its end and tries again: that is no death
        here = bool((line.receive() or {}).get("here"))
        while here and (said := line.receive()) is not None:
            if said.get("bye"):
                self._forget(rank, line)
                line.close()
                return
            self._spread(Fault(rank, str(said.get("fault")), int(said.get("code", 1))))
        current = self._forget(rank, line)
        if here and current:
            self._spread(Fault(rank, "", 1, lost=True))
        elif not here:
            line.close()

    def _forget(self, rank: int, line: _Line) -> bool:
        """Forget a line, and say whether it was the last that its process made."""
        with self._lock:
            current = self._lines.get(rank) is line
            if current:
                del self._lines[rank]
        return current

    def _spread(self, fault: Fault) -> None:
        if not self._learn(fault):
            return
        for rank, line in list(self._lines.items()):
            if rank != fault.rank:
                line.send(rank=fault.rank, fault=fault.text, code=fault.code, lost=fault.lost)

    def fail(self, text: str, code: int) -> None:
        """Tell all others that this process ends, and why."""
        self._spread(Fault(0, text, code))

    def close(self) -> None:
        """Leave in peace: the others may still be at work."""
        self._closing = True
        for line in list(self._lines.values()):
            line.send(bye=True)
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for line in list(self._lines.values()):
            line.close()


class Tail(Lifeline):
    """The end at every other process."""

    def __init__(
        self, rank: int, addresses: Sequence[str], port: int, token: str, told: Callable[[Fault], None], limit: float
    ) -> None:
        """Connect to process 0 by the first of its addresses that answers. Raises OSError after `limit` seconds."""
        super().__init__(rank, told)
        self._line = _connect(rank, addresses, port, token, limit)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while (said := self._line.receive()) is not None:
            if said.get("bye"):
                self._closing = True
                return
            self._learn(Fault(int(said["rank"]), str(said["fault"]), int(said["code"]), bool(said["lost"])))
        self._learn(Fault(0, "", 1, lost=True))

    def fail(self, text: str, code: int) -> None:
        """Tell all others that this process ends, and why."""
        if self._learn(Fault(self.rank, text, code)):
            self._line.send(fault=text, code=code)

    def close(self) -> None:
        """Leave in peace."""
        self._closing = True
        self._line.send(bye=True)
        self._line.close()


def _listen(ports: Iterable[int]) -> socket.socket:
    """Return a socket that listens on the first free one of the ports, on any free one where none is named."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    dual = family == socket.AF_INET6
    for port in [*ports][::-1] or [0]:
        try:
            return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
        except OSError:
            continue
    raise OSError(f"none of the ports {ports} is free")


def _connect(rank: int, addresses: Sequence[str], port: int, token: str, limit: float) -> _Line:
    deadline = time.monotonic() + limit
    while True:
        for address in addresses:
            with contextlib.suppress(OSError):
                connection = socket.create_connection((address, port), timeout=min(5.0, limit))
                _alive(connection)
                line = _Line(connection)
                line.send(rank=rank, token=token)
                if (line.receive() or {}).get("welcome") == token:
                    connection.settimeout(None)
                    line.send(here=True)
                    return line
                line.close()
        if time.monotonic() > deadline:
            raise OSError(f"nobody answers at {' or '.join(addresses)}, port {port}")
        time.sleep(0.2)
