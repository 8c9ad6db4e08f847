"""Debian's programs out of an image, for a host that has none: each run is a container that is gone afterwards.

The image is made of the channel's own root layer where the engine has one, else of the registry image that the channel
names as its helper, by the digest in the lock. It has apt with Debian's keys, and gets mmdebstrap on top. It is no
layer: nothing stands on it, no key is made of it, and another one takes its place when its source is another.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from strix_finetune import context, debian, leftovers, names, netconf, programs
from strix_finetune.debian import DefaultSource
from strix_finetune.engine.base import BuildRequest, Engine, Mount, RunRequest
from strix_finetune.engine.lines import LineJoiner
from strix_finetune.errors import BuildFailed, EngineError, InputError, LockError, Problem
from strix_finetune.model import ContextFile, Stack
from strix_finetune.netconf import NetSettings
from strix_finetune.programs import Done, Say

# counted up when the Dockerfile below changes
FORMAT = 1
LABEL = f"{names.LABEL}.tools"
_REPOSITORY = f"{names.PREFIX}/tools"
# The copy leaves the labels of a layer behind: this is none. mmdebstrap leaves out files by a program in Python.
_DOCKERFILE = """\
FROM {source} AS debian
FROM scratch
COPY --from=debian / /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN --mount=type=bind,source=.strix-net,target=/mnt set -eu; . /mnt/env; export DEBIAN_FRONTEND=noninteractive; \\
    apt-get -q update; apt-get -q install --yes --no-install-recommends ca-certificates mmdebstrap python3; \\
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*
"""
_CAPTURE = 'folder=$1; shift; "$@" >"$folder/out" 2>"$folder/err"'
_HAND_OVER = 'file=$1 owner=$2; shift 2; "$@"; code=$?; [ ! -e "$file" ] || chown "$owner" "$file"; exit $code'


def lend(
    settings: NetSettings,
    stack: Stack,
    pinned: Mapping[str, str],
    open_engine: Callable[[], Engine],
    say: Say,
    *,
    locked: bool = False,
) -> NetSettings:
    """The settings with programs that this host can run: its own, or those of an image.

    `pinned`: name → digest of registry images by the lock; `locked` refuses what is missing there. `open_engine` is
    called when a program is borrowed and not before.
    """
    chosen = programs.choose(lambda: Borrowed(open_engine, stack, settings, pinned, say, locked))
    return replace(settings, programs=chosen)


def looked_up(settings: NetSettings) -> dict[str, str]:
    """Registry images whose digests were looked up to borrow from them: they belong into the lock."""
    who = programs.of(settings)
    found: dict[str, str] = {}
    for runner in (who.apt, who.mmdebstrap):
        if isinstance(runner, Borrowed):
            found |= runner.looked_up
    return found


@dataclass(slots=True)
class Borrowed:
    """A `Runner` in containers. `pinned`: name → digest of registry images by the lock; what is missing there is looked
    up once and noted, or refused when `locked`."""

    open_engine: Callable[[], Engine] = field(repr=False)
    stack: Stack = field(repr=False)
    settings: NetSettings = field(repr=False)
    pinned: Mapping[str, str]
    say: Say = field(repr=False)
    locked: bool = False
    looked_up: dict[str, str] = field(default_factory=dict)
    _image: str = ""
    _sources: dict[str, tuple[DefaultSource, ...]] = field(default_factory=dict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def mode(self) -> str:
        return "root"

    def mmdebstrap(self) -> str:
        return "mmdebstrap"

    def keyring(self) -> str:
        return netconf.KEYRING

    def default_sources(self, suite: str) -> tuple[DefaultSource, ...]:
        with self._lock:
            if suite not in self._sources:
                self._sources[suite] = debian.default_sources(suite, self)
            return self._sources[suite]

    def work(self, preferred: Path) -> AbstractContextManager[Path | None]:
        return nullcontext()

    def run(
        self, command: Sequence[str], env: Mapping[str, str], *, shared: Sequence[Path], cwd: Path | None = None
    ) -> Done:
        with leftovers.temporary(shared[0], "strix-borrowed", "work") as folder:
            folder.mkdir()
            request = self._request(("sh", "-c", _CAPTURE, "sh", str(folder), *command), env, shared, cwd)
            said: list[bytes] = []
            ended = self.open_engine().run(request, said.append)
            out, err = (_text(folder / name) for name in ("out", "err"))
        return Done(list(command), ended.exit_code, out, err + b"".join(said).decode("utf-8", "replace"))

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
        lines = LineJoiner()

        def feed(data: bytes) -> None:
            for line in lines.feed(data):
                on_line(line)

        engine = self.open_engine()
        if made and not engine.info.rootless:
            command = ("sh", "-c", _HAND_OVER, "sh", str(made), f"{os.getuid()}:{os.getgid()}", *command)
        ended = engine.run(self._request(tuple(command), env, shared, None, as_root=as_root), feed)
        for line in lines.flush():
            on_line(line)
        return ended.exit_code

    def _request(
        self,
        command: tuple[str, ...],
        env: Mapping[str, str],
        shared: Sequence[Path],
        cwd: Path | None,
        *,
        as_root: bool = False,
    ) -> RunRequest:
        image = self.image()
        info = self.open_engine().info
        mounts = [Mount(str(path), str(path)) for path in dict.fromkeys(shared)]
        if self.settings.ca_bundle:
            mounts.append(Mount(str(self.settings.ca_bundle), str(self.settings.ca_bundle), read_only=True))
        return RunRequest(
            image=image,
            command=command,
            env={"LC_ALL": "C.UTF-8", **self.settings.proxies, **env},
            mounts=tuple(mounts),
            # rootless Docker's root is the caller
            user="" if as_root or (info.rootless and info.kind == "docker") else f"{os.getuid()}:{os.getgid()}",
            keep_id=not as_root and info.rootless and info.kind == "podman",
            network="host" if self.settings.loopback else None,
            workdir=str(cwd) if cwd else "/",
        )

    def image(self) -> str:
        """The image of the tools, made where the engine has none of its source yet."""
        with self._lock:
            if not self._image:
                self._image = self._find(self.open_engine())
            return self._image

    def _find(self, engine: Engine) -> str:
        layers, helper = self._layers(engine), self.stack.channel.spec.bootstrap.helper
        sources = [*layers, *([_by_digest(helper, self.pinned[helper])] if helper in self.pinned else [])]
        there = [name for source in sources if engine.image(name := self._name(source))]
        if self.locked:
            # nothing new is made then, as long as there is anything at all
            there += [tag for image in engine.images(f"{LABEL}={self.stack.channel.name}") for tag in image.tags]
        if there:
            return there[0]
        if layers:
            return self._make(engine, layers[0], layers[0], lambda: layers[0])
        if not helper:
            raise InputError(
                "this host lacks apt, mmdebstrap or Debian's keys, and the engine has no image of the channel to borrow"
                " them from",
                cure="install apt, mmdebstrap and debian-archive-keyring, or name a Debian image as [bootstrap] helper",
            )
        digest = self._digest(helper, engine)
        by_digest = _by_digest(helper, digest)

        def pull() -> str:
            self.say(f"pulling {helper}, which lends this host apt and mmdebstrap")
            return engine.pull(by_digest, lambda status: None).id

        return self._make(engine, by_digest, helper, pull)

    def _layers(self, engine: Engine) -> list[str]:
        """The images of the channel's root layer, this target's newest first."""
        root = next(node.name for node in self.stack.nodes if node.parent is None)
        wanted = {names.LAYER: root, names.CHANNEL: self.stack.channel.name}
        found = [
            image for image in engine.images(names.KEY) if image.tags and wanted.items() <= dict(image.labels).items()
        ]
        newest = names.moving_ref(root, self.stack.target.id)
        return [image.id for image in sorted(found, key=lambda image: (newest not in image.tags, image.id))]

    def _name(self, source: str) -> str:
        """What the image of the tools that is made of `source` is called."""
        text = f"{FORMAT} {self.stack.channel.name} {source}"
        return f"{_REPOSITORY}:{hashlib.sha256(text.encode()).hexdigest()[: names.KEY_DIGITS]}"

    def _digest(self, name: str, engine: Engine) -> str:
        """The digest of the lock, else of what `name` is now: asked of its registry, or, where the name does not say
        which that is, of the engine that knows one."""
        known = self.pinned.get(name) or self.looked_up.get(name)
        if known:
            return known
        if self.locked:
            raise LockError(
                f"the lock lacks the image {name}, which this host needs because it has no apt of its own",
                cure="run 'strix-finetune lock' once without --locked",
            )
        if names.has_host(name):
            from strix_finetune.resolve import image

            self.looked_up[name] = image.digest(name, self.settings, self.say)
        else:
            self.looked_up[name] = self._served_as(name, engine)
        return self.looked_up[name]

    def _served_as(self, name: str, engine: Engine) -> str:
        """Pull a short name from wherever this engine finds it; returns the digest by which it is served there."""
        self.say(f"pulling {name}, which lends this host apt and mmdebstrap")
        try:
            pulled = engine.pull(name, lambda status: None)
        except EngineError as error:
            cure = "install apt, mmdebstrap and debian-archive-keyring, or let the engine's settings say where it is"
            raise EngineError(Problem(error.problems[0].message, cure=cure)) from error
        if not pulled.digests:
            raise EngineError(Problem(f"{engine.info.kind} does not say by which digest {name} is served"))
        return pulled.digests[0]

    def _make(self, engine: Engine, identity: str, shown: str, source: Callable[[], str]) -> str:
        channel, name = self.stack.channel.name, self._name(identity)
        image = source()
        self.say(f"making an image of Debian's tools out of {shown[:60]}")
        # an image without a name cannot be built upon
        temporary = f"{_REPOSITORY}:from-{name.rpartition(':')[2]}"
        engine.tag(image, temporary)
        try:
            files = [ContextFile("Dockerfile", _DOCKERFILE.format(source=temporary).encode()), *self._network()]
            request = BuildRequest(
                lambda: context.tar(files),
                {LABEL: channel},
                build_args=dict(self.settings.proxies),
                network="host" if self.settings.loopback else None,
            )
            built = engine.build(request, lambda event: None)
        except BuildFailed as error:
            said = next((line for line in reversed(error.log_tail) if line.startswith("E: ")), str(error))
            what = said.removeprefix("E: ").rstrip(".")
            raise BuildFailed(
                Problem(f"Debian's tools cannot be had out of {shown[:60]}: {what}", cure="check the network"),
                log_tail=error.log_tail,
            ) from error
        finally:
            engine.untag(temporary)
        engine.tag(built, name)
        for other in engine.images(f"{LABEL}={channel}"):
            for tag in other.tags:
                if tag != name:
                    engine.untag(tag)
        return name

    def _network(self) -> Iterator[ContextFile]:
        apt = self.stack.channel.spec.apt
        suites = netconf.Suites((apt.suite,), tuple(apt.components))
        for file in netconf.files(self.settings, suites=suites, uv=False):
            yield ContextFile(f"{netconf.FOLDER}/{file.path}", file.source, file.executable)


def _by_digest(name: str, digest: str) -> str:
    tagged = ":" in name.rpartition("/")[2]
    return f"{name.rpartition(':')[0] if tagged else name}@{digest}"


def _text(path: Path) -> str:
    return path.read_text("utf-8", errors="replace") if path.is_file() else ""
