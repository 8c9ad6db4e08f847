"""Ask Debian's archive with apt, in a private state folder: the host's own apt is neither read nor changed.

apt verifies the signatures, follows the pins and compares the versions; this module only writes its configuration
and reads its answers. The folder stays in the user's cache, so that a second call fetches only what is new.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from strix_finetune import debian, programs
from strix_finetune.digests import sha256_of
from strix_finetune.errors import FetchFailed
from strix_finetune.lockmodel import AptPackage, Release
from strix_finetune.netconf import NetSettings, preferences, redact, sources_list
from strix_finetune.programs import Done, Runner
from strix_finetune.resolve import AptAnswer
from strix_finetune.schema import Apt

_UNREACHABLE = re.compile(
    r"(Could not (?:resolve|connect)[^\n]*|Temporary failure[^\n]*|[^\n]*(?:timed out|refused)[^\n]*)"
)


class AptArchive:
    """An `AptResolver` that asks apt, whoever runs it. `cache` is the user's cache folder of this program."""

    def __init__(self, settings: NetSettings, cache: Path) -> None:
        self._settings, self._cache = settings, cache

    def ask(self, names: Collection[str], apt: Apt) -> AptAnswer:
        """See `AptResolver.ask`. Fetches what is new in the archive (0.1 s when nothing is, a few at first)."""
        wanted = sorted(set(names))
        with self.state(apt) as state:
            state.update()
            releases = {suite: state.release(suite) for suite in debian.suites(apt).suites}
            served = state.served(wanted)
            chosen = state.candidates(wanted)
            unknown = {name: state.cure(name) for name in wanted if chosen.get(name) not in served.get(name, {})}
        candidates = {name: served[name][chosen[name]] for name in wanted if name not in unknown}
        return AptAnswer(releases, candidates, served, unknown)

    @contextlib.contextmanager
    def state(self, apt: Apt, *, sources: bool = False) -> Iterator[State]:
        """A private folder for these suites, held by one process at a time; with `sources` it knows source packages
        instead of binary ones."""
        who = programs.of(self._settings)
        mirror = who.mirror(self._settings.debian_mirror)
        listed = sources_list(mirror, debian.suites(apt), who.apt.keyring())
        if sources:
            listed = listed.replace("deb [", "deb-src [")
        config = "\n\n".join([listed, *apt.pins])
        folder = self._cache / "apt" / hashlib.sha256(config.encode()).hexdigest()[:16]
        for name in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/empty.d"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "state/status").touch()
            (folder / "etc/sources.list").write_text(listed)
            (folder / "etc/preferences").write_text(preferences(apt.pins))
            (folder / "apt.conf").write_text(configuration(folder, self._settings))
            yield State(folder, apt, mirror, who.apt, self._cache)


class State:
    """One private apt folder, ready to be asked. `mirror` is safe to print; `root`: all that `runner` may see."""

    def __init__(self, folder: Path, apt: Apt, mirror: str, runner: Runner, root: Path) -> None:
        self._folder, self._apt, self.mirror = folder, apt, redact(mirror)
        self._runner, self._root = runner, root

    def update(self) -> None:
        """Fetch the indexes. apt counts a failed fetch as a warning unless told otherwise."""
        done = self.run("apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any")
        if done.returncode != 0:
            raise explain(done.stderr, self._apt, self.mirror)

    def release(self, suite: str) -> Release:
        """The signed Release file of a suite, among those that apt has verified and kept."""
        path = self.release_files(suite)[0]
        return Release(iso_date(release_fields(path)["Date"]), sha256_of(path))

    def release_files(self, suite: str) -> tuple[Path, ...]:
        """The suite's signed InRelease, or its Release and then the signature of it, as the archive has them."""
        for path in sorted((self._folder / "state/lists").glob("*Release")):
            fields = release_fields(path)
            if suite in (fields.get("Suite"), fields.get("Codename")) and "Date" in fields:
                signature = path.with_name(f"{path.name}.gpg")
                return (path, signature) if signature.is_file() else (path,)
        raise FetchFailed(f"apt has no signed Release file of the suite '{suite}'", cure="check the mirror")

    def candidates(self, names: Sequence[str]) -> dict[str, str]:
        """name → the version that apt would install; names without one are left out."""
        return parse_policy(self.run("apt-cache", "policy", *names).stdout) if names else {}

    def served(self, names: Sequence[str]) -> dict[str, dict[str, AptPackage]]:
        return parse_show(self.run("apt-cache", "show", *names).stdout) if names else {}

    def cure(self, name: str) -> str:
        """What to do about a name that cannot be installed: its providers, or the nearest name that exists."""
        told = self.run("apt-cache", "showpkg", name).stdout
        lines = told.partition("Reverse Provides:")[2].splitlines()
        providers = sorted({line.split()[0] for line in lines if line.strip()})
        if providers:
            return f"it is virtual, name one that provides it: {', '.join(providers[:5])}"
        from difflib import get_close_matches

        # names are told by their beginning here: comparing with all 70000 would take seconds
        for prefix in (name[:3], name[:1]):
            known = self.run("apt-cache", "pkgnames", prefix).stdout.split()
            close = get_close_matches(name, known, n=1, cutoff=0.7)
            if close:
                return f"did you mean '{close[0]}'?"
        return "check the spelling, or the suite of the channel"

    def run(self, *command: str, cwd: Path | None = None) -> Done:
        env = {"APT_CONFIG": str(self._folder / "apt.conf")}
        return self._runner.run(command, env, shared=(self._root,), cwd=cwd)


def parse_policy(text: str) -> dict[str, str]:
    """Read `apt-cache policy`: name → candidate."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            name = line.rstrip().removesuffix(":")
        elif (match := re.match(r"\s+Candidate: (\S+)$", line)) and match[1] != "(none)":
            found[name] = match[1]
    return found


def parse_show(text: str) -> dict[str, dict[str, AptPackage]]:
    """Read `apt-cache show`: name → version → package."""
    found: dict[str, dict[str, AptPackage]] = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Size|SHA256): *(\S+)$", stanza, re.M))
        if fields.keys() >= {"Package", "Version", "Size", "SHA256"}:
            package = AptPackage(fields["Version"], int(fields["Size"]), fields["SHA256"])
            found.setdefault(fields["Package"], {})[package.version] = package
    return found


def release_fields(path: Path) -> dict[str, str]:
    """The fields at the head of a Release file, up to its lists of hashes."""
    fields: dict[str, str] = {}
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if line.startswith(("MD5Sum:", "SHA1:", "SHA256:")):
                break
            name, colon, value = line.partition(":")
            if colon and not line.startswith(("Hash:", " ", "-")):
                fields[name] = value.strip()
    return fields


def iso_date(text: str) -> str:
    """ "Fri, 30 Oct 2026 08:08:01 UTC" → "2026-10-30T08:08:01Z"."""
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        raise FetchFailed(f"the archive's Release file has a Date that is none: {text!r}") from None
    date = date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    return f"{date:%Y-%m-%dT%H:%M:%SZ}"


def explain(stderr: str, apt: Apt, mirror: str) -> FetchFailed:
    """One sentence for what `apt-get update` complains about."""
    text = redact(stderr)
    suite = next((name for name in debian.suites(apt).suites if f" {name} " in text or f"/{name}/" in text), apt.suite)
    if re.search(r"NO_PUBKEY|is not signed|GPG error|BADSIG|EXPKEYSIG|signatures? (?:were|couldn't)", text):
        return FetchFailed(
            f"the signature of Debian's suite '{suite}' cannot be verified with the keys of this host",
            cure="install a newer debian-archive-keyring, or use a mirror that is Debian's",
        )
    if found := re.search(r"is expired \(([^)]*)\)", text):
        return FetchFailed(
            f"{mirror} has a Release file of '{suite}' that is expired ({found[1].rstrip('.')})",
            cure="check this host's clock, or use a mirror that is up to date",
        )
    if found := re.search(r"is not valid yet \(([^)]*)\)", text):
        return FetchFailed(
            f"the Release file of '{suite}' is not valid yet ({found[1].rstrip('.')})", cure="set this host's clock"
        )
    if re.search(r"does not have a Release file|404 +Not Found", text):
        return FetchFailed(
            f"{mirror} does not serve the suite '{suite}'",
            cure="correct [apt] in the channel, or name another mirror in STRIX_DEBIAN_MIRROR",
        )
    if "No space left on device" in text:
        return FetchFailed("the disk of the cache folder is full", cure="make room, or set XDG_CACHE_HOME")
    if words := unreachable(text):
        return FetchFailed(f"{mirror} cannot be reached ({words})", cure="check the network and the proxy settings")
    first = next((line for line in text.splitlines() if line.startswith("E: ")), text.strip()[:200])
    return FetchFailed(f"apt cannot read the indexes of '{suite}': {first.removeprefix('E: ').rstrip('.')}")


def unreachable(text: str) -> str:
    """apt's words for a fault of the network, or an empty string."""
    reason = _UNREACHABLE.search(text)
    return re.sub(r"^[EW]: ", "", reason[1]).strip().rstrip(".") if reason else ""


def configuration(folder: Path, settings: NetSettings) -> str:
    """apt's configuration for a private `folder`: the host's own apt is neither read nor changed."""
    options = {
        "Dir": f"{folder}/",
        "Dir::State": f"{folder}/state",
        "Dir::State::status": f"{folder}/state/status",
        "Dir::Cache": f"{folder}/cache",
        "Dir::Etc": f"{folder}/etc",
        "Dir::Etc::sourceparts": f"{folder}/etc/empty.d",
        "Dir::Etc::parts": f"{folder}/etc/empty.d",
        # keys come from the sources' signed-by alone
        "Dir::Etc::trusted": "/dev/null",
        "Dir::Etc::trustedparts": f"{folder}/etc/empty.d",
        # passwords of a closed mirror stay where the host keeps them
        "Dir::Etc::netrc": "/etc/apt/auth.conf",
        "Dir::Etc::netrcparts": "/etc/apt/auth.conf.d",
        "APT::Architecture": debian.ARCHITECTURE,
        "APT::Architectures": debian.ARCHITECTURE,
        "Acquire::Languages": "none",
        "Acquire::GzipIndexes": "true",
        "Acquire::AllowInsecureRepositories": "false",
        "Acquire::AllowWeakRepositories": "false",
        "Acquire::AllowDowngradeToInsecureRepositories": "false",
        "Acquire::Retries": "3",
        # run by root, apt would fetch as a user of its own, who cannot enter root's cache folder
        "APT::Sandbox::User": "root",
        **dict(settings.apt_options),
    }
    if settings.ca_bundle:
        options["Acquire::https::CaInfo"] = str(settings.ca_bundle)
    return "".join(f'{name} "{value}";\n' for name, value in options.items())
