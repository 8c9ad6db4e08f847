"""Fill a folder with what a lock needs: only what is missing is fetched, and an interrupted run goes on."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from strix_finetune import archives, fetch, leftovers, programs
from strix_finetune.errors import InputError
from strix_finetune.events import Vendored
from strix_finetune.fetch import Gone
from strix_finetune.netconf import NetSettings
from strix_finetune.oci.descriptor import Descriptor
from strix_finetune.registry.faults import Missing
from strix_finetune.resolve import image
from strix_finetune.vendor import aptmirror, images, manifest, plan, steps, wheels
from strix_finetune.vendor.manifest import Entry, Manifest
from strix_finetune.workspace import Workspace

Say = Callable[[str], None]

_AT_ONCE = 4


def vendor(workspace: Workspace, settings: NetSettings, folder: Path, say: Say, *, renew: bool = False) -> Vendored:
    """Make `folder` hold all that the lock of the workspace's stack needs. `renew` asks for everything anew.

    Raises LockError where the lock is missing, lacks something, or names what is no longer served; FetchFailed or
    RegistryError where something cannot be had. What came until then stays, and the next call goes on from there.
    """
    began = time.monotonic()
    lock = plan.read_lock(workspace)
    layers = workspace.render(lock)
    name = f"{lock.channel}-{lock.target}"
    asks = steps.digest(workspace.stack, steps.read_steps(workspace.stack, layers))
    with manifest.held(folder):
        listed = _listed(folder, renew)

        def make(before: Manifest) -> Manifest:
            needed = plan.make(workspace, lock, layers, settings, say)
            return _begin(folder, before, name, needed)

        held = listed.locks.get(name)
        known = held is not None and not renew and (held.lock, held.asks) == (plan.lock_digest(lock), asks)
        if not known or not _signed(folder, listed, name):
            listed, known = make(listed), False
        work = _Work(workspace, settings, folder, say)
        try:
            fetched = work.fetch(listed.needs(name))
        except (Gone, Missing):
            if not known:
                raise
            # what the folder was begun with is gone; perhaps there is something newer that fits the lock
            listed = make(listed)
            fetched = work.fetch(listed.needs(name))
        listed = _finish(folder, listed, name)
        manifest.remove_parts(folder)
    files = listed.needs(name)
    size, fetched_size = sum(entry.size for entry in files), sum(entry.size for entry in fetched)
    seconds = time.monotonic() - began
    return Vendored(name, str(folder), len(files), size, len(fetched), fetched_size, seconds)


def _listed(folder: Path, renew: bool) -> Manifest:
    """What the folder holds by its manifest; with `renew` one that cannot be read counts as none."""
    if not (folder / manifest.NAME).is_file():
        return Manifest()
    try:
        return manifest.read(folder)
    except InputError:
        if not renew:
            raise
        return Manifest()


def _signed(folder: Path, listed: Manifest, name: str) -> bool:
    """Whether the archive's signed lists are there: they cannot be fetched again once the archive has moved on."""
    return all(
        fetch.is_whole(folder / entry.path, entry.sha256, entry.size)
        for entry in listed.needs(name)
        if entry.source == manifest.MADE_HERE and not entry.path.startswith(f"{wheels.ROOT}/")
    )


def _begin(folder: Path, before: Manifest, name: str, needed: plan.Needed) -> Manifest:
    """Write down what is to come, and what is there at once; take away what nobody needs any more."""
    made = [manifest.made(path, content) for path, content in needed.made.items()]
    after = before.with_lock(name, needed.entry, [*needed.files, *made])
    for path, content in needed.made.items():
        manifest.write(folder, path, content)
    after = _paged(folder, after)
    manifest.save(folder, after)
    manifest.remove_unlisted(folder, before, after)
    return after


def _paged(folder: Path, listed: Manifest) -> Manifest:
    """With the index pages of all files, which are written."""
    pages = wheels.pages(listed.files.values())
    for path, content in pages.items():
        entry = manifest.made(path, content)
        if not fetch.is_whole(folder / path, entry.sha256, entry.size):
            manifest.write(folder, path, content)
    return listed.with_pages(manifest.made(path, content) for path, content in pages.items())


def _finish(folder: Path, listed: Manifest, name: str) -> Manifest:
    """Note what has arrived, with sizes that no index told, and that all is there."""
    time = manifest.now()
    sizes = {entry.path: (folder / entry.path).stat().st_size for entry in listed.needs(name) if not entry.size}
    files = {path: replace(listed.files[path], size=size) for path, size in sizes.items()}
    listed = Manifest(listed.locks, {**listed.files, **files}).arrived(listed.locks[name].files, time)
    lock = listed.locks[name]
    if not lock.complete:
        listed = Manifest({**listed.locks, name: replace(lock, complete=True, time=time)}, listed.files)
    listed = _paged(folder, listed)
    if not (folder / manifest.NAME).is_file() or manifest.text(listed) != (folder / manifest.NAME).read_text("utf-8"):
        manifest.save(folder, listed)
    return listed


class _Stopped(Exception):
    """Another download failed, or the user has had enough."""


class _Work:
    """Fetches files of one folder."""

    def __init__(self, workspace: Workspace, settings: NetSettings, folder: Path, say: Say) -> None:
        self._workspace, self._settings, self._folder, self._say = workspace, settings, folder, say
        self._stop = threading.Event()
        # tokens of a registry hold for all its blobs
        self._registry = cache(lambda where: image.at(where, settings, say))

    def fetch(self, entries: Sequence[Entry]) -> list[Entry]:
        """Fetch those that are missing or not what they should be, and return them."""
        missing = [entry for entry in entries if not self._has(entry)]
        size = sum(entry.size for entry in missing)
        if not missing:
            return []
        total = sum(entry.size for entry in entries)
        self._say(
            f"{len(entries)} files, {total / 1e6:.0f} MB; to be fetched: {len(missing)} files, {size / 1e6:.0f} MB"
        )
        progress = _Progress(size, self._say)
        left = [entry for entry in missing if not self._linked(entry, progress)]
        apt = [entry for entry in left if entry.path.startswith("apt/")]
        if apt:
            mirror = programs.of(self._settings).mirror(self._settings.debian_mirror)
            aptmirror.fetch(apt, self._folder, mirror, self._settings, progress)
        self._download([entry for entry in left if not entry.path.startswith("apt/")], progress)
        return missing

    def _has(self, entry: Entry) -> bool:
        return fetch.is_whole(self._folder / entry.path, entry.sha256, entry.size)

    def _linked(self, entry: Entry, progress: _Progress) -> bool:
        """Take a file from this host where it has it: a folder of wheels, or what a build or a lock fetched."""
        cached = self._workspace.folders.cache / "archives" / entry.sha256
        if entry.source.startswith("file:"):
            cached = Path(unquote(urlsplit(entry.source).path))
            if not cached.is_file():
                raise Gone(f"{cached} is gone", cure="put it back, or run the command again with --renew")
        if not fetch.is_whole(cached, entry.sha256, entry.size):
            return False
        link(cached, self._folder / entry.path)
        progress(entry)
        return True

    def _download(self, entries: Sequence[Entry], progress: _Progress) -> None:
        self._stop.clear()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="vendor") as pool:
            jobs = [pool.submit(self._one, entry, progress) for entry in entries]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                self._stop.set()
                for job in jobs:
                    job.cancel()
                raise

    def _one(self, entry: Entry, progress: _Progress) -> None:
        target = self._folder / entry.path
        if entry.source.startswith(archives.SCHEMES):
            folders, apt = self._workspace.folders, self._workspace.stack.channel.spec.apt
            link(archives.get(entry.source, entry.sha256, entry.size, folders.cache, self._settings, apt), target)
        else:
            try:
                if entry.path.startswith(f"{images.ROOT}/"):
                    self._part(entry, target)
                else:
                    self._file(entry, target)
            except _Stopped:
                return
        progress(entry)

    def _part(self, entry: Entry, target: Path) -> None:
        """Fetch a part of a registry image."""
        wanted = Descriptor("application/octet-stream", f"sha256:{entry.sha256}", entry.size)
        self._registry(images.origin(entry.path)).download(wanted, target, lambda done: self._check(done, entry.size))

    def _file(self, entry: Entry, target: Path) -> None:
        in_python = entry.path.startswith(f"{wheels.ROOT}/{wheels.PYTHON}/")
        headers = wheels.credentials(entry.source, self._settings) if in_python else {}
        index = self._workspace.stack.channel.spec.indexes.get(entry.path.split("/")[1])
        absent = {404, 410, *(index.absent if index else ())}
        wanted = (entry.source, entry.sha256, entry.size, target, self._settings)
        fetch.resume(*wanted, headers=headers, plain=in_python, absent=absent, on_progress=self._check)

    def _check(self, done: int, size: int) -> None:
        if self._stop.is_set():
            raise _Stopped


class _Progress:
    """Says each tenth of the bytes that have come."""

    def __init__(self, size: int, say: Say) -> None:
        self._size, self._say = size, say
        self._done = self._told = 0
        self._lock = threading.Lock()

    def __call__(self, entry: Entry) -> None:
        with self._lock:
            self._done += entry.size
            tenth = 10 * self._done // self._size if self._size else 0
            if tenth > self._told:
                self._told = tenth
                self._say(f"{self._done / 1e6:.0f} of {self._size / 1e6:.0f} MB")


def link(source: Path, target: Path) -> None:
    """The file under another name; a copy where the file system cannot do that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with leftovers.temporary(target.parent, target.name) as part:
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
            part.chmod(0o644)
        part.replace(target)
