"""The apt part of a vendored folder: the signed indexes of the suites as the archive has them, and some of its pool.

An index of the whole archive over a part of its pool is no fault: apt asks only for what it installs.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from strix_finetune import debian, programs
from strix_finetune.digests import sha256_of
from strix_finetune.download import Gone
from strix_finetune.errors import FetchFailed, InputError, WorkError
from strix_finetune.netconf import NetSettings, redact
from strix_finetune.resolve.apt import State, configuration, iso_date, release_fields, unreachable
from strix_finetune.schema import Apt
from strix_finetune.vendor.manifest import Entry
from strix_finetune.vendor.solve import Deb

HELPER = Path("/usr/lib/apt/apt-helper")
# what every apt can read, smallest first
_PACKED = (".xz", ".gz", ".bz2", "")
_ROW = re.compile(r"^ ([0-9a-f]{64}) +(\d+) (\S+)$", re.M)
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Suite:
    """The signed Release of one suite: files of it (name → content), and the index files that it names, below dists/.

    `indexes`: (path below the suite's folder, sha256, size, path that never changes or the same).
    """

    name: str
    date: str
    signed: Mapping[str, bytes]
    indexes: tuple[tuple[str, str, int, str], ...]


def read_suites(state: State, apt: Apt) -> tuple[Suite, ...]:
    """The suites of a channel, from the lists that apt has fetched and verified."""
    return tuple(_suite(state, name, apt.components) for name in debian.suites(apt).suites)


def folder_name(suites: Sequence[Suite]) -> str:
    """Where this state of the archive lies: another state, another folder."""
    contents = [content for suite in suites for _, content in sorted(suite.signed.items())]
    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).hexdigest()
    date = re.sub(r"[-:]", "", suites[0].date)
    return f"apt/{suites[0].name}-{date}-{digest[:8]}"


def entries(mirror: str, folder: str, suites: Sequence[Suite], debs: Sequence[Deb]) -> Iterator[Entry]:
    """Every file of the part that is fetched. `mirror` is safe to print."""
    for suite in suites:
        for path, sha256, size, steady in suite.indexes:
            source = f"{mirror}/dists/{suite.name}/{steady}"
            yield Entry(f"{folder}/dists/{suite.name}/{path}", sha256, size, source)
    for deb in debs:
        yield Entry(f"{folder}/{deb.path}", deb.sha256, deb.size, f"{mirror}/{deb.path}")


def _suite(state: State, name: str, components: Sequence[str]) -> Suite:
    lists = state.release_files(name)
    signed = {path.name.rsplit("_", 1)[-1]: path.read_bytes() for path in lists}
    release = lists[0]
    fields = release_fields(release)
    text = release.read_text("utf-8", errors="replace")
    section = re.search(r"^SHA256:\n((?: .*\n)+)", text, re.M)
    rows = {path: (sha256, int(size)) for sha256, size, path in _ROW.findall(section[1] if section else "")}
    by_hash = fields.get("Acquire-By-Hash") == "yes"
    architectures = [debian.ARCHITECTURE]
    if "all" in fields.get("Architectures", "").split() and fields.get("No-Support-for-Architecture-all") != "Packages":
        architectures.append("all")
    indexes = []
    for component in components:
        for architecture in architectures:
            plain = f"{component}/binary-{architecture}/Packages"
            packed = next((f"{plain}{suffix}" for suffix in _PACKED if f"{plain}{suffix}" in rows), None)
            if packed is None:
                if architecture == debian.ARCHITECTURE:
                    raise FetchFailed(f"Debian's suite '{name}' lists no {plain}", cure="correct [apt] in the channel")
                continue
            sha256, size = rows[packed]
            steady = f"{packed.rpartition('/')[0]}/by-hash/SHA256/{sha256}" if by_hash else packed
            indexes.append((packed, sha256, size, steady))
    return Suite(name, iso_date(fields["Date"]), signed, tuple(indexes))


def fetch(
    wanted: Sequence[Entry], folder: Path, mirror: str, settings: NetSettings, on_file: Callable[[Entry], None]
) -> None:
    """Let apt fetch the files, each to its path below `folder`. What was begun stays beside it and is gone on with.

    `mirror` is the archive's URL, which may hold a password. Raises Gone for what it no longer has, FetchFailed else.
    """
    if isinstance(programs.of(settings).apt, programs.Host) and not HELPER.is_file():
        raise InputError("this host's apt has no apt-helper to download with", cure="install a newer apt")
    for begin in range(0, len(wanted), _BATCH):
        batch = wanted[begin : begin + _BATCH]
        said = _download(batch, folder, mirror, settings, on_file)
        # what is named by its hash is also there under its own name, unless the archive has moved on
        plain = [replace(entry, source="") for entry in batch if not (folder / entry.path).is_file() and _steady(entry)]
        if plain:
            said += _download(plain, folder, mirror, settings, on_file)
        if lacking := [entry for entry in batch if not (folder / entry.path).is_file()]:
            raise _explain(said, lacking, redact(mirror))


def _download(
    batch: Sequence[Entry], folder: Path, mirror: str, settings: NetSettings, on_file: Callable[[Entry], None]
) -> str:
    """Fetch what can be had, give it its name, and return what apt said."""
    words: list[str] = []
    for entry in batch:
        part = folder / f"{entry.path}.part"
        part.parent.mkdir(parents=True, exist_ok=True)
        url = f"{mirror}/{_steady(entry) or entry.in_archive}"
        words += [url, str(part), f"SHA256:{entry.sha256}", f"Checksum-FileSize:{entry.size}"]
    said = _run((str(HELPER), "-q", "download-file", *words), settings, folder)
    for entry in batch:
        if _settle(entry, folder):
            on_file(entry)
    return said


def _settle(entry: Entry, folder: Path) -> bool:
    """Give a file that is whole its name; take away one that is as long as it may be, or longer, and wrong."""
    part, path = folder / f"{entry.path}.part", folder / entry.path
    if not part.is_file() or part.stat().st_size < entry.size:
        return False
    right = sha256_of(part) == entry.sha256
    if right:
        part.chmod(0o644)
        part.replace(path)
    else:
        part.unlink()
    return right


def _steady(entry: Entry) -> str:
    """The name that an index keeps when the next one takes its place; empty for what has none."""
    steady = f"{entry.in_archive.rpartition('/')[0]}/by-hash/SHA256/{entry.sha256}"
    return steady if entry.source.endswith(steady) else ""


def _run(command: Sequence[str], settings: NetSettings, target: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="strix-vendor-") as folder:
        for name in ("state/lists/partial", "cache/archives/partial", "etc/empty.d"):
            (Path(folder) / name).mkdir(parents=True)
        config = Path(folder) / "apt.conf"
        config.write_text(configuration(Path(folder), settings))
        env = {"APT_CONFIG": str(config), **settings.proxies}
        said: list[str] = []
        code = programs.of(settings).apt.stream(command, env, said.append, shared=(Path(folder), target))
    return redact("\n".join(said)) or f"apt-helper ended with {code}"


def _explain(said: str, lacking: Sequence[Entry], mirror: str) -> FetchFailed | WorkError:
    name = lacking[0].path.rsplit("/", 1)[-1]
    if "No space left on device" in said:
        return WorkError(f"the disk is full, {name} does not fit", cure="make room, then go on with the same command")
    if re.search(r"\s(?:404|410) +\w", said):
        return Gone(f"{mirror} no longer serves {name}", cure="run the command again with --renew")
    if re.search(r"Hash Sum mismatch|unexpected size", said):
        return Gone(
            f"{mirror} serves another {name} than its signed index lists", cure="try again, or use another mirror"
        )
    lines = said.strip().splitlines()
    first = next((line for line in lines if line.startswith("E: ")), lines[-1][-200:])
    reason = unreachable(said) or first.removeprefix("E: ").rstrip(".")
    return FetchFailed(
        f"{name} could not be downloaded ({reason})",
        cure="check the network and the proxy settings, then go on with the same command",
    )
