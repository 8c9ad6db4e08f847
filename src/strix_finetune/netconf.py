"""The host's network settings, and how they are lent to a build step without entering an image or a key.

A step that needs the network sees the folder of `files` at /mnt, bind-mounted for the time of that step, and
begins with `. /mnt/env`. Nothing of it is copied into a layer, and no key is made of it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from strix_finetune import indexes, mirrors
from strix_finetune.digests import sha256_of
from strix_finetune.errors import InputError
from strix_finetune.hostmirror import Run, host_mirror
from strix_finetune.indexes import Indexes

if TYPE_CHECKING:
    from strix_finetune.programs import Programs

FOLDER = ".strix-net"
MOUNT = "/mnt"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
# what programs in an image look at; each of them has its own idea of the name
_CA_INSIDE = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO")
_APT_OPTION = re.compile(
    r'^(Acquire::(?:(?:http|https|ftp)::Proxy(?:::[^\s"]+)?|Retries|Check-Valid-Until|Check-Date)) "([^"]+)";$', re.I
)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s\"']+@")


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says about the network; it wins over the host's configuration.

    `indexes`: words "NAME=URL", where the channel's index NAME is to be looked for.
    """

    debian_mirror: str = ""
    ca_bundle: Path | None = None
    wheels: tuple[Path, ...] = ()
    indexes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suites:
    """What the image's sources name: suites ("sid") and components ("main"); `pins` are stanzas of apt_preferences."""

    suites: tuple[str, ...]
    components: tuple[str, ...] = ("main",)
    pins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetSettings:
    """Everything of the host that a build step may use to reach the network. Values may hold credentials.

    `proxies`: lower-case variable → value. `apt_options`: apt's option → value. `debian_mirror` is the URL that
    ends before /dists, empty where the host has none. `index_urls`: as of `mirrors.collect`. `programs`: who runs apt
    and mmdebstrap, None for the host itself.
    """

    proxies: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_bundle: Path | None = None
    debian_mirror: str = field(default="", repr=False)
    apt_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    indexes: Indexes = field(default_factory=Indexes)
    wheel_folders: tuple[Path, ...] = ()
    index_urls: Mapping[str, str] = field(default_factory=dict)
    programs: Programs | None = field(default=None, repr=False, compare=False)

    def index_url(self, name: str) -> str:
        """Where this host has a channel's index, without a slash at the end; empty where it says nothing of it."""
        return self.index_urls.get(mirrors.variable(name), "")

    @property
    def loopback(self) -> bool:
        """Whether something of it is on this host's loopback: a build step then needs the host's network."""
        proxies = [value for name, value in self.proxies.items() if name != "no_proxy"]
        options = [value for name, value in self.apt_options if "proxy" in name.lower()]
        urls = [*proxies, *options, self.debian_mirror, *self.indexes.variables("").values()]
        return any(is_loopback(word) for url in urls for word in re.split(r"[\s,]+", url) if word)

    def uv_variables(self) -> dict[str, str]:
        """Variables for a uv that runs on this host."""
        found = self.indexes.variables(",".join(str(folder) for folder in self.wheel_folders))
        if self.ca_bundle:
            found["SSL_CERT_FILE"] = str(self.ca_bundle)
        return found | {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"} | dict(self.proxies)


class NetFile(NamedTuple):
    """One file of the folder: its path in it, its content in memory or on disk, and whether it is a program."""

    path: str
    source: bytes | Path
    executable: bool = False


def redact(text: str) -> str:
    """`text` without the user names and passwords of the URLs in it."""
    return _CREDENTIALS.sub("***@", text)


def collect(
    env: Mapping[str, str],
    flags: Flags | None = None,
    *,
    home: Path | None = None,
    root: Path = Path("/"),
    run: Run | None = None,
) -> NetSettings:
    """Read the host's settings from variables, flags, configuration files and apt. Nothing is asked of the network.

    Raises InputError where a setting names a file that does not exist.
    """
    flags, run = flags or Flags(), run or _run
    home = home or Path(env.get("HOME") or "~").expanduser()
    found = indexes.collect(env, home, root)
    for folder in flags.wheels:
        if not folder.is_dir():
            raise InputError(f"the wheel folder {folder} does not exist", cure="name an existing folder")
    mirror = flags.debian_mirror or env.get("STRIX_DEBIAN_MIRROR", "") or host_mirror(run, root)
    if mirror and not re.match(r"https?://[^\s\[\]]+$", mirror):
        raise InputError(
            f"'{redact(mirror)}' cannot be the URL of a Debian mirror", cure="it begins with http:// or https://"
        )
    return NetSettings(
        proxies=_proxies(env),
        ca_bundle=_ca_bundle(env, flags, found.cert),
        debian_mirror=mirror.rstrip("/"),
        apt_options=_apt_options(run),
        indexes=found,
        wheel_folders=tuple(dict.fromkeys(path.resolve() for path in (*flags.wheels, *found.folders))),
        index_urls=mirrors.collect(env, flags.indexes),
    )


def files(
    settings: NetSettings,
    wheels_wanted: Mapping[tuple[str, str], Collection[str]] | None = None,
    *,
    suites: Suites | None = None,
    uv: bool = True,
    chosen: Sequence[Path] = (),
) -> Iterator[NetFile]:
    """The content of the folder that is lent to a build step.

    `wheels_wanted` is `PipLock.files`: (name, version) → sha256s; of the local wheels only those go along. `chosen`:
    wheels that go along in any case.
    `suites` is what the sources of a host's mirror are written for; their pins hold for the step as well. `uv` adds
    the program (38 MB).
    """
    wheels = list(_wheels(settings.wheel_folders, wheels_wanted)) if wheels_wanted else []
    wheels += [NetFile(f"wheels/{path.name}", path) for path in chosen]
    mirror = settings.debian_mirror if suites else ""
    pins = suites.pins if suites else ()
    yield NetFile("env", _env(settings, bool(wheels), uv).encode())
    yield NetFile("apt.conf", _apt_conf(settings, bool(mirror), bool(pins)).encode())
    if mirror and suites:
        yield NetFile("sources.list", sources_list(mirror, suites, KEYRING).encode())
    if pins:
        yield NetFile("preferences", preferences(pins).encode())
    if settings.ca_bundle:
        yield NetFile("ca.crt", settings.ca_bundle)
    if uv:
        yield NetFile("bin/uv", uv_program(), executable=True)
    yield from wheels


def sources_list(mirror: str, suites: Suites, keyring: str) -> str:
    """apt's sources for `mirror`, believed only when Debian's own keys signed them.

    A mirror in a folder ("file:" or "copy:") is a state of the archive that is kept: it may be out of date, and has
    its indexes under one name.
    """
    kept = " check-valid-until=no by-hash=no" if mirror.startswith(("file:", "copy:")) else ""
    components = " ".join(suites.components)
    return "".join(f"deb [signed-by={keyring}{kept}] {mirror} {suite} {components}\n" for suite in suites.suites)


def preferences(pins: Sequence[str]) -> str:
    """apt's preferences: which suite a package comes from."""
    return "\n\n".join(pins) + "\n"


def uv_program() -> Path:
    """The uv program that came with the `uv` package."""
    import uv

    return Path(uv.find_uv_bin())


def _env(settings: NetSettings, wheels: bool, uv: bool) -> str:
    variables = {"APT_CONFIG": f"{MOUNT}/apt.conf"}
    for name, value in settings.proxies.items():
        variables |= {name: value, name.upper(): value}
    if settings.ca_bundle:
        variables |= dict.fromkeys(_CA_INSIDE, f"{MOUNT}/ca.crt")
    variables |= settings.indexes.variables(f"{MOUNT}/wheels" if wheels else "")
    variables |= {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "copy"}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*lines, *([f'export PATH="{MOUNT}/bin:$PATH"'] if uv else [])]) + "\n"


def _apt_conf(settings: NetSettings, mirror: bool, pins: bool) -> str:
    options = dict(settings.apt_options)
    if settings.ca_bundle:
        options["Acquire::https::CaInfo"] = f"{MOUNT}/ca.crt"
    if mirror:
        options |= {"Dir::Etc::sourcelist": f"{MOUNT}/sources.list", "Dir::Etc::sourceparts": "/dev/null"}
    if pins:
        options["Dir::Etc::preferences"] = f"{MOUNT}/preferences"
    return "".join(f'{name} "{value}";\n' for name, value in options.items())


def _wheels(folders: Sequence[Path], wanted: Mapping[tuple[str, str], Collection[str]]) -> Iterator[NetFile]:
    """Local wheels that the lock names: by name and version first, because hashing a large folder takes time."""
    from packaging.utils import InvalidWheelFilename, canonicalize_version, parse_wheel_filename

    by_version = {(name, canonicalize_version(version)): set(hashes) for (name, version), hashes in wanted.items()}
    seen: set[str] = set()
    for folder in folders:
        for path in sorted(folder.glob("*.whl")):
            try:
                name, version, _, _ = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            hashes = by_version.get((name, canonicalize_version(version)))
            if hashes and path.name not in seen and sha256_of(path) in hashes:
                seen.add(path.name)
                yield NetFile(f"wheels/{path.name}", path)


def _proxies(env: Mapping[str, str]) -> dict[str, str]:
    found = {name: env.get(name) or env.get(name.upper(), "") for name in _PROXIES}
    return {name: value for name, value in found.items() if value}


def _ca_bundle(env: Mapping[str, str], flags: Flags, pip_cert: str) -> Path | None:
    named = [("--ca-bundle", str(flags.ca_bundle or ""))]
    named += [(name, env.get(name, "")) for name in _CA_VARIABLES]
    named.append(("pip's option cert", pip_cert))
    for name, value in named:
        if value:
            path = Path(value).expanduser()
            if not path.is_file():
                raise InputError(f"{name} names {value}, which is not a file", cure="correct or unset it")
            return path.resolve()
    return None


def _apt_options(run: Run) -> tuple[tuple[str, str], ...]:
    lines = run(("apt-config", "dump")).splitlines()
    return tuple((match[1], match[2]) for line in lines if (match := _APT_OPTION.match(line)))


def is_loopback(url: str) -> bool:
    """Whether a URL, uv's "name=URL", or a bare host:port is on this host."""
    url = url.partition("=")[2] if re.match(r"[\w-]+=", url) else url
    try:
        host = urlsplit(url if "://" in url else f"//{url}").hostname
    except ValueError:
        return False
    if not host or host == "localhost":
        return bool(host)
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _run(command: Sequence[str]) -> str:
    """What a program of the host prints; nothing where it is missing or fails: then the host has no such setting."""
    import os
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "LC_ALL": "C"})
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
