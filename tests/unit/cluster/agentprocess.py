"""The agent as a real process of this machine, behind the stream of frames that an engine would make of it."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from strix_finetune.cluster.agentfile import program
from strix_finetune.cluster.agents import Agent
from strix_finetune.cluster.nodes import Node
from strix_finetune.cluster.reach import Reached
from strix_finetune.engine.tty import Link


@contextmanager
def agent(folder: Path, name: str, address: str, python: str = sys.executable) -> Iterator[Agent]:
    """An agent that answers as a node of that name would."""
    file = folder / f"{name}.pyz"
    file.write_bytes(program())
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [python, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    lock = threading.Lock()
    pumps = [
        threading.Thread(target=_frames, args=(process.stdout, theirs, 1, lock)),
        threading.Thread(target=_frames, args=(process.stderr, theirs, 2, lock)),
    ]
    threading.Thread(target=_feed, args=(theirs, process.stdin), daemon=True).start()
    for pump in pumps:
        pump.start()
    made = Agent(Reached(Node(name, 0, address=address), None), Link(ours))  # type: ignore[arg-type]
    follower = threading.Thread(target=made.follow)
    follower.start()
    try:
        made.ready(20)
        yield made
    finally:
        ours.shutdown(socket.SHUT_WR)
        process.wait(20)
        for pump in pumps:
            pump.join()
        theirs.close()
        follower.join()
        ours.close()
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):
                stream.close()


def _frames(stream: IO[bytes], to: socket.socket, number: int, lock: threading.Lock) -> None:
    while data := stream.read1(65536):  # type: ignore[attr-defined]
        with lock, suppress(OSError):
            to.sendall(struct.pack(">BxxxL", number, len(data)) + data)
    if number == 1:
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)


def _feed(source: socket.socket, stream: IO[bytes]) -> None:
    with suppress(OSError, ValueError):
        while data := source.recv(65536):
            stream.write(data)
            stream.flush()
        stream.close()
