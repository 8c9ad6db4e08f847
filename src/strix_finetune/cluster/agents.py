"""A container on each node, in which the agent answers: started together, asked side by side, gone at the end.

The agent's own files are laid into the container, so that it understands this driver whatever the age of the image.
Its input ends when the driver does, however that ends; then it ends, and the engine over there removes it.
"""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from strix_finetune.caught import caught
from strix_finetune.cluster.agentfile import program
from strix_finetune.cluster.reach import Reached
from strix_finetune.engine.base import RunRequest
from strix_finetune.errors import EngineError, Problem, StrixError, WorkError

if TYPE_CHECKING:
    from strix_finetune.engine.client import SdkEngine
    from strix_finetune.engine.tty import Link

LABEL = "io.strix-finetune.cluster"
_INSIDE = "/strix-agent.pyz"
_START_SECONDS = 30.0
# for the way there and back, on top of what a command may take
_SLACK_SECONDS = 4.0


class AgentLost(WorkError):
    """The agent of a node did not start, or does not answer any more."""


class AgentRefused(WorkError):
    """The agent answered, and could not do what was asked."""


class Agent:
    """The agent on one node. Any thread may ask."""

    def __init__(self, reached: Reached, link: Link) -> None:
        self.reached = reached
        self._link = link
        self._numbers = itertools.count(1)
        self._ready: Future[Any] = Future()
        self._asked: dict[int, Future[Any]] = {0: self._ready}
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._line = b""
        self._errors = b""
        self._ended = False

    @property
    def name(self) -> str:
        return self.reached.node.name

    def ask(self, do: str, seconds: float, **words: Any) -> Future[Any]:
        """Begin `do`, which may take `seconds`; the answer comes into the future."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        with self._lock:
            self._asked[number] = future
            ended = self._ended
        if ended:
            self._fail()
            return future
        line = json.dumps({"id": number, "do": do, "seconds": seconds, **words}).encode() + b"\n"
        with self._sending, suppress(OSError):
            self._link.write(line)
        return future

    def get(self, do: str, seconds: float, **words: Any) -> Any:
        """The answer to `do`. Raises AgentLost or AgentRefused."""
        return self.wait(self.ask(do, seconds, **words), do, seconds)

    def wait(self, future: Future[Any], do: str, seconds: float) -> Any:
        """The answer that a future of `ask` holds, as `get` gives it."""
        try:
            return future.result(seconds + _SLACK_SECONDS)
        except TimeoutError:
            node = self.reached.node
            message = f"node {node.name}: the agent did not answer '{do}' within {seconds + _SLACK_SECONDS:g} s"
            raise AgentLost(Problem(message, node.place, "see what keeps that machine busy")) from None

    def ready(self, seconds: float) -> None:
        """Wait until the agent has begun."""
        self.wait(self._ready, "start", seconds)

    def follow(self) -> None:
        """Read what the agent says, to its end."""
        from strix_finetune.engine.running import FrameReader

        with suppress(OSError, ValueError):
            self._link.drain(FrameReader(self._said, self._complained).feed, None)
        with self._lock:
            self._ended = True
        self._fail()

    def _said(self, data: bytes) -> None:
        self._line += data
        while b"\n" in self._line:
            line, _, self._line = self._line.partition(b"\n")
            with suppress(ValueError):
                self._answered(json.loads(line))

    def _answered(self, answer: dict[str, Any]) -> None:
        with self._lock:
            future = self._asked.pop(answer.get("id") or 0, None)
        if future is None:
            return
        if "error" in answer:
            node = self.reached.node
            future.set_exception(AgentRefused(Problem(f"node {node.name}: {answer['error']}", node.place)))
        else:
            future.set_result(answer.get("value"))

    def _complained(self, data: bytes) -> None:
        self._errors = (self._errors + data)[-4000:]

    def _fail(self) -> None:
        """Nothing more comes: whoever waits is told why."""
        node = self.reached.node
        words = self._errors.decode("utf-8", "replace").strip().splitlines()
        why = f" ({words[-1][:200]})" if words else ""
        with self._lock:
            left = list(self._asked.values())
            self._asked.clear()
        for future in left:
            with suppress(InvalidStateError):
                message = f"node {node.name}: the agent's container ended{why}"
                future.set_exception(AgentLost(Problem(message, node.place, "see the engine's log there")))


@contextmanager
def agents(nodes: Sequence[tuple[Reached, str]], *, rdma: bool = False) -> Iterator[list[Agent | StrixError]]:
    """An agent for each (node, image), in that order, or why it has none. The containers are gone afterwards.

    With `rdma` the containers get the adapters and may lock memory, as training would.
    """
    starting = _Starting()
    try:
        with ThreadPoolExecutor(max_workers=max(1, len(nodes)), thread_name_prefix="agent") as pool:
            try:
                found = list(pool.map(lambda item: starting.start(*item, rdma=rdma), nodes))
            except BaseException:
                starting.end()  # the threads wait for containers that this removes
                raise
        yield found
    finally:
        # a second Ctrl-C does not keep containers from being removed, which is over in moments
        with caught((signal.SIGINT, signal.SIGTERM), signal.SIG_IGN):
            starting.end()


class _Starting:
    """Containers that were begun, from whatever thread, so that one call ends them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._ended = False

    def start(self, reached: Reached, image: str, *, rdma: bool) -> Agent | StrixError:
        try:
            return self._start(reached, image, rdma)
        except StrixError as error:
            return error

    def _start(self, reached: Reached, image: str, rdma: bool) -> Agent:
        from strix_finetune.engine import running, tty
        from strix_finetune.engine.drivers import PID_LABEL
        from strix_finetune.engine.failures import engine_errors

        engine: SdkEngine = reached.engine  # type: ignore[assignment]  # the one implementation that is connected
        api, info = engine.api, engine.info
        name = f"strix-finetune-agent-{uuid.uuid4().hex}"
        opened: list[Any] = []

        def end() -> None:
            for attached in opened:
                with suppress(Exception):
                    attached.__exit__(None, None, None)
            with suppress(Exception):
                running.remove(api, name, info)

        with self._lock:
            if self._ended:
                raise AgentLost(Problem(f"node {reached.node.name}: the check was ended"))
            # before it exists: a creation that is interrupted is undone as well
            self._ends.append(end)
        # what an engine that ended with a killed driver could not remove any more
        with suppress(StrixError):
            reached.engine.reap(PID_LABEL)
        request = _request(reached, image, rdma)
        doing = f"start the agent on node {reached.node.name}"
        # the limits that are there are that machine's, not ours
        locks = limits(reached) if request.memlock is not None else []
        with engine_errors(doing, info.url):
            running.create(
                api, request, name, info, doing, init=None, labels={LABEL: "agent"}, limits=locks, passing=True
            )
            api.put_archive(name, "/", running.archive({_INSIDE: program()}))
            attached = tty.attached(api, name, {"stdout": 1, "stderr": 1, "stream": 1, "stdin": 1})
            link = attached.__enter__()
            opened.append(attached)
            api.start(name)
        agent = Agent(reached, link)
        threading.Thread(target=agent.follow, daemon=True, name=f"agent {reached.node.name}").start()
        agent.ready(_START_SECONDS)
        return agent

    def end(self) -> None:
        """Remove all containers, at the same time."""
        with self._lock:
            self._ended = True
            ends, self._ends = self._ends, []
        threads = [threading.Thread(target=end) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _request(reached: Reached, image: str, rdma: bool) -> RunRequest:
    """The agent's container: the host's network, and what training would have of GPUs and adapters."""
    over, info = reached.over, reached.engine.info
    devices = tuple(
        device for device in (over.devices if over else ()) if rdma or not device.path.startswith("/dev/infiniband/")
    )
    groups = tuple(sorted({str(device.group) for device in devices if device.group and not device.open_to_all}))
    if groups and info.kind == "podman" and info.rootless:
        groups = ("keep-groups",) if info.runtime in ("", "crun") else ()
    # a rootless engine cannot give more than its user has, and would start nothing where it is asked to
    locks = rdma and (not info.rootless or over is None or over.limits[2] < 0)
    return RunRequest(
        image=image,
        command=("python3", _INSIDE),
        env={"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        devices=tuple(device.path for device in devices),
        group_add=groups,
        user="" if info.rootless or over is None else f"{over.uid}:{over.gid}",
        keep_id=info.kind == "podman" and info.rootless,
        network="host",
        # RCCL and gloo may use it
        shm_size=1 << 30,
        memlock=-1 if locks else None,
        unconfined=bool(devices) and over is not None and over.selinux,
        interactive=True,
    )


def limits(reached: Reached) -> list[dict[str, Any]]:
    """Locked memory without a limit; of the others what that user may have, since Podman would raise them."""
    files, processes, _ = reached.over.limits if reached.over else (-1, -1, -1)
    limits = {"memlock": 2**64 - 1, "nofile": files if files >= 0 else 1 << 20}
    limits["nproc"] = processes if processes >= 0 else 1 << 15
    return [{"type": name, "soft": limit, "hard": limit} for name, limit in limits.items()]


def clock_offset(agent: Agent, tries: int = 3) -> tuple[float, float]:
    """By how many seconds that node's clock is ahead of ours, and how exact that is: half of the fastest way."""
    best: tuple[float, float] | None = None
    for _ in range(tries):
        begin, monotonic = time.time(), time.monotonic()
        there = agent.get("clock", 3)["unix_seconds"]
        took = time.monotonic() - monotonic
        if best is None or took / 2 < best[1]:
            best = (there - begin - took / 2, took / 2)
    if best is None:
        raise EngineError(Problem(f"node {agent.name}: its clock was not asked"))
    return best
