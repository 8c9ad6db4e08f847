"""The largest IP packet that reaches another node: UDP with "do not fragment", the other side says what it got."""

from __future__ import annotations

import errno
import socket
import struct
import time
from typing import Any

from .serve import TOKEN_BYTES

# linux/in.h and in6.h: set DF, and neither heed nor learn the path's MTU
_IP_MTU_DISCOVER, _IP_MTU, _PROBE = 10, 14, 3
_IPV6_MTU_DISCOVER, _IPV6_MTU, _IPV6_DONTFRAG = 23, 24, 62
_TRIES = 3
_WAIT_SECONDS = 0.2
# what links have: jumbo frames, Ethernet, PPPoE, VXLAN, WireGuard, the least of IPv6, the least of IPv4
_USUAL = (65520, 9216, 9000, 4096, 1500, 1492, 1450, 1420, 1400, 1280, 576)


def largest(
    seconds: float, token: str, address: str, port: int, mtu: int, source: str = "", sizes: list[int] | None = None
) -> dict[str, Any]:
    """The largest packet (bytes, with headers) that passed, at most `mtu`, the interface's own; 0 when none did.

    `sizes` are tried beside the usual ones.

    `told`: what the kernel had learned of the path, when a router said that a packet was too large; 0: nobody did.
    """
    version6 = ":" in address
    headers = 48 if version6 else 28
    until = time.monotonic() + seconds
    with socket.socket(socket.AF_INET6 if version6 else socket.AF_INET, socket.SOCK_DGRAM) as link:
        if source:
            link.bind((source, 0))
        if version6:
            link.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PROBE)
            link.setsockopt(socket.IPPROTO_IPV6, _IPV6_DONTFRAG, 1)
        else:
            link.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PROBE)
        link.connect((address, port))
        secret = bytes.fromhex(token)
        # a UDP length field has 16 bits
        top = min(mtu, 65535)
        passed = 0
        for size in sorted({top, *(size for size in (*_USUAL, *(sizes or ())) if size < top)}, reverse=True):
            if time.monotonic() >= until:
                break
            try:
                arrived = _passes(link, secret, size - headers, until)
            except ConnectionRefusedError:
                break  # nobody listens over there
            if arrived:
                passed = size
                break
        told = 0
        if passed < top:
            level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if version6 else (socket.IPPROTO_IP, _IP_MTU)
            known = link.getsockopt(level, option)
            told = known if known < top else 0
    return {"bytes": passed, "told": told}


def _passes(link: socket.socket, secret: bytes, size: int, until: float) -> bool:
    """Whether a datagram of `size` bytes arrives whole; lost ones are sent again."""
    for attempt in range(_TRIES):
        number = struct.pack(">HH", size & 0xFFFF, attempt)
        try:
            link.send(secret + number + bytes(max(0, size - TOKEN_BYTES - 4)))
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            continue  # too large for this interface, or a router's late word about an earlier one
        end = min(time.monotonic() + _WAIT_SECONDS, until)
        while (left := end - time.monotonic()) > 0:
            link.settimeout(left)
            try:
                answer = link.recv(64)
            except TimeoutError:
                break
            except ConnectionRefusedError:
                raise
            except OSError:
                continue  # what a router said about an earlier one
            if len(answer) == 8 and answer[:2] == number[:2] and struct.unpack(">I", answer[4:])[0] == size:
                return True
    return False
