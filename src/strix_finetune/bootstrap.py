"""Make the root file system of a layer without a parent with mmdebstrap: a tar in the user's cache.

The same lock gives the same bytes as long as the archive serves the same packages. Nothing of the host is in it:
its mirror, proxies, name servers and host name are taken out again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from strix_finetune import debian, programs
from strix_finetune.errors import BuildFailed, FetchFailed, LockError, Place, Problem, StrixError
from strix_finetune.leftovers import remove_leftovers, temporary
from strix_finetune.lockmodel import Lock
from strix_finetune.model import Keyed, Node
from strix_finetune.netconf import NetSettings, Suites, redact, sources_list
from strix_finetune.schema import Apt, ChannelFile

# counted up when this module makes something else of the same input
FORMAT = 1
KEPT = 3
PACKAGES = "rootfs"
_TAIL = 20
# files under these folders of the layer also hold for the bootstrap itself
_DPKG_FOLDER = "files/etc/dpkg/dpkg.cfg.d"
_APT_FOLDER = "files/etc/apt/apt.conf.d"


@dataclass(frozen=True, slots=True)
class _Recipe:
    """All that decides on the bytes. `dpkg`, `apt_conf`: texts of configuration files that hold from the start."""

    suite: str
    components: tuple[str, ...]
    release: str
    epoch: int
    packages: Mapping[str, str]
    variant: str
    dpkg: str
    apt_conf: str


def rootfs(
    layer: Keyed,
    lock: Lock,
    channel: ChannelFile,
    settings: NetSettings,
    cache: Path,
    on_line: Callable[[str], None] | None = None,
    *,
    anew: bool = False,
) -> Path:
    """The tar of the layer's root file system; made when the cache lacks it (20 to 40 s), which `on_line` hears of.

    `anew` makes it in any case: the lock does not name every package in it, and the archive may have moved on.

    The layer's package list "rootfs" is installed in the exact versions of the lock. Its variable `variant` is
    mmdebstrap's (default "minbase"), and its own files under etc/dpkg/dpkg.cfg.d and etc/apt/apt.conf.d apply from
    the first package on.

    Raises LockError when the archive no longer serves a locked version, FetchFailed when it cannot be reached, and
    BuildFailed with the last lines otherwise. A failure leaves nothing behind.
    """
    node = layer.layer.node
    recipe = _Recipe(
        suite=lock.apt.suite,
        components=tuple(channel.apt.components),
        release=lock.apt.releases[lock.apt.suite].sha256,
        epoch=lock.apt.epoch,
        packages=_packages(node, lock),
        variant=variant(node),
        dpkg=_text(node.layer.folder / _DPKG_FOLDER),
        apt_conf=_text(node.layer.folder / _APT_FOLDER),
    )
    name = hashlib.sha256(json.dumps([FORMAT, asdict(recipe)], sort_keys=True).encode()).hexdigest()
    folder = cache / "rootfs"
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder, name):
        path = folder / f"{name}.tar"
        if path.is_file() and not anew:
            path.touch()
            return path
        remove_leftovers(folder, debian.remove_work)
        with temporary(folder, name) as part:
            _make(part, recipe, channel.apt, settings, on_line or (lambda line: None))
            part.replace(path)
        _remove_old(folder)
        return path


def variant(node: Node) -> str:
    """Which set of packages the layer begins with, in mmdebstrap's words."""
    return str(node.vars.get("variant", "minbase"))


def _packages(node: Node, lock: Lock) -> dict[str, str]:
    names = node.packages.get(PACKAGES, ())
    lacking = [name for name in names if name not in lock.apt.packages]
    if lacking:
        place = Place(node.layer.source.path, node.layer.source.positions.line(("packages", PACKAGES)))
        raise LockError(Problem(f"the lock lacks {', '.join(lacking)}", place, "run 'strix-finetune lock'"))
    return {name: lock.apt.packages[name].version for name in sorted(names)}


def _text(folder: Path) -> str:
    return "".join(f"{path.read_text('utf-8').rstrip()}\n" for path in sorted(folder.glob("*")) if path.is_file())


def _make(part: Path, recipe: _Recipe, apt: Apt, settings: NetSettings, on_line: Callable[[str], None]) -> None:
    said: deque[str] = deque(maxlen=400)
    who = programs.of(settings)
    mirror = who.mirror(settings.debian_mirror)

    def hear(raw: str) -> None:
        line = redact(raw.rstrip())
        said.append(line)
        on_line(line)

    with who.mmdebstrap.work(part.parent) as work:
        command = _command(part, recipe, apt, settings, work)
        env = {"SOURCE_DATE_EPOCH": str(recipe.epoch), **settings.proxies}
        env |= {"TMPDIR": str(work)} if work else {}
        shared = [part.parent, *([Path(mirror.removeprefix("copy://"))] if mirror.startswith("copy:///") else [])]
        code = who.mmdebstrap.stream(command, env, hear, shared=shared, made=part, as_root=True)
    if code != 0:
        raise _explain(list(said), code, apt, mirror)
    if not part.is_file() or part.stat().st_size == 0:
        raise BuildFailed("mmdebstrap ended well and wrote nothing", log_tail=list(said)[-_TAIL:])


def _command(part: Path, recipe: _Recipe, apt: Apt, settings: NetSettings, work: Path | None) -> list[str]:
    who = programs.of(settings)
    runner, mirror = who.mmdebstrap, who.mirror(settings.debian_mirror)
    source = sources_list(mirror, Suites((recipe.suite,), recipe.components), runner.keyring()).strip()
    options = "".join(f'{name} "{value}";\n' for name, value in settings.apt_options)
    if settings.ca_bundle:
        options += f'Acquire::https::CaInfo "{settings.ca_bundle}";\n'
    # in a user namespace or a container mmdebstrap cannot read our files, so there the text itself is the argument
    texts = {"dpkgopt": f"{recipe.dpkg}force-unsafe-io\n", "aptopt": f"{recipe.apt_conf}{options}"}
    arguments = []
    for option, text in texts.items():
        if text and work and runner.mode == "root":
            path = work / option
            path.touch(0o600)
            path.write_text(text)
            arguments.append(f"--{option}={path}")
        elif text:
            arguments.append(f"--{option}={text}")
    if recipe.packages:
        arguments.append("--include=" + ",".join(f"{name}={version}" for name, version in recipe.packages.items()))
    return [
        runner.mmdebstrap(),
        f"--mode={runner.mode}",
        f"--variant={recipe.variant}",
        f"--architectures={debian.ARCHITECTURE}",
        "--format=tar",
        # device nodes are the engine's business, and a rootless one may not make them
        "--skip=output/dev",
        f"--customize-hook={_leave_no_trace(debian.default_sources_file(apt, runner))}",
        *arguments,
        recipe.suite,
        str(part),
        source,
    ]


def _leave_no_trace(sources: str) -> str:
    """The last hook: take out what came from this host, and put in where Debian is for everyone."""
    traces = (
        "apt/sources.list",
        "apt/apt.conf.d/99mmdebstrap",
        "dpkg/dpkg.cfg.d/99mmdebstrap",
        "hostname",
        "resolv.conf",
    )
    removed = " ".join(f'"$1"/etc/{name}' for name in traces)
    target = '"$1"/etc/apt/sources.list.d/debian.sources'
    return f"set -eu; rm -f {removed}; printf %s {shlex.quote(sources)} > {target}; chmod 0644 {target}"


def _explain(said: list[str], code: int, apt: Apt, mirror: str) -> StrixError:
    from strix_finetune.resolve.apt import explain

    text = "\n".join(said)
    if match := re.search(r"Version '([^']+)' for '([^']+)' was not found", text):
        return LockError(
            f"the archive no longer serves {match[2]} {match[1]}", cure=f"run 'strix-finetune lock --update {match[2]}'"
        )
    if match := re.search(r"Unable to locate package (\S+)", text):
        return LockError(f"the suite '{apt.suite}' has no package {match[1]}", cure="correct the layer's package list")
    if "No space left on device" in text:
        return BuildFailed(Problem("the disk is full", cure="make room in TMPDIR and XDG_CACHE_HOME"))
    if re.search(r"newuidmap|subuid|unshare|unprivileged", text) and debian.mode() == "unshare":
        return BuildFailed(
            Problem(
                "mmdebstrap cannot make a user namespace for this user",
                cure="install uidmap and give the user a range in /etc/subuid, or run as root",
            ),
            log_tail=said[-_TAIL:],
        )
    if re.search(r"apt-get[^\n]*update[^\n]*failed|Failed to fetch|does not have a Release file|is not signed", text):
        fault = explain(text, apt, mirror)
        return FetchFailed(fault.problems)
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    last = next((line for line in reversed(said) if line.startswith("E: ")), "")
    reason = f": {last.removeprefix('E: ')[:200]}" if last else ""
    return BuildFailed(f"mmdebstrap ended with {how}{reason}", log_tail=said[-_TAIL:])


@contextlib.contextmanager
def _held(folder: Path, name: str) -> Iterator[None]:
    """Let one process at a time make `name`; the others then find it made."""
    with (folder / f".{name[:16]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_old(folder: Path) -> None:
    """Keep the few tars that were used last; a lock that moves on would fill the cache otherwise."""
    tars = sorted(folder.glob("*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in tars[KEPT:]:
        path.unlink(missing_ok=True)
