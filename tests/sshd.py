"""A real sshd of a test's own on a free port, with its own keys, and an `ssh` on the PATH that knows it.

A machine has one sshd for all of its users; this one is for the user who runs the tests, root or not.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Sshd:
    """`folder` holds all of it. `hosts`: name → port of what `ssh name` reaches. `known`: the file of host keys."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    hosts: dict[str, int] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    client: dict[str, str] = field(default_factory=dict)

    @property
    def known(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def path(self) -> Path:
        """A folder whose `ssh` reads the configuration of this test instead of the user's."""
        return self.folder / "bin"

    def env(self, **more: str) -> dict[str, str]:
        """An environment in which `ssh` is that one."""
        return {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}", **more}

    def prepare(self) -> None:
        program = shutil.which("ssh")
        assert program, "there is no ssh; install it (Debian: apt install openssh-client)"
        self.path.mkdir(parents=True)
        for name in ("host", "user"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(self.folder / name)]
            subprocess.run(command, check=True)
        (self.folder / "authorized").write_text((self.folder / "user.pub").read_text())
        (self.folder / "authorized").chmod(0o600)
        script = self.path / "ssh"
        script.write_text(f'#!/bin/sh\nexec {program} -F {self.folder}/config "$@"\n')
        script.chmod(0o755)

    def start(self) -> None:
        """Start it, and write what the client needs to know."""
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert program, "there is no sshd; install it (Debian: apt install openssh-server)"
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        settings = {
            "Port": str(self.port),
            "ListenAddress": "127.0.0.1",
            "HostKey": str(self.folder / "host"),
            "AuthorizedKeysFile": str(self.folder / "authorized"),
            "PidFile": "none",
            "UsePAM": "no",
            "StrictModes": "no",
            "PasswordAuthentication": "no",
            "PermitRootLogin": "yes",
            "PerSourcePenalties": "no",
            **self.settings,
        }
        if b"PerSourcePenalties" not in Path(program).resolve().read_bytes():
            del settings["PerSourcePenalties"]
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        with (self.folder / "sshd.log").open("wb") as log:
            self.process = subprocess.Popen([program, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
            time.sleep(0.02)
        self.trust(self.folder / "host.pub")
        self.configure()

    def trust(self, key: Path) -> None:
        """Make `key` the one that is known of this host."""
        words = key.read_text().split()[:2]
        self.known.write_text(f"[127.0.0.1]:{self.port} {' '.join(words)}\n")

    def configure(self) -> None:
        """Write the client's configuration."""
        hosts = {"node": self.port, **self.hosts}
        text = "".join(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n" for name, port in hosts.items())
        options = {
            "User": getpass.getuser(),
            "IdentityFile": str(self.folder / "user"),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.known),
            "GlobalKnownHostsFile": "none",
            **self.client,
        }
        text += "Host *\n" + "".join(f"  {key} {value}\n" for key, value in options.items())
        (self.folder / "config").write_text(text)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None


@contextmanager
def serving(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Sshd]:
    """An sshd that runs while the block does; `settings` are added to its configuration."""
    made = Sshd(folder, settings=dict(settings or {}))
    made.prepare()
    made.start()
    try:
        yield made
    finally:
        made.stop()
