"""A proxy between a client and a registry that dies to order: after so many bytes, whatever stands in them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Proxy:
    """Passes connections on to `target`. `up` and `down`: bytes so far, to the registry and from it.

    When `up` or `down` passes its limit, `on_limit` is called and every connection is cut; until `revive` new ones
    are cut at once.
    """

    target: int
    port: int = 0
    up: int = 0
    down: int = 0
    up_limit: int | None = None
    down_limit: int | None = None
    on_limit: Callable[[], None] = lambda: None
    dead: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: list[socket.socket] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def revive(self) -> None:
        with self._lock:
            self.up = self.down = 0
            self.up_limit = self.down_limit = None
            self.dead = False

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self.dead:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            for source, sink, upwards in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass, args=(source, sink, upwards), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, upwards: bool) -> None:
        with suppress(OSError):
            while block := source.recv(16384):
                if self._count(len(block), upwards):
                    self.on_limit()
                    self._cut()
                    return
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)

    def _count(self, size: int, upwards: bool) -> bool:
        with self._lock:
            self.up += size if upwards else 0
            self.down += 0 if upwards else size
            over = (self.up_limit is not None and self.up > self.up_limit) or (
                self.down_limit is not None and self.down > self.down_limit
            )
            first, self.dead = over and not self.dead, self.dead or over
            return first

    def _cut(self) -> None:
        with self._lock:
            held, self._open = self._open, []
        for one in held:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Proxy(target, listener.getsockname()[1])
        threading.Thread(target=made.serve, args=(listener,), daemon=True).start()
        yield made
