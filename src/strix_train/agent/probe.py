"""The connecting side of the TCP probes: which ports are open from here, how long a message takes, how much passes."""

from __future__ import annotations

import errno
import socket
import statistics
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from .serve import HELLO

_AT_ONCE = 32
_CONNECT_SECONDS = 3.0
_BLOCK = bytes(1 << 20)


def connect(seconds: float, token: str, address: str, ports: list[int], source: str = "") -> dict[str, str]:
    """Port → "open", "refused" (nobody, or a firewall that says no), "dropped" (no answer), "stranger" (another
    program answers), or the kernel's name of another error."""
    until = time.monotonic() + seconds

    def one(port: int) -> str:
        left = until - time.monotonic()
        if left <= 0:
            return "dropped"
        return _state(bytes.fromhex(token), address, port, source, min(left, _CONNECT_SECONDS))

    # all of a range may be dropped, each for seconds: then a sample of it tells as much
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return {str(port): state for port, state in zip(ports, pool.map(one, ports), strict=True)}


def _state(secret: bytes, address: str, port: int, source: str, seconds: float) -> str:
    try:
        with _open(address, port, source, seconds) as link:
            link.sendall(secret + b"?")
            answer = b""
            while len(answer) < len(HELLO) and (part := link.recv(64)):
                answer += part
            return "open" if answer == HELLO else "stranger"
    except TimeoutError:
        return "dropped"
    except ConnectionRefusedError:
        return "refused"
    except ConnectionResetError:
        return "stranger"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "unknown")


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
    """Send for `seconds` over several connections; what the other side counted, in 10^9 bits a second.

    `stalled`: how many connections had more to send and nothing of it was taken for `patience` seconds.
    """
    counted = [0] * streams
    stalled = [False] * streams
    ended = [0.0] * streams
    begin = time.monotonic()

    def one(number: int) -> None:
        try:
            with _open(address, port, source, patience) as link:
                link.sendall(bytes.fromhex(token) + b"s")
                link.settimeout(patience)
                while time.monotonic() - begin < seconds:
                    link.sendall(_BLOCK)
                link.shutdown(socket.SHUT_WR)
                answer = b""
                while len(answer) < 8 and (part := link.recv(8 - len(answer))):
                    answer += part
                if len(answer) == 8:
                    counted[number] = struct.unpack(">Q", answer)[0]
        except TimeoutError:
            stalled[number] = True
        except OSError:
            with suppress(IndexError):
                stalled[number] = counted[number] == 0
        ended[number] = time.monotonic()

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 3 * patience)
    took = max(max(ended) - begin, 1e-3)
    total = sum(counted)
    return {
        "gbit": round(total * 8 / took / 1e9, 3),
        "bytes": total,
        "seconds": round(took, 3),
        "stalled": sum(stalled) + sum(not end for end in ended),
    }
