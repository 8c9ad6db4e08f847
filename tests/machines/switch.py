"""A network switch on the desk: a bridge in a network namespace of its own, which nothing of this host is in."""

from __future__ import annotations

import subprocess


class Switch:
    """Machines are plugged into it. It is gone when this process is, or when it is closed."""

    def __init__(self) -> None:
        # `cat` ends with the pipe that only we can write to
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._holder.stdout
        assert self._holder.stdout.readline() == b"ready\n"
        self._ip("link", "add", "switch", "type", "bridge")
        self._ip("link", "set", "switch", "up")

    def plug_in(self, name: str, pid: int, interface: str, hardware: str) -> None:
        """A cable from a port of this switch to an interface of the machine whose process 1 is `pid`.

        `hardware`: its address, which is the same after each start: the others remember it for a minute.
        """
        # of a machine whose plug was pulled the kernel may not have taken it away yet
        self._ip("link", "delete", name, check=False)
        end = ("name", interface, "address", hardware, "netns", str(pid))
        self._ip("link", "add", name, "type", "veth", "peer", *end)
        self._ip("link", "set", name, "master", "switch", "up")

    def unplug(self, name: str) -> None:
        self._ip("link", "set", name, "down")

    def plug_back(self, name: str) -> None:
        self._ip("link", "set", name, "up")

    def slow(self, name: str, rate: str) -> None:
        """What the machine of that name receives comes no faster than `rate` ("100mbit")."""
        self._run(
            "tc", "qdisc", "replace", "dev", name, "root", "tbf", "rate", rate, "burst", "256k", "latency", "50ms"
        )

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        for stream in (self._holder.stdin, self._holder.stdout):
            assert stream
            stream.close()

    def _ip(self, *words: str, check: bool = True) -> None:
        self._run("ip", *words, check=check)

    def _run(self, *command: str, check: bool = True) -> None:
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", *command], capture_output=True, text=True
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
