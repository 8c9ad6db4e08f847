"""The processes of one run: they meet, agree, wait for one another, and end together.

Two ways of talking, neither of which needs a device: torch's store, where each leaves what the others want to know,
and the lifeline, on which faults and deaths are told. Collectives are for tensors alone.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from strix_train.distributed import agreement, places
from strix_train.distributed.lifeline import Fault, Head, Lifeline, Tail
from strix_train.distributed.seats import Seat
from strix_train.distributed.waiting import telling, write
from strix_train.errors import InputError, TrainError

# Seconds that the work has to end by itself once another process has told its fault; the longest between two looks.
_GRACE = 6.0
_LOOK = 0.5
# Seconds that process 0 waits at the end until the others have read what it left for them.
_PARTING = 10.0


class Disagreement(InputError):
    """All processes raise this one, each by itself, with the same sentence."""


class PeerFault(TrainError):
    """Another process has ended the run. `told`: a line of this was written already, or somebody else writes it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.exit_code = code


class Ranks:
    """This process among the others. Of one process alone, everything is trivial."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.last_words: Callable[[str], None] = lambda text: None
        self.leaving: list[Callable[[], None]] = []
        self._store: Any = None
        self._line: Lifeline | None = None
        self._hosts: list[str] = [""] * seat.world
        self._stderr = os.dup(2) if seat.world > 1 else -1
        self._counts: dict[str, int] = {}
        self._ended = False

    @property
    def rank(self) -> int:
        """The number of this process."""
        return self.seat.rank

    @property
    def world(self) -> int:
        """How many processes train together."""
        return self.seat.world

    def join(self) -> None:
        """Meet the others. Raises TrainError where they do not come, and where the port is taken."""
        if self.world == 1:
            return
        self._store = places.store(self.seat)
        if self.rank == 0:
            try:
                head = Head(self._hear, self.seat.ports)
            except OSError as error:
                raise TrainError(f"process 0 cannot listen: {error}", cure="free a port of STRIX_PORTS") from None
            self._line = head
            self._leave("head", {"addresses": places.addresses(self.seat), "port": head.port, "token": head.token})
        else:
            found = self._read("head", 0)
            try:
                self._line = Tail(
                    self.rank, found["addresses"], found["port"], found["token"], self._hear, min(60.0, self.seat.join)
                )
            except OSError as error:
                raise TrainError(
                    f"process {self.rank} cannot reach process 0: {error}",
                    cure="open the ports between the machines (STRIX_PORTS names those that may be used)",
                ) from None
        self._hosts = [str(each["host"]) for each in self.exchange("hosts", {"host": socket.gethostname()})]

    def exchange(self, topic: str, value: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what each process says to a topic, in their order. Raises TrainError where one says nothing.

        Process 0 is waited for as long as it lives: it alone asks, writes checkpoints and reads them before it comes.
        """
        if self.world == 1:
            return [value]
        name = self._numbered(topic)
        self._leave(f"{name}/{self.rank}", value)
        found = []
        for rank in range(self.world):
            # process 0 speaks for all; it alone may be busy for long
            why = "is it started?" if topic == "hosts" else f"it has not told its {topic} yet"
            waits = f"waits for process {rank} of {self.world}, for {self.seat.join:.0f} s at most; {why}"
            with telling(0, waits, self.seat.join, self._stderr) if self.rank == 0 and rank else nullcontext():
                found.append(self._read(f"{name}/{rank}", rank, patient=rank == 0))
        return found

    def agree(self, topic: str, facts: dict[str, Any]) -> None:
        """Compare facts. Raises Disagreement in every process where one has others than process 0."""
        if self.world == 1:
            return
        found = agreement.difference(self.exchange(topic, {"host": socket.gethostname(), **facts}))
        if found:
            raise Disagreement(found)

    def main_first(self, topic: str) -> None:
        """Let the others wait here until process 0 is here as well, however long it takes, without a collective."""
        if self.world == 1:
            return
        name = self._numbered(topic)
        if self.rank == 0:
            self._leave(name, {})
        else:
            self._read(name, 0, patient=True)

    def start(self, device: Any) -> None:
        """Make the process group: gloo for what lies in memory, NCCL or RCCL for what lies on a GPU."""
        if self.world > 1:
            places.group(self.seat, device, self._stderr)

    def check(self) -> None:
        """Raise PeerFault where another process has ended the run."""
        fault = self._line.fault if self._line else None
        if fault is not None and fault.rank != self.rank:
            raise self._peer(fault)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """What goes wrong inside because another process ended is told as that."""
        try:
            yield
        except (Disagreement, PeerFault):
            raise
        except (Exception, KeyboardInterrupt) as error:
            fault = self._soon(error)
            if fault is None:
                raise
            raise self._peer(fault) from error

    def close(self, error: BaseException | None = None) -> None:
        """Leave. With an error, the others are told it, and it is written down here before anybody ends us."""
        if self.world == 1 or self._ended:
            return
        self._ended = True
        for each in self.leaving:
            each()
        if error is not None:
            self._say(error)
            if self._line is not None and not isinstance(error, (Disagreement, PeerFault)):
                code = int(getattr(error, "exit_code", 130 if isinstance(error, KeyboardInterrupt) else 1))
                self._line.fail(" ".join(str(error).split())[:1000] or type(error).__name__, code)
        if error is None:
            self._part()
        if self._line is not None:
            if error is None or isinstance(error, (Disagreement, PeerFault)):
                self._line.close()
            elif self.rank:
                time.sleep(0.2)  # what was sent must leave before the connection does
        if error is None:
            places.leave()
        os.close(self._stderr)

    def _part(self) -> None:
        """Say that nothing more is read from the store; process 0, which holds it, waits a little for all others."""
        with suppress(RuntimeError):
            self._leave(f"left/{self.rank}", {})
            if self.rank or self.seat.agent:
                return
            names = [f"left/{rank}" for rank in range(1, self.world)]
            deadline = time.monotonic() + _PARTING
            while time.monotonic() < deadline and not (self._line and self._line.fault):
                if self._store.check(names):
                    return
                time.sleep(0.02)

    def _say(self, error: BaseException) -> None:
        """Write the sentence now: a launcher that sees one process end ends the others, in the middle of a word."""
        if isinstance(error, TrainError) and not error.told:
            error.told = True
            silent = isinstance(error, PeerFault) and self.rank and "process 0" not in str(error)
            for line in () if silent else str(error).splitlines():
                write(self.rank, line, self._stderr)

    def _peer(self, fault: Fault) -> PeerFault:
        host = self._hosts[fault.rank] if len(set(self._hosts)) > 1 else ""
        return PeerFault(agreement.sentence(fault, host), fault.code)

    def _soon(self, error: BaseException) -> Fault | None:
        """Return the fault of another process that may have caused an error, waiting for it to be told."""
        if self._line is None or (isinstance(error, TrainError) and not self._line.fault):
            return None
        text = str(error).lower()
        torn = isinstance(error, (KeyboardInterrupt, RuntimeError, OSError)) and (
            isinstance(error, KeyboardInterrupt) or any(word in text for word in _TORN)
        )
        deadline = time.monotonic() + ((1.0 if isinstance(error, KeyboardInterrupt) else 20.0) if torn else 0.0)
        while self._line.fault is None and time.monotonic() < deadline:
            time.sleep(0.05)
        fault = self._line.fault
        return fault if fault is not None and fault.rank != self.rank else None

    def _hear(self, fault: Fault) -> None:
        """Another process has ended: give the work a moment to notice, then end without it."""
        time.sleep(_GRACE)
        if self._ended:
            return
        error = self._peer(fault)
        self._say(error)
        with suppress(Exception):
            self.last_words(str(error))
        sys.stdout.flush()
        os._exit(error.exit_code)

    def _numbered(self, topic: str) -> str:
        """Return a name that no earlier exchange had."""
        self._counts[topic] = self._counts.get(topic, 0) + 1
        return f"{topic}-{self._counts[topic]}"

    def _leave(self, name: str, value: dict[str, Any]) -> None:
        self._store.set(name, json.dumps(value))

    def _read(self, name: str, rank: int, *, patient: bool = False) -> dict[str, Any]:
        """Return what process `rank` left under a name."""
        began = time.monotonic()
        while True:
            self.check()
            try:
                # asked and not waited for: torch writes warnings of every wait that ends
                if self._store.check([name]):
                    found: dict[str, Any] = json.loads(self._store.get(name))
                    return found
            except RuntimeError as error:
                self.check()
                why = " ".join(str(error).split())[:200]
                raise TrainError(
                    f"the store at {self.seat.address}:{self.seat.port} is gone: {why}",
                    cure="look at the machine of process 0",
                ) from error
            waited = time.monotonic() - began
            if not patient and waited > self.seat.join:
                raise TrainError(
                    f"process {rank} of {self.world} has not come within {self.seat.join:.0f} s",
                    cure="look at its machine; STRIX_DIST_TIMEOUT gives it more seconds",
                )
            time.sleep(min(_LOOK, 0.002 + waited / 20))


_TORN = (
    "connection",
    "peer",
    "socket",
    "nccl",
    "gloo",
    "remote process",
    "timed out",
    "timeout",
    "store",
    "broken pipe",
)


@contextmanager
def joined(seat: Seat) -> Iterator[Ranks]:
    """Meet the others for as long as this lasts; whatever goes wrong inside ends them all."""
    ranks = Ranks(seat)
    try:
        ranks.join()
        with ranks.explaining():
            yield ranks
    except BaseException as error:
        ranks.close(error)
        raise
    ranks.close()
