"""Reach the machines of a cluster: a way to run programs there, and their engines on sockets of ours.

All nodes are reached at the same time. What was opened is closed at the end of the `with` block, whatever ends it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune.cluster import addresses, remote
from strix_finetune.cluster.nodes import Cluster, Node
from strix_finetune.cluster.sshlink import Ran, SshLink, WayLost
from strix_finetune.engine.select import Address, connect, open_at
from strix_finetune.errors import EngineError, EngineUnavailable, Problem, WorkError

if TYPE_CHECKING:
    from strix_finetune.engine.base import Engine

_LOOK_SECONDS = 15
_START_SECONDS = 20


@dataclass(frozen=True)
class Reached:
    """A node and what there is of it. `node.address` is set. `over`: what that machine said of itself; None where only
    its engine is known."""

    node: Node
    engine: Engine
    over: remote.Over | None = None
    _link: SshLink | None = None

    @property
    def home(self) -> str:
        """The user's home over there; empty where nobody could say."""
        return self.over.home if self.over else ""

    def try_run(self, command: Sequence[str], *, stdin: bytes = b"", seconds: float = 30) -> Ran:
        """Run a program on that machine and wait for its end. Raises WayLost when that cannot be asked of it."""
        if self._link is not None:
            return self._link.run(command, stdin=stdin, seconds=seconds)
        if not self.node.local:
            message = f"node {self.node.name}: programs cannot be run there, since only its engine is known"
            raise WayLost(Problem(message, self.node.place, "give it 'ssh'"))
        try:
            done = subprocess.run(list(command), input=stdin, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            message = f"node {self.node.name}: `{command[0]}` did not end within {seconds:g} s"
            raise WayLost(Problem(message, self.node.place)) from None
        except OSError as error:
            return Ran(127, "", f"{command[0]}: {error.strerror}")
        return Ran(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    def lost(self) -> str:
        """Why its engine does not answer any more, as part of a sentence."""
        way = self._link.lost() if self._link is not None else ""
        return way or f"its engine at {self.engine.info.url} does not answer any more"

    def popen(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program on that machine; its input, output and errors are pipes, and the caller waits for its end."""
        if self._link is not None:
            return self._link.popen(command)
        self.try_run(["true"])
        return subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def run(self, command: Sequence[str], *, stdin: bytes = b"", seconds: float = 30) -> str:
        """What a program on that machine printed. Raises WorkError with its last words when it failed."""
        done = self.try_run(command, stdin=stdin, seconds=seconds)
        if done.code:
            words = (done.err or done.out).strip().splitlines() or [f"exit code {done.code}"]
            raise WorkError(
                Problem(f"node {self.node.name}: `{command[0]}` failed: {words[-1][:300]}", self.node.place)
            )
        return done.out


@dataclass(frozen=True)
class Unreached:
    """A node that could not be reached, and why."""

    node: Node
    error: WorkError


@contextmanager
def open_nodes(cluster: Cluster, env: Mapping[str, str]) -> Iterator[list[Reached]]:
    """All nodes, in the order of the file. Raises WorkError with a sentence for each that cannot be reached."""
    with try_nodes(cluster, env) as found:
        lost = [item for item in found if isinstance(item, Unreached)]
        if lost:
            raise WorkError([problem for item in lost for problem in item.error.problems])
        yield [item for item in found if isinstance(item, Reached)]


@contextmanager
def try_nodes(cluster: Cluster, env: Mapping[str, str]) -> Iterator[list[Reached | Unreached]]:
    """The same, with what went wrong as a value."""
    opened = _Opened(env)
    try:
        with ThreadPoolExecutor(max_workers=len(cluster.nodes), thread_name_prefix="reach") as pool:
            try:
                found = list(pool.map(opened.reach, cluster.nodes))
            except BaseException:
                opened.close()  # the threads wait for what this ends
                raise
        yield [_addressed(item, found) for item in found]
    finally:
        opened.close()


class _Opened:
    """All that was opened, from whatever thread, so that one call closes it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._lock = threading.Lock()
        self._links: list[SshLink] = []
        self._engines: list[Engine] = []
        self._closed = False
        base = env.get("XDG_RUNTIME_DIR", "")
        usable = base and len(base) < 50 and os.access(base, os.W_OK)
        # short: ssh adds to the name of its control socket, and 107 characters are all that a socket may have
        self._folder = Path(tempfile.mkdtemp(prefix="strix-cluster-", dir=base if usable else "/tmp"))

    def reach(self, node: Node) -> Reached | Unreached:
        try:
            return self._local(node) if not node.ssh else self._remote(node)
        except WorkError as error:
            return Unreached(node, error)

    def _local(self, node: Node) -> Reached:
        """This machine, or one of which only the engine is known."""
        if not node.url:
            return Reached(node, self._keep(connect(node.wanted, self._env)), _here(self._env))
        named = Address(node.url, f"'engine' of node {node.name}")
        if node.local:
            return Reached(node, self._keep(open_at(named, self._env)), _here(self._env))
        engine = self._keep(open_at(named, self._env, elsewhere=node.url))
        return Reached(replace(node, address=node.address or addresses.resolved(node.url)), engine)

    def _remote(self, node: Node) -> Reached:
        link = SshLink(node, self._folder, self._env)
        with self._lock:
            self._links.append(link)
            closed = self._closed
        if closed:
            link.close()
        link.open()
        over = remote.parse(link.ask(remote.LOOK, _LOOK_SECONDS))
        engine = self._engine(node, link, over)
        return Reached(replace(node, address=node.address or over.address), engine, over, link)

    def _engine(self, node: Node, link: SshLink, over: remote.Over) -> Engine:
        """The engine of a machine behind ssh: the one of cluster.toml, one that runs, or one that is started."""
        if node.url:
            return self._forwarded(node, link, node.url.partition("://")[2], 0)
        refusal: EngineError | None = None
        for number, path in enumerate(over.usable):
            # Podman's own sockets are among the others; a Docker at work would only make us wait
            if node.wanted == "podman" and "docker" in path:
                continue
            try:
                engine = self._forwarded(node, link, path, number)
            except EngineError as error:
                refusal = refusal or error
                continue
            if node.wanted in ("auto", engine.info.kind):
                return engine
        if over.podman and node.wanted != "docker":
            link.at_end(remote.END)
            path, why = remote.started(link.ask(remote.service(over), _START_SECONDS))
            if path:
                return self._forwarded(node, link, path, len(over.usable))
            message = f"node {node.name}: Podman does not start there: {why[:300]}"
            raise EngineUnavailable(
                Problem(message, node.place, f"run `podman info` on {node.ssh} to see what it lacks")
            )
        if over.denied:
            group, path = over.denied[0]
            message = f"node {node.name}: {over.user} may not use the container engine at {path}"
            cure = "use rootless Podman there"
            if group not in ("", "root", "nogroup", "UNKNOWN"):
                cure = f"`sudo usermod -aG {group} {over.user}` there, or {cure}"
            raise EngineUnavailable(Problem(message, node.place, cure))
        if refusal:
            raise refusal
        what = "container engine" if node.wanted == "auto" else node.wanted
        message = f"node {node.name}: there is no {what} on {node.ssh}"
        raise EngineUnavailable(Problem(message, node.place, "install or start it there, or give its 'engine'"))

    def _forwarded(self, node: Node, link: SshLink, remote_socket: str, number: int) -> Engine:
        local = self._folder / f"{node.rank}-{number}.sock"
        link.forward(local, remote_socket)
        shown = f"{remote_socket} on {node.name}"
        try:
            return self._keep(open_at(Address(f"unix://{local}", shown), {}, elsewhere=shown))
        except EngineUnavailable as error:
            message, cure = self._why_not(link, remote_socket, node.ssh)
            problem = Problem(f"node {node.name}: {message}", node.place, cure)
            raise EngineUnavailable(problem) from error

    def _why_not(self, link: SshLink, path: str, host: str) -> tuple[str, str]:
        """What is wrong with an engine that did not answer through ssh, and the cure."""
        refusals = " ".join(link.refusals())
        if "prohibited" in refusals:
            return f"sshd on {host} forwards no connections", "set AllowTcpForwarding to yes in its sshd_config"
        if not refusals:
            return f"what answers at {path} on {host} is not a container engine", "correct 'engine'"
        if not path.startswith("/"):
            return f"no container engine answers at {path} on {host}", "start it there, or correct 'engine'"
        if link.ask(f"[ -S {shlex.quote(path)} ] && echo there", _LOOK_SECONDS) != ["there"]:
            return f"there is no engine socket at {path} on {host}", "start the engine there, or correct 'engine'"
        # for ssh these are one fault
        return (
            f"no container engine answers at {path} on {host}, or sshd there forwards no sockets",
            "start the engine there, or set AllowStreamLocalForwarding to yes in its sshd_config",
        )

    def _keep(self, engine: Engine) -> Engine:
        with self._lock:
            self._engines.append(engine)
            closed = self._closed
        if closed:
            engine.close()
        return engine

    def close(self) -> None:
        """Engines first, since their connections go through the links; all links at the same time."""
        with self._lock:
            self._closed = True
            engines, self._engines = self._engines, []
            links, self._links = self._links, []
        for engine in engines:
            with suppress(WorkError):
                engine.close()
        threads = [threading.Thread(target=link.close) for link in links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)


def _here(env: Mapping[str, str]) -> remote.Over:
    """The same of this machine."""
    done = subprocess.run(
        ["sh", "-s"],
        input=remote.LOOK,
        text=True,
        capture_output=True,
        env=dict(env),
        timeout=_LOOK_SECONDS,
        check=False,
    )
    return remote.parse(done.stdout.splitlines())


def _addressed(item: Reached | Unreached, found: Sequence[Reached | Unreached]) -> Reached | Unreached:
    """This machine's address is the one by which it reaches the others, where cluster.toml does not say it."""
    if isinstance(item, Unreached) or item.node.address:
        return item
    others = [other.node.address for other in found if other is not item and other.node.address]
    address = next(filter(None, map(addresses.source, others)), "")
    if not address and len(found) == 1:
        address = "127.0.0.1"
    if not address:
        message = f"node {item.node.name}: no address is known by which the others reach it"
        return Unreached(item.node, WorkError(Problem(message, item.node.place, "give it 'address'")))
    return replace(item, node=replace(item.node, address=address))
