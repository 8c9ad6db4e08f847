"""One connection to a machine by the system's OpenSSH client, through which everything else goes.

The client is a ControlMaster whose session is a shell that reads what to do from us. When this process ends, however
it does, that shell reads the end of its input, its traps clean up over there, and the connection is gone.
The user's own configuration says how host keys are checked; nobody is asked for anything.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from strix_finetune.cluster import sshfaults
from strix_finetune.cluster.nodes import Node
from strix_finetune.errors import Problem, WorkError

CONNECT_SECONDS = 10
# forwardings of the user's configuration are not what this connection is for, nor its clients, which would ask for
# them again
_PLAIN = ("-o", "ClearAllForwardings=yes")
# a connection that is cut says nothing: after 3 × 5 s without an answer it counts as gone
_OPTIONS = (
    *("-T", "-a", "-x"),
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectionAttempts=1"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "ControlPersist=no"),
    *("-o", "LogLevel=INFO"),
    *("-o", "RequestTTY=no"),
    *("-o", "RemoteCommand=none"),
    *_PLAIN,
    *("-o", "ControlMaster=yes"),
)
_MARK = "strix-done"
_PATIENCE = 3.0
_END_SECONDS = 8.0


class WayLost(WorkError):
    """A node cannot be reached, or not any more."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command over there ended, and what it printed."""

    code: int
    out: str
    err: str


class SshLink:
    """A connection to one node; `folder` is private and holds its control socket. Raises WayLost with one sentence."""

    def __init__(self, node: Node, folder: Path, env: Mapping[str, str]) -> None:
        self._node = node
        self._env = dict(env)
        self._program = shutil.which("ssh", path=env.get("PATH", os.defpath)) or ""
        if not self._program:
            raise WayLost(Problem("there is no ssh on this machine", node.place, "install it (Debian: openssh-client)"))
        self._control = folder / f"{node.rank}.ctl"
        self._log = folder / f"{node.rank}.log"
        self._rest = b""
        self._asking = threading.Lock()
        self._at_end = ""
        with self._log.open("wb") as log:
            self._master = subprocess.Popen(
                [
                    self._program,
                    *_OPTIONS,
                    "-o",
                    f"ConnectTimeout={CONNECT_SECONDS}",
                    "-S",
                    str(self._control),
                    node.ssh,
                    "sh -s",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                start_new_session=True,  # Ctrl-C is for us: what runs over there is ended in order
            )

    def open(self) -> None:
        """Wait until the machine has let us in."""
        self.ask(":", CONNECT_SECONDS + 5)

    def ask(self, script: str, seconds: float) -> list[str]:
        """Have the shell over there run `script` (which must not read its input); the lines that it prints."""
        with self._asking:
            return self._ask(script, seconds)

    def at_end(self, script: str) -> None:
        """What the shell over there runs before the connection is closed in order; its own traps see to the rest."""
        self._at_end = script

    def _ask(self, script: str, seconds: float) -> list[str]:
        assert self._master.stdin
        assert self._master.stdout
        try:
            # a shell reads its input in blocks, so the whole script is one command to it
            self._master.stdin.write(f"{{\n{script}\n}} </dev/null\nprintf '%s\\n' {_MARK}\n".encode())
            self._master.stdin.flush()
        except OSError:
            raise self._gone() from None
        until = time.monotonic() + seconds
        lines: list[str] = []
        descriptor = self._master.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                while b"\n" in self._rest:
                    line, _, self._rest = self._rest.partition(b"\n")
                    if line.decode("utf-8", "replace") == _MARK:
                        return lines
                    lines.append(line.decode("utf-8", "replace"))
                left = until - time.monotonic()
                if left <= 0:
                    raise WayLost(sshfaults.fault(self._node, "timed out"))
                if not selector.select(left):
                    continue
                data = os.read(descriptor, 65536)
                if not data:
                    raise self._gone()
                self._rest += data

    def forward(self, local: Path, remote: str) -> None:
        """Have `local`, a socket of ours, lead to `remote` over there: a socket's path, or host:port."""
        # it talks to the control socket alone; with the user's configuration it would ask for its forwardings as well
        words = ("-F", "none", "-O", "forward", "-L", f"{local}:{remote}", self._node.ssh)
        done = self._client(*words, seconds=CONNECT_SECONDS)
        if done.code:
            said = done.err.strip().splitlines() or [f"exit code {done.code}"]
            message = f"node {self._node.name}: ssh does not forward {remote} ({said[-1]})"
            cure = f"see what `ssh -L /tmp/socket:{remote} {self._node.ssh}` says"
            raise WayLost(Problem(message, self._node.place, cure))

    def run(self, command: Sequence[str], *, stdin: bytes = b"", seconds: float = 30) -> Ran:
        """Run a program over there, as that user, and wait for its end."""
        done = self._client(*_PLAIN, self._node.ssh, shlex.join(command), stdin=stdin, seconds=seconds)
        # ssh's own code; a program over there may end with it as well
        if done.code == 255 and self._master.poll() is not None:
            raise self._gone()
        return done

    def popen(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program over there, whose input and output are the caller's to stream."""
        return subprocess.Popen(
            [*self._words(), *_PLAIN, self._node.ssh, shlex.join(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._env,
            start_new_session=True,
        )

    def lost(self) -> str:
        """Why the connection is gone, as part of a sentence; empty while it stands."""
        with suppress(subprocess.TimeoutExpired):
            self._master.wait(_PATIENCE)
        if self._master.poll() is None:
            return ""
        return self._gone().problems[0].message.removeprefix(f"node {self._node.name}: ")

    def refusals(self) -> list[str]:
        """What ssh printed about channels that could not be opened."""
        return re.findall(r"open failed: (.*)", self._log.read_text("utf-8", "replace"))

    def close(self) -> None:
        """End the shell over there, and with it all that it began; may be called twice, and by another thread."""
        if self._at_end and self._asking.acquire(blocking=False):
            with suppress(WayLost):
                self._ask(self._at_end, _END_SECONDS)
            self._asking.release()
            self._at_end = ""
        with suppress(OSError):
            if self._master.stdin:
                self._master.stdin.close()
        # it would wait for programs over there that nobody waits for any more
        with suppress(ProcessLookupError):
            self._master.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._master.wait(_PATIENCE)
            return
        self._master.kill()
        self._master.wait()

    def _client(self, *words: str, stdin: bytes = b"", seconds: float) -> Ran:
        command = [*self._words(), *words]
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, env=self._env, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            message = f"node {self._node.name}: `{words[-1][:80]}` did not end within {seconds:g} s"
            raise WayLost(Problem(message, self._node.place, "see what keeps that machine busy")) from None
        return Ran(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    def _words(self) -> list[str]:
        """A client that goes by this connection."""
        options = ["-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ControlMaster=no", "-o", "RemoteCommand=none"]
        return [self._program, *options, "-S", str(self._control)]

    def _gone(self) -> WayLost:
        """Why the connection is not there, or no longer."""
        with suppress(subprocess.TimeoutExpired):
            self._master.wait(_PATIENCE)
        return WayLost(sshfaults.fault(self._node, self._log.read_text("utf-8", "replace")))
