"""The connecting side of the TCP probes: which ports are open from here, how long a message takes, how much passes."""

from __future__ import annotations

import errno
import fcntl
import selectors
import socket
import statistics
import struct
import termios
import threading
import time
from typing import Any

from .serve import HELLO

_BLOCK = bytes(1 << 20)
# seconds between two looks at a connection that takes nothing
_LOOK = 0.2


def connect(seconds: float, token: str, address: str, ports: list[int], source: str = "") -> dict[str, str]:
    """Port → "open", "refused" (nobody, or a firewall that says no), "dropped" (no answer), "stranger" (another
    program answers), or the kernel's name of another error. All are tried at the same time."""
    secret = bytes.fromhex(token)
    found: dict[str, str] = {}
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for port in ports:
            link = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            link.setblocking(False)
            try:
                if source:
                    link.bind((source, 0))
                code = link.connect_ex((address, port))
            except OSError as error:
                code = error.errno or 0
            if code not in (0, errno.EINPROGRESS):
                found[str(port)] = _name(code)
                link.close()
                continue
            selector.register(link, selectors.EVENT_WRITE, port)
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                link, port = key.fileobj, key.data  # type: ignore[assignment]  # none but sockets are registered
                state = _step(link, key.events, secret)
                if state == "greeted":
                    selector.modify(link, selectors.EVENT_READ, port)
                elif state:
                    found[str(port)] = state
                    selector.unregister(link)
                    link.close()
        for key in list(selector.get_map().values()):
            # connected, and nobody says a word: that is not ours
            found[str(key.data)] = "dropped" if key.events == selectors.EVENT_WRITE else "stranger"
            key.fileobj.close()  # type: ignore[union-attr]
    return {str(port): found[str(port)] for port in ports}


def _step(link: socket.socket, events: int, secret: bytes) -> str:
    """One step of a connection that is ready; what became of it, empty while it goes on."""
    try:
        if events == selectors.EVENT_WRITE:
            code = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                return _name(code)
            link.sendall(secret + b"?")
            return "greeted"
        # the answer is shorter than any packet
        return "open" if link.recv(64) == HELLO else "stranger"
    except OSError as error:
        return "stranger" if error.errno == errno.ECONNRESET else _name(error.errno or 0)


def _name(code: int) -> str:
    known = {errno.ECONNREFUSED: "refused", errno.ETIMEDOUT: "dropped"}
    return known.get(code) or errno.errorcode.get(code, "unknown")


def _open(address: str, port: int, source: str, seconds: float) -> socket.socket:
    link = socket.create_connection((address, port), seconds, source_address=(source, 0) if source else None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def latency(
    seconds: float, token: str, address: str, port: int, source: str = "", count: int = 50
) -> dict[str, float | int]:
    """Round trips of one byte over one connection, in microseconds."""
    until = time.monotonic() + seconds
    times = []
    with _open(address, port, source, seconds) as link:
        link.sendall(bytes.fromhex(token) + b"p")
        for _ in range(count + 1):
            begin = time.monotonic()
            if begin >= until:
                break
            link.settimeout(until - begin)
            link.sendall(b"x")
            if not link.recv(1):
                break
            times.append((time.monotonic() - begin) * 1e6)
    times = times[1:] or times  # the first one waits for the other side to begin
    if not times:
        raise OSError("no byte came back")
    return {"count": len(times), "median_us": round(statistics.median(times), 1), "least_us": round(min(times), 1)}


def bandwidth(
    seconds: float, token: str, address: str, port: int, source: str = "", streams: int = 4, patience: float = 4.0
) -> dict[str, Any]:
    """Send for `seconds` over several connections; what the other side took, in 10^9 bits a second.

    `stalled`: how many connections had more to send and nothing of it was taken for `patience` seconds. A link that is
    only slow, or a side that is busy, takes a little all the time.
    """
    counted = [0] * streams
    stalled = [False] * streams
    ended = [0.0] * streams
    begin = time.monotonic()

    def one(number: int) -> None:
        try:
            with _open(address, port, source, patience) as link:
                # what waits here when the time is over is still to be sent
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
                link.sendall(bytes.fromhex(token) + b"s")
                counted[number], stalled[number] = _pour(link, begin + seconds, patience)
        except OSError:
            stalled[number] = counted[number] == 0
        ended[number] = time.monotonic()

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(begin + seconds + 3 * patience - time.monotonic())
    took = max(max(ended) - begin, 1e-3)
    total = sum(counted)
    return {
        "gbit": round(total * 8 / took / 1e9, 3),
        "bytes": total,
        "seconds": round(took, 3),
        "stalled": sum(stalled) + sum(not end for end in ended),
    }


def _pour(link: socket.socket, until: float, patience: float) -> tuple[int, bool]:
    """Send as much as is taken, and then ask how much came. Returns bytes, or that they stood still."""
    sent, taken, since, answer = 0, 0, time.monotonic(), b""
    link.settimeout(_LOOK)
    closing = False
    while len(answer) < 8:
        if not closing and time.monotonic() >= until:
            link.shutdown(socket.SHUT_WR)
            closing = True
        try:
            if closing:
                part = link.recv(8 - len(answer))
                if not part:
                    return taken, False
                answer += part
            else:
                sent += link.send(_BLOCK)
        except TimeoutError:
            pass
        now, waiting = time.monotonic(), _waiting(link)
        if sent - waiting > taken:
            taken, since = sent - waiting, now
        elif waiting > 1 and now - since > patience:
            return 0, True
        if now > until + 2 * patience:
            return taken, False
    return int(struct.unpack(">Q", answer)[0]), False


def _waiting(link: socket.socket) -> int:
    """Bytes that the other side has not acknowledged, the end of the stream among them."""
    found = fcntl.ioctl(link.fileno(), termios.TIOCOUTQ, bytes(4))
    return int(struct.unpack("i", found)[0])
