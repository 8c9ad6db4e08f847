"""The files of a lock: written the same for the same lock, read back with every fault at its line.

Two kinds of file, side by side in images/locks/: `<channel>-<target>.toml`, and for every set of
Python requirements `<channel>-<target>.<set>.txt` in the hash-locked format that pip and uv install from.
They name files, versions, sizes and hashes; where Debian's archive and PyPI are is the host's business. Wheels of a
channel's own index are named with their addresses, because that index is part of the channel.

Only the standard library is imported: reading the lock is on the path of a build that has nothing to do.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from strix_finetune import toml_places
from strix_finetune.errors import LockError, Place, Problem
from strix_finetune.lockmodel import (
    AptLock,
    AptPackage,
    ArchiveLock,
    Lock,
    PipLock,
    Release,
    WheelLock,
    WheelSetLock,
    normalize,
    requirements,
)

FORMAT = 1
_CURE = "write it anew with 'strix-finetune lock'"


def file_name(channel: str, target: str) -> str:
    return f"{channel}-{target}.toml"


def text_name(channel: str, target: str, pip_set: str) -> str:
    return f"{channel}-{target}.{pip_set}.txt"


def write(lock: Lock) -> bytes:
    """The TOML file: the same bytes for the same lock, one entry a line, everything sorted by name."""
    lines = [
        "# Written by 'strix-finetune lock'; a change by hand is lost at the next one.",
        f"format = {FORMAT}",
        f"channel = {_text(lock.channel)}",
        f"target = {_text(lock.target)}",
        "",
        "[apt]",
        f"suite = {_text(lock.apt.suite)}",
        "",
        "[apt.releases]",
    ]
    for name, release in sorted(lock.apt.releases.items()):
        lines.append(f"{_key(name)} = {{ date = {_text(release.date)}, sha256 = {_text(release.sha256)} }}")
    lines += ["", "[apt.packages]"]
    for name, package in sorted(lock.apt.packages.items()):
        lines.append(
            f"{_key(name)} = {{ version = {_text(package.version)}, size = {package.size},"
            f" sha256 = {_text(package.sha256)} }}"
        )
    for name, pip in sorted(lock.pip.items()):
        lines += ["", f"[pip.{_key(name)}]", f"python = {_text(pip.python)}"]
        lines += [f"declared_sha256 = {_text(pip.declared)}", f"requirements_sha256 = {_text(pip.sha256)}"]
        lines += ["", f"[pip.{_key(name)}.packages]"]
        lines += [f"{_key(package)} = {_text(version)}" for package, version in sorted(pip.packages.items())]
    for name, wheels in sorted(lock.wheels.items()):
        lines += ["", f"[wheels.{_key(name)}]", f"index = {_text(wheels.index)}", f"python = {_text(wheels.python)}"]
        lines += [f"time = {_text(wheels.time)}", f"declared_sha256 = {_text(wheels.declared)}", "files = ["]
        lines += [f"  {_wheel_entry(wheel)}," for wheel in sorted(wheels.wheels, key=lambda wheel: wheel.name)]
        lines += ["]"]
    if lock.images:
        lines += ["", "[images]"]
        lines += [f"{_key(name)} = {_text(digest)}" for name, digest in sorted(lock.images.items())]
    for name, archive in sorted(lock.archives.items()):
        lines += ["", f"[archives.{_key(name)}]", f"url = {_text(archive.url)}"]
        lines += [f"sha256 = {_text(archive.sha256)}", f"size = {archive.size}"]
    if lock.accepted:
        lines += ["", "# known to be bad, and accepted all the same", "[accepted]"]
        lines += [f"{_key(name)} = {_text(day)}" for name, day in sorted(lock.accepted.items())]
    return ("\n".join(lines) + "\n").encode()


def _wheel_entry(wheel: WheelLock) -> str:
    """One file in one line; a size that nobody recorded is left out."""
    words = [f"name = {_text(wheel.name)}", f"version = {_text(wheel.version)}"]
    words += [f"size = {wheel.size}"] if wheel.size else []
    return f"{{ {', '.join([*words, f'sha256 = {_text(wheel.sha256)}', f'url = {_text(wheel.url)}'])} }}"


def files(lock: Lock) -> dict[str, bytes]:
    """Name → content of every file of the lock."""
    texts = {text_name(lock.channel, lock.target, name): pip.text.encode() for name, pip in lock.pip.items()}
    return {**texts, file_name(lock.channel, lock.target): write(lock)}


def save(lock: Lock, folder: Path) -> None:
    """Put the lock's files into `folder`, each whole or not at all, and remove texts of sets that are gone.

    The TOML file comes last: until it is there, the hashes in the old one refuse the new texts.
    """
    from strix_finetune import leftovers

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(lock.channel, lock.target)
    stale: set[str] = set()
    with contextlib.suppress(LockError):  # none yet, or one that is being replaced because it is damaged
        stale = {text_name(lock.channel, lock.target, name) for name in read(path).pip}
    contents = files(lock)
    parse(contents[path.name], path, {name: pip.text for name, pip in lock.pip.items()})
    for name, content in contents.items():
        leftovers.write(folder / name, content, 0o644)
    for name in stale - contents.keys():
        (folder / name).unlink(missing_ok=True)


def read(path: Path) -> Lock:
    """Read a lock and the requirement texts beside it; raises LockError that names every fault with its line."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise LockError(Problem("there is no lock yet", Place(path), "write one with 'strix-finetune lock'")) from None
    except OSError as error:
        raise LockError(Problem(f"cannot be read: {error.strerror}", Place(path))) from None
    return parse(data, path, None)


def parse(data: bytes, path: Path, texts: Mapping[str, str] | None) -> Lock:
    """The lock in `data`, which lies at `path`. `texts`: set → requirements text; None reads them beside `path`."""
    document = toml_places.Document(data, path, LockError, cure=_CURE)
    root = document.root
    if root.integer("format", minimum=1) > FORMAT:
        cure = "update strix-finetune"
        raise LockError(Problem(f"this lock has a newer format than {FORMAT}", root.place("format"), cure))
    channel, target = root.text("channel", _NAME), root.text("target", _NAME)
    apt = _apt(root.table("apt"))
    pip = {name: _pip(table, name, (path, channel, target), texts) for name, table in root.tables("pip", _NAME)}
    wheels = {name: _wheels(table) for name, table in root.tables("wheels", _NAME)}
    images_table = root.table("images", optional=True)
    images = {name: images_table.text(name, _DIGEST) for name in images_table.names(_IMAGE)}
    archives = {
        name: ArchiveLock(table.text("url", _URL), table.text("sha256", _SHA256), table.integer("size", minimum=1))
        for name, table in root.tables("archives", _NAME)
    }
    accepted_table = root.table("accepted", optional=True)
    accepted = {name: accepted_table.text(name, _DAY) for name in accepted_table.names(_NAME)}
    document.finish()
    return Lock(channel, target, apt, pip, wheels, images, archives, accepted)


_NAME = r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?"
_PACKAGE = r"[a-z0-9][a-z0-9+.-]*"
_DEBIAN_VERSION = r"[0-9A-Za-z][0-9A-Za-z.+:~-]*"
_PYTHON_VERSION = r"[0-9A-Za-z][0-9A-Za-z.!+_-]*"
_PYTHON = r"3\.[0-9]+"
_SHA256 = r"[0-9a-f]{64}"
_DIGEST = r"sha256:[0-9a-f]{64}"
_IMAGE = r"[a-z0-9][A-Za-z0-9._:/-]*"
_URL = r"https?://[^\s@]+|(?:apt-source|sdist):[^\s@/]+/[^\s@/]+"
_WHEEL_URL = r"https?://[^\s@]+"
# what may lie in a build context beside a requirements text
_WHEEL_FILE = r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.(?:whl|tar\.gz|zip)"
_DAY = r"[0-9]{4}-[01][0-9]-[0-3][0-9]"
_DATE = r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]Z"


def _apt(table: toml_places.Table) -> AptLock:
    suite = table.text("suite", _NAME)
    releases = {
        name: Release(_date(entry), entry.text("sha256", _SHA256)) for name, entry in table.tables("releases", _NAME)
    }
    if suite and suite not in releases:
        table.fault("suite", f"[apt.releases] does not have the suite '{suite}'")
    packages = {
        name: AptPackage(
            entry.text("version", _DEBIAN_VERSION), entry.integer("size", minimum=1), entry.text("sha256", _SHA256)
        )
        for name, entry in table.tables("packages", _PACKAGE, optional=True)
    }
    return AptLock(suite, releases, packages)


def _date(table: toml_places.Table, key: str = "date") -> str:
    from datetime import datetime

    value = table.text(key, _DATE)
    try:
        datetime.fromisoformat(value or "1970-01-01T00:00:00Z")
    except ValueError:
        table.fault(key, f"'{value}' is not a date")
    return value


def _wheels(table: toml_places.Table) -> WheelSetLock:
    index, python, time = table.text("index", _NAME), table.text("python", _PYTHON), _date(table, "time")
    declared = table.text("declared_sha256", _SHA256)
    found: dict[str, WheelLock] = {}
    taken: dict[str, str] = {}
    for entry in table.listed("files"):
        wheel = _wheel(entry)
        if wheel.name in found:
            entry.fault("name", f"the set has '{wheel.name}' twice")
        elif wheel.url and wheel.file in taken:
            entry.fault("url", f"'{wheel.name}' and '{taken[wheel.file]}' would both be the file '{wheel.file}'")
        found[wheel.name] = wheel
        taken[wheel.file] = wheel.name
    return WheelSetLock(python, index, time, declared, tuple(found.values()))


def _wheel(entry: toml_places.Table) -> WheelLock:
    wheel = WheelLock(
        entry.text("name", _NAME),
        entry.text("version", _PYTHON_VERSION),
        entry.text("url", _WHEEL_URL),
        entry.text("sha256", _SHA256),
        entry.integer("size", minimum=1) if "size" in entry else 0,
    )
    if wheel.url and not re.fullmatch(_WHEEL_FILE, wheel.file):
        entry.fault("url", f"'{wheel.file}' is not the name of a wheel or a source distribution")
    elif wheel.url and wheel.name and not normalize(wheel.file).startswith(f"{normalize(wheel.name)}-"):
        entry.fault("url", f"'{wheel.file}' is not a file of '{wheel.name}'")
    return wheel


def _pip(table: toml_places.Table, name: str, at: tuple[Path, str, str], texts: Mapping[str, str] | None) -> PipLock:
    path, channel, target = at
    python, sha256 = table.text("python", _PYTHON), table.text("requirements_sha256", _SHA256)
    declared = table.text("declared_sha256", _SHA256)
    versions = table.table("packages")
    packages = {package: versions.text(package, _PYTHON_VERSION) for package in versions.names(_NAME)}
    beside = path.parent / text_name(channel, target, name)
    try:
        text = texts[name] if texts is not None else beside.read_bytes().decode()
        parsed = requirements(text)
    except (OSError, KeyError):
        table.fault("requirements_sha256", f"{beside.name} beside it cannot be read")
        return PipLock(python, "", declared)
    except UnicodeDecodeError:
        table.fault("requirements_sha256", f"{beside.name} is not UTF-8 text")
        return PipLock(python, "", declared)
    except ValueError as error:
        line, message = error.args
        table.document.add(Problem(str(message), Place(beside, line), _CURE))
        return PipLock(python, "", declared)
    pip = PipLock(python, text, declared)
    if sha256 and pip.sha256 != sha256:
        table.fault("requirements_sha256", f"{beside.name} has another sha256 than the lock says")
    elif {package: version for package, version, _ in parsed} != packages:
        table.fault("packages", f"the versions listed are not those of {beside.name}")
    return pip


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    """A TOML basic string."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped) + '"'
