"""Who runs Debian's own programs, apt and mmdebstrap: this host, or a container where the host lacks them.

Most hosts are no Debian. What they have they run themselves, what they lack is borrowed from a Debian image
(borrowed.py): the same programs, with the keys that the image has.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Protocol

from strix_finetune import children, debian
from strix_finetune.debian import DefaultSource
from strix_finetune.errors import InputError

if TYPE_CHECKING:
    from strix_finetune.netconf import NetSettings

Done = subprocess.CompletedProcess[str]
Say = Callable[[str], None]


class Runner(Protocol):
    """Runs a program. `env` is added to what the program has anyway; `shared`: the folders that it may see."""

    @property
    def mode(self) -> str:
        """mmdebstrap's mode where it runs."""

    def mmdebstrap(self) -> str:
        """The program."""

    def keyring(self) -> str:
        """Where the public keys of Debian's archive are, as the programs see it."""

    def default_sources(self, suite: str) -> tuple[DefaultSource, ...]:
        """See `debian.default_sources`."""

    def work(self, preferred: Path) -> AbstractContextManager[Path | None]:
        """A folder for mmdebstrap to work in; None where it has room of its own."""

    def run(
        self, command: Sequence[str], env: Mapping[str, str], *, shared: Sequence[Path], cwd: Path | None = None
    ) -> Done:
        """Run to the end, with the rights of the user."""

    def stream(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        on_line: Say,
        *,
        shared: Sequence[Path],
        made: Path | None = None,
        as_root: bool = False,
    ) -> int:
        """Run to the end, telling each line of its output; returns the exit code.

        `as_root`: mmdebstrap makes a root file system, with root's rights where it can have them. `made`: a file that
        it writes, and that shall be the user's.
        """


class Host:
    """This host's own programs."""

    @property
    def mode(self) -> str:
        return debian.mode()

    def mmdebstrap(self) -> str:
        return debian.mmdebstrap()

    def keyring(self) -> str:
        return str(debian.keyring())

    def default_sources(self, suite: str) -> tuple[DefaultSource, ...]:
        return debian.default_sources(suite, self)

    def work(self, preferred: Path) -> AbstractContextManager[Path | None]:
        return debian.work_folder(preferred)

    def run(
        self, command: Sequence[str], env: Mapping[str, str], *, shared: Sequence[Path], cwd: Path | None = None
    ) -> Done:
        whole = debian.environment() | dict(env)
        try:
            return subprocess.run(command, capture_output=True, text=True, env=whole, errors="replace", cwd=cwd)
        except FileNotFoundError:
            raise InputError(f"this host has no {command[0]}", cure="install apt") from None

    def stream(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        on_line: Say,
        *,
        shared: Sequence[Path],
        made: Path | None = None,
        as_root: bool = False,
    ) -> int:
        whole = debian.environment() | dict(env)
        contained = as_root and debian.mode() == "root"
        with children.child(command, env=whole, contained=contained) as process:
            for line in process.stdout or ():
                on_line(line.rstrip("\n"))
        return process.returncode


@dataclass(frozen=True, slots=True)
class Programs:
    """Who runs which."""

    apt: Runner
    mmdebstrap: Runner

    def mirror(self, configured: str) -> str:
        """The mirror to use: the host's own where it has one, else Debian's default."""
        return configured or self.mmdebstrap.default_sources("sid")[0].url


HOST = Programs(Host(), Host())


def of(settings: NetSettings) -> Programs:
    return settings.programs or HOST


def choose(borrow: Callable[[], Runner]) -> Programs:
    """The host's programs, and those of `borrow()` for what it lacks."""
    keys = debian.has_keyring()
    apt = all(which(program) for program in ("apt-get", "apt-cache")) and keys
    mmdebstrap = bool(which("mmdebstrap")) and apt
    if apt and mmdebstrap:
        return HOST
    borrowed = borrow()
    return Programs(Host() if apt else borrowed, Host() if mmdebstrap else borrowed)
