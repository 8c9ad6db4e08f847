"""What this host knows of Debian's archive by itself: the keys that it is verified with, and where it is.

No address is written down here. A host's own apt has its mirror (netconf); mmdebstrap has Debian's default.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune import leftovers
from strix_finetune.errors import InputError
from strix_finetune.netconf import Suites
from strix_finetune.schema import Apt

if TYPE_CHECKING:
    from strix_finetune.programs import Runner

ARCHITECTURE = "amd64"
_KEYRINGS = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
_numbers = itertools.count()
_LINE = re.compile(r"^deb (?:\[[^]]*\] )?(https?://\S+) (\S+) \S", re.M)


@dataclass(frozen=True, slots=True)
class DefaultSource:
    """One of Debian's own repositories: the URL that ends before /dists, and the suite."""

    url: str
    suite: str


def suites(apt: Apt) -> Suites:
    """The suites of a channel, the main one first, and its pins."""
    return Suites((apt.suite, *apt.extra_suites), tuple(apt.components), tuple(apt.pins))


def keyring(folder: Path = Path("/usr/share/keyrings")) -> Path:
    """The public keys of Debian's archive on this host. Raises InputError where they are missing."""
    for name in _KEYRINGS:
        if (folder / name).is_file():
            return folder / name
    raise InputError(
        f"this host has no keys to verify Debian's archive with: {folder / _KEYRINGS[0]} is missing",
        cure="install the package debian-archive-keyring",
    )


def has_keyring(folder: Path = Path("/usr/share/keyrings")) -> bool:
    return any((folder / name).is_file() for name in _KEYRINGS)


def mmdebstrap() -> str:
    """The program. Raises InputError where it is missing."""
    program = shutil.which("mmdebstrap")
    if program is None:
        raise InputError("this host has no mmdebstrap", cure="install the package mmdebstrap")
    return program


def mode() -> str:
    """mmdebstrap's mode for this user: root's own, or a user namespace."""
    return "root" if os.geteuid() == 0 else "unshare"


@contextlib.contextmanager
def work_folder(preferred: Path) -> Iterator[Path]:
    """Where mmdebstrap unpacks: in `preferred` for root, else where a user namespace can enter.

    /tmp may be small, and a file system mounted nodev is of no use to root's mode, which makes device nodes.
    """
    if mode() == "root" and not os.statvfs(preferred).f_flag & os.ST_NODEV:
        folder, rights = preferred, 0o711
    else:
        folder, rights = Path(tempfile.gettempdir()), 0o777 | stat.S_ISVTX
    leftovers.remove_leftovers(folder, remove_work)
    # one may be asked for while another is held
    with leftovers.temporary(folder, f"strix-mmdebstrap-{next(_numbers)}", "work", remove_work) as work:
        work.mkdir(0o700)
        work.chmod(rights)
        yield work


def remove_work(work: Path) -> None:
    """Remove a work folder. In a user namespace the files belong to users that only exist there."""
    leftovers.remove(work)
    if work.exists() and mode() == "unshare":
        for path in work.iterdir():
            helper = [mmdebstrap(), "--unshare-helper", "rm", "-rf", "--one-file-system", str(path)]
            subprocess.run(helper, capture_output=True, check=False)
        leftovers.remove(work)


def default_sources(suite: str, runner: Runner) -> tuple[DefaultSource, ...]:
    """Debian's own repositories for `suite`, as mmdebstrap would use them: the suite first, then its updates.

    Takes 0.3 s and asks nothing of the network: mmdebstrap writes its sources before the first hook runs, and
    this hook ends the run.
    """
    hook = '--setup-hook=cat "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*; exit 1'
    how = (f"--mode={runner.mode}", "--variant=custom", f"--architectures={ARCHITECTURE}", hook)
    told: list[str] = []
    with runner.work(Path(tempfile.gettempdir())) as work:
        command = [runner.mmdebstrap(), *how, suite, "/dev/null"]
        env = {"TMPDIR": str(work)} if work else {}
        runner.stream(command, env, told.append, shared=(), as_root=True)
    found = [DefaultSource(url.rstrip("/"), name) for url, name in _LINE.findall("\n".join(told))]
    if not found:
        raise InputError(
            f"mmdebstrap does not tell where Debian's suite '{suite}' is",
            cure="name a mirror in STRIX_DEBIAN_MIRROR",
        )
    return tuple(sorted(found, key=lambda source: source.suite != suite))


def default_sources_file(apt: Apt, runner: Runner) -> str:
    """The content of /etc/apt/sources.list.d/debian.sources in an image: Debian's own default, not this host's mirror.

    The keyring is named by the path that it has in every Debian.
    """
    by_url: dict[str, list[str]] = {}
    for source in runner.default_sources(apt.suite):
        by_url.setdefault(source.url, []).append(source.suite)
    return "\n".join(
        f"Types: deb\nURIs: {url}\nSuites: {' '.join(names)}\nComponents: {' '.join(apt.components)}\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        for url, names in by_url.items()
    )


def environment() -> dict[str, str]:
    """This process's environment for apt and mmdebstrap, in plain English and without a foreign apt configuration."""
    dropped = ("APT_CONFIG", "LANGUAGE")
    return {name: value for name, value in os.environ.items() if name not in dropped} | {"LC_ALL": "C.UTF-8"}
