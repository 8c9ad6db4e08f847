"""Addresses of the network interfaces, asked of the kernel (rtnetlink): containers often have no `ip` program.

The message's layout: include/uapi/linux/rtnetlink.h and if_addr.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_GETADDR, _NEWADDR, _DONE, _ERROR = 22, 20, 3, 2
_REQUEST, _DUMP = 0x1, 0x300
_ADDRESS, _LOCAL = 1, 2
# a route that the kernel chose may need an address that is not used yet: tentative, or a duplicate of another's
_UNUSABLE = 0x40 | 0x08


def addresses() -> dict[str, list[str]]:
    """Interface → "address/prefix" in the kernel's order, which is the one that libraries see; IPv4 and IPv6."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(3)
        link.bind((0, 0))
        header = struct.pack("=IHHII", 17, _GETADDR, _REQUEST | _DUMP, 1, 0)
        link.send(header + struct.pack("=B", socket.AF_UNSPEC))
        while True:
            done = False
            for kind, body in _messages(link.recv(1 << 17)):
                if kind in (_DONE, _ERROR):
                    done = True
                elif kind == _NEWADDR:
                    _add(found, body)
            if done:
                return found


def _add(found: dict[str, list[str]], body: bytes) -> None:
    family, prefix, flags, _scope, index = struct.unpack_from("=BBBBI", body)
    if family not in (socket.AF_INET, socket.AF_INET6) or flags & _UNUSABLE:
        return
    attributes = dict(_attributes(body[8:]))
    # the local address; the other is the peer's on a point-to-point link
    raw = attributes.get(_LOCAL) or attributes.get(_ADDRESS)
    if raw:
        name = socket.if_indextoname(index)
        found.setdefault(name, []).append(f"{socket.inet_ntop(family, raw)}/{prefix}")


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if length < 16:
            return
        yield kind, data[16:length]
        data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind, data[4:length]
        data = data[(length + 3) & ~3 :]
