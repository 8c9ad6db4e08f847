"""The toolbox and podman programs, with the environment that they need on this host."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_finetune.engine.failures import cure_of, one_line
from strix_finetune.engine.podman_conf import HostFacts, configuration
from strix_finetune.errors import InputError, Problem, WorkError

_BUS = "unix:path=/var/run/dbus/system_bus_socket"


@dataclass(frozen=True, slots=True)
class Programs:
    """Both programs and the variables for them. Every method raises WorkError with one sentence."""

    toolbox: str
    podman: str
    version: str
    env: Mapping[str, str]

    def toolbx(self, *words: str, doing: str) -> str:
        """Run `toolbox` without anybody to ask, and return what it printed."""
        return self._run((self.toolbox, "--assumeyes", *words), doing)

    def pod(self, *words: str, doing: str) -> str:
        return self._run((self.podman, *words), doing)

    def inspect(self, name: str) -> dict[str, Any] | None:
        """What Podman says of a container; None where there is none."""
        listed = self.pod("ps", "--all", "--format", "{{.Names}}", doing="list the containers").split()
        if name not in listed:
            return None
        found = json.loads(self.pod("container", "inspect", name, doing=f"inspect {name}"))
        assert isinstance(found[0], dict)
        return found[0]

    def remove(self, name: str) -> None:
        self.pod("rm", "--force", "--time", "0", name, doing=f"remove {name}")

    def _run(self, words: tuple[str, ...], doing: str) -> str:
        done = subprocess.run(
            words,
            env=dict(self.env),
            # a folder that every container has: Toolbx goes to the same one inside
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            words_said = one_line(said[-1]).removeprefix("Error: ") if said else f"exit code {done.returncode}"
            raise WorkError(Problem(f"could not {doing}: {words_said}", cure=cure_of(words_said)))
        return done.stdout


@contextmanager
def found(env: Mapping[str, str]) -> Iterator[Programs]:
    """Find both programs and check what Toolbx needs of the host. Raises InputError for what is missing."""
    path = env.get("PATH", os.defpath)
    toolbox, podman = shutil.which("toolbox", path=path), shutil.which("podman", path=path)
    if not toolbox:
        raise InputError(
            Problem("Toolbx is not installed", cure="install it (Debian: podman-toolbox, Fedora: toolbox)")
        )
    if not podman:
        raise InputError(Problem("Podman is not installed", cure="install it; Toolbx works with nothing else"))
    own = needed(env)
    check_bus(env)
    with tempfile.TemporaryDirectory(prefix="strix-toolbx-") as folder:
        conf = configuration(HostFacts.read(env), root=os.geteuid() == 0)
        if conf and not env.get("CONTAINERS_CONF"):
            (Path(folder) / "containers.conf").write_text(conf)
            own["CONTAINERS_CONF"] = str(Path(folder) / "containers.conf")
        said = subprocess.run([toolbox, "--version"], env=own, capture_output=True, text=True, check=False).stdout
        number = re.search(r"\d[\w.]*", said)
        yield Programs(
            toolbox, podman, number[0] if number else "of an unknown version", own | {"TOOLBOX_PATH": toolbox}
        )


def needed(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with what a login would have set: jobs of CI and `su` lack it, and Toolbx stops without it."""
    me = pwd.getpwuid(os.getuid())
    own = dict(env)
    own.setdefault("SHELL", me.pw_shell or "/bin/sh")
    own.setdefault("HOME", me.pw_dir)
    own.pop("CONTAINER_HOST", None)  # Toolbx needs the Podman of this machine
    if os.geteuid() and not own.get("XDG_RUNTIME_DIR"):
        usual = Path(f"/run/user/{os.getuid()}")
        if not usual.is_dir():
            raise InputError(
                Problem(
                    "XDG_RUNTIME_DIR is not set, and Toolbx needs that folder",
                    cure="log in as this user (su does not do it), or `loginctl enable-linger` it",
                )
            )
        own["XDG_RUNTIME_DIR"] = str(usual)
    return own


def check_bus(env: Mapping[str, str]) -> None:
    """Toolbx asks the system's D-Bus when it creates a container, and fails late and darkly without it."""
    address = env.get("DBUS_SYSTEM_BUS_ADDRESS") or _BUS
    path = re.match(r"unix:path=([^,;]+)", address)
    if path is None:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(path[1])
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            message = f"Toolbx needs the system's D-Bus, which does not answer at {path[1]}: {why}"
            raise InputError(Problem(message, cure="start it: systemctl start dbus")) from None
