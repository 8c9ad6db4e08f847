"""Addresses by which machines reach one another."""

from __future__ import annotations

import socket
from contextlib import suppress
from urllib.parse import urlsplit


def resolved(url: str) -> str:
    """The address of the host in an engine's URL; empty where its name is not known."""
    host = urlsplit(url).hostname or ""
    with suppress(OSError):
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    return ""


def source(peer: str) -> str:
    """The address that this machine would send from to `peer`, empty without a route; nothing is sent."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])
    return ""
