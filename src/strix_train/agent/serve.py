"""The listening side of the probes. A connection first shows the token of this check, else it is closed.

After the token one byte says what the other side wants: "?" an answer, "p" each byte back, "s" its bytes counted.
"""

from __future__ import annotations

import errno
import selectors
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

TOKEN_BYTES = 16
HELLO = b"strix\n"
_BLOCK = 1 << 20
_TICK = 0.1
_serving: list[tuple[threading.Event, threading.Thread]] = []
# more than all probes of one connection take
_PATIENCE = 20.0


def serve(
    seconds: float, token: str, address: str, ports: list[int], some: int = 0, exclusive: list[int] | None = None
) -> dict[str, Any]:
    """Listen on `ports`, on `some` that the kernel chooses as it does for gloo and RCCL, and on one UDP port.

    The sockets are closed after `seconds`. `exclusive`: ports that training binds on every address of the node.
    Returns what is open, and port → why not of the others.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listeners: list[socket.socket] = []
    taken: dict[str, str] = {}
    for port in ports:
        try:
            if port in (exclusive or ()):
                _listener(family, "::" if family == socket.AF_INET6 else "0.0.0.0", port).close()
            listeners.append(_listener(family, address, port))
        except OSError as error:
            taken[str(port)] = _why(error)
    chosen = []
    for _ in range(some):
        try:
            listeners.append(_listener(family, address, 0))
        except OSError as error:
            taken["0"] = _why(error)
            break
        chosen.append(listeners[-1].getsockname()[1])
    datagrams = socket.socket(family, socket.SOCK_DGRAM)
    udp = 0
    with suppress(OSError):
        datagrams.bind((address, 0))
        udp = datagrams.getsockname()[1]
    until = time.monotonic() + seconds
    secret = bytes.fromhex(token)
    closed = threading.Event()
    for target, sockets in ((_accept, listeners), (_echo, [datagrams])):
        thread = threading.Thread(target=target, args=(sockets, secret, until, closed), daemon=True)
        thread.start()
        _serving.append((closed, thread))
    opened = [sock.getsockname()[1] for sock in listeners]
    return {"ports": [port for port in opened if port not in chosen], "some": chosen, "udp": udp, "taken": taken}


def unserve(seconds: float) -> bool:
    """Close all that `serve` opened, and wait until it is: training binds a port of it next. Returns whether it is."""
    until = time.monotonic() + seconds
    for closed, _ in _serving:
        closed.set()
    for _, thread in _serving:
        thread.join(max(0.0, until - time.monotonic()))
    done = not any(thread.is_alive() for _, thread in _serving)
    _serving.clear()
    return done


def _listener(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(64)
    except OSError:
        sock.close()
        raise
    return sock


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "taken"
    if error.errno == errno.EADDRNOTAVAIL:
        return "no-address"
    return errno.errorcode.get(error.errno or 0, "unknown")


def _accept(listeners: list[socket.socket], secret: bytes, until: float, closed: threading.Event) -> None:
    with selectors.DefaultSelector() as selector:
        for sock in listeners:
            selector.register(sock, selectors.EVENT_READ)
        while time.monotonic() < until and not closed.is_set():
            for key, _ in selector.select(_TICK):
                assert isinstance(key.fileobj, socket.socket)
                with suppress(OSError):
                    client, _ = key.fileobj.accept()
                    threading.Thread(target=_answer, args=(client, secret), daemon=True).start()
    for sock in listeners:
        sock.close()


def _answer(client: socket.socket, secret: bytes) -> None:
    with client, suppress(OSError):
        client.settimeout(_PATIENCE)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = _exactly(client, TOKEN_BYTES + 1)
        if greeting[:TOKEN_BYTES] != secret:
            return
        wish = greeting[TOKEN_BYTES:]
        if wish == b"?":
            client.sendall(HELLO)
        elif wish == b"p":
            while data := client.recv(64):
                client.sendall(data)
        elif wish == b"s":
            buffer, count = bytearray(_BLOCK), 0
            while size := client.recv_into(buffer):
                count += size
            client.sendall(struct.pack(">Q", count))


def _exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := client.recv(size - len(data))):
        data += part
    return data


def _echo(sockets: list[socket.socket], secret: bytes, until: float, closed: threading.Event) -> None:
    """Answer each datagram with its number and how large it was; the answer is small and always passes."""
    (sock,) = sockets
    with sock:
        sock.settimeout(_TICK)
        while time.monotonic() < until and not closed.is_set():
            try:
                data, sender = sock.recvfrom(1 << 16)
            except OSError:
                continue
            if data[:TOKEN_BYTES] == secret and len(data) >= TOKEN_BYTES + 4:
                with suppress(OSError):
                    sock.sendto(data[TOKEN_BYTES : TOKEN_BYTES + 4] + struct.pack(">I", len(data)), sender)
