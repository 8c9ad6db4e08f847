"""Which .deb files a build step installs: asked of apt itself, on the packages that are installed by then.

Another version of apt may choose other dependencies, so the image's own apt is asked: its program and libraries are
taken out of the root file system and run here, without root, on a private state. Nothing is installed.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strix_finetune import debian
from strix_finetune.errors import LockError, WorkError
from strix_finetune.netconf import redact
from strix_finetune.resolve.apt import State
from strix_finetune.vendor.steps import Install

STATUS = "var/lib/dpkg/status"
EXTENDED = "var/lib/apt/extended_states"
_LOADER = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_PROGRAM = "usr/bin/apt-get"
_INST = re.compile(r"^Inst (\S+)(?: \[[^\]]*\])? \((\S+) .*\[(\w+)\]\)", re.M)
_REMV = re.compile(r"^Remv (\S+)", re.M)
# what the archive says of the file, and dpkg does not keep
_OF_THE_FILE = ("Filename", "Size", "MD5sum", "SHA1", "SHA256", "SHA512", "Description-md5")


@dataclass(frozen=True, slots=True)
class Deb:
    """One .deb of the archive: `path` below the mirror's root, size in bytes."""

    name: str
    version: str
    architecture: str
    path: str
    size: int
    sha256: str
    stanza: str = field(repr=False, compare=False, default="")


@dataclass(frozen=True, slots=True)
class Installed:
    """What dpkg and apt know to be installed: package → stanza of dpkg's status; `extended` is apt's own file."""

    stanzas: Mapping[str, str] = field(default_factory=dict)
    extended: str = ""

    @property
    def versions(self) -> list[tuple[str, str, str]]:
        """(name, version, architecture) of each."""
        return [_identity(stanza) for stanza in self.stanzas.values()]

    def status(self) -> str:
        return "".join(f"{stanza}\n\n" for stanza in self.stanzas.values())

    def with_local(self, control: str) -> Installed:
        """With a package that a step makes and installs itself."""
        stanza = _field("Status", "install ok installed") + control.strip()
        return Installed({**self.stanzas, _identity(stanza)[0]: stanza}, self.extended)

    def after(self, debs: Sequence[Deb], removed: Collection[str], named: Collection[str]) -> Installed:
        """With `debs` installed; those that were not `named` are noted as dependencies."""
        stanzas = {name: stanza for name, stanza in self.stanzas.items() if name not in removed}
        extended = self.extended.rstrip("\n") + "\n\n" if self.extended.strip() else ""
        for deb in debs:
            stanzas[deb.name] = _field("Status", "install ok installed") + _without(deb.stanza, _OF_THE_FILE)
            if deb.name not in named and deb.name not in self.stanzas:
                architecture = debian.ARCHITECTURE if deb.architecture == "all" else deb.architecture
                extended += f"Package: {deb.name}\nArchitecture: {architecture}\nAuto-Installed: 1\n\n"
        return Installed(stanzas, extended)


def read_root(tar: Path, work: Path) -> tuple[Installed, tuple[str, ...]]:
    """What is installed in a root file system, and the command of its own apt-get, unpacked into `work` (50 MB)."""
    kept = {STATUS: "", EXTENDED: ""}
    with tarfile.open(tar, "r|") as stream:
        for member in stream:
            name = member.name.removeprefix("./")
            if name in kept:
                content = stream.extractfile(member)
                kept[name] = content.read().decode("utf-8", "replace") if content else ""
            elif name == _PROGRAM or (name.startswith(f"{_LIBRARIES}/") and ".so" in name and name.count("/") == 3):
                _unpack(stream, member, work / name)
    command: tuple[str, ...] = (str(work / _LOADER), "--library-path", str(work / _LIBRARIES), str(work / _PROGRAM))
    if not (work / _LOADER).is_file() or not (work / _PROGRAM).is_file():
        command = ("apt-get",)
    return installed(kept[STATUS], kept[EXTENDED]), command


def installed(status: str, extended: str) -> Installed:
    """What the files of dpkg and apt say."""
    return Installed(dict(_stanzas(status)), extended)


class Solver:
    """Asks `program` (an apt-get, see `read_root`) what it would install. `state` has been updated; `work` is ours."""

    def __init__(self, state: State, program: Sequence[str], work: Path) -> None:
        self._state, self._program, self._work = state, tuple(program), work
        (work / "archives/partial").mkdir(parents=True, exist_ok=True)

    def install(self, before: Installed, step: Install) -> tuple[Installed, tuple[Deb, ...]]:
        """What is installed after the step, and the .deb files that it needs.

        Raises LockError when the archive no longer serves a locked version, WorkError when apt finds no way.
        """
        for control in step.local:
            before = before.with_local(control)
        status, extended = self._work / "status", self._work / "extended_states"
        status.write_text(before.status(), "utf-8")
        extended.write_text(before.extended, "utf-8")
        options = {
            "Dir::State::status": status,
            "Dir::State::extended_states": extended,
            "Dir::Cache::pkgcache": self._work / "pkgcache.bin",
            "Dir::Cache::srcpkgcache": self._work / "srcpkgcache.bin",
            "Dir::Cache::archives": self._work / "archives",
        }
        done = self._state.run(
            *self._program,
            *(word for name, value in options.items() for word in ("-o", f"{name}={value}")),
            *("-q", "--simulate", "--no-install-recommends", "install", *step.packages),
        )
        if done.returncode != 0:
            raise _refused(done, step)
        debs = self.debs(_INST.findall(done.stdout))
        named = {package.partition("=")[0] for package in step.packages}
        return before.after(debs, _REMV.findall(done.stdout), named), debs

    def debs(self, wanted: Sequence[tuple[str, str, str]]) -> tuple[Deb, ...]:
        """Where the archive has each (name, version, architecture). Raises LockError for what it does not serve."""
        served = self.served(wanted)
        lacking = [f"{name} {version}" for name, version, _ in wanted if (name, version) not in served]
        if lacking:
            raise LockError(
                f"the archive no longer serves {', '.join(lacking[:3])}",
                cure="run 'strix-finetune lock', then try again",
            )
        return tuple(served[name, version] for name, version, _ in wanted)

    def served(self, wanted: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str], Deb]:
        """Those of the wanted that the archive has, by name and version."""
        if not wanted:
            return {}
        told = self._state.run("apt-cache", "show", *(f"{name}={version}" for name, version, _ in wanted)).stdout
        found: dict[tuple[str, str], Deb] = {}
        for stanza in told.split("\n\n"):
            fields = dict(re.findall(r"^([\w-]+): *(.*)$", stanza, re.M))
            if fields.keys() >= {"Package", "Version", "Architecture", "Filename", "Size", "SHA256"}:
                name, version, architecture = _identity(stanza)
                size, sha256 = int(fields["Size"]), fields["SHA256"]
                deb = Deb(name, version, architecture, fields["Filename"], size, sha256, stanza.strip("\n"))
                found.setdefault((name, version), deb)
        return found


def _refused(done: subprocess.CompletedProcess[str], step: Install) -> LockError | WorkError:
    text = redact(done.stderr)
    if match := re.search(r"Version '([^']+)' for '([^']+)' was not found", text):
        return LockError(
            f"the archive no longer serves {match[2]} {match[1]}", cure="run 'strix-finetune lock', then try again"
        )
    first = next((line for line in text.splitlines() if line.startswith("E: ")), text.strip()[:200])
    names = " ".join(step.packages[:3]) + (" …" if len(step.packages) > 3 else "")
    return WorkError(f"apt finds no way to install {names} ({first.removeprefix('E: ').rstrip('.')})")


def _stanzas(status: str) -> Iterator[tuple[str, str]]:
    for stanza in status.split("\n\n"):
        if stanza.strip():
            yield _identity(stanza)[0], stanza.strip("\n")


def _identity(stanza: str) -> tuple[str, str, str]:
    fields = dict(re.findall(r"^(Package|Version|Architecture): *(\S+)", stanza, re.M))
    return fields.get("Package", ""), fields.get("Version", ""), fields.get("Architecture", "")


def _field(name: str, value: str) -> str:
    return f"{name}: {value}\n"


def _without(stanza: str, names: Collection[str]) -> str:
    """The stanza without some of its fields, each of which is one line."""
    return "\n".join(line for line in stanza.splitlines() if line.partition(":")[0] not in names)


def _unpack(stream: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """One program or library; a link may only lead to a sister file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym() and "/" not in member.linkname:
        target.symlink_to(member.linkname)
    elif member.isreg() and (content := stream.extractfile(member)):
        with target.open("wb") as out:
            while piece := content.read(1 << 20):
                out.write(piece)
        target.chmod(0o755)
