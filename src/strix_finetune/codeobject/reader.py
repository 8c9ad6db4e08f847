"""From a path to reports: one file, a wheel or zip, or a folder of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from . import bundle, elf, kpack, wheel
from .amdgpu import read_code_object
from .faults import CodeObjectError, UnknownFormat, Unreadable
from .host import read_host
from .limits import Ledger, Limits
from .model import Format, Report, SideReference, sort_targets
from .source import FileSource, Source

OnError = Callable[[CodeObjectError], None]
_DEFAULTS = Limits()


def inspect(path: str | os.PathLike[str], limits: Limits = _DEFAULTS) -> Report:
    """Read one file: a host library or program, a code object, an offload bundle, or a kpack archive.

    A library whose code was moved to side files is reported with what those that exist hold.
    Raises a CodeObjectError with one sentence for a file that is none of these, is damaged, or goes past `limits`.
    """
    name = os.fspath(path)
    ledger = Ledger(limits)
    try:
        with FileSource(name, ledger) as source:
            return read(source, name, ledger, name)
    except CodeObjectError as error:
        raise error.at(name) from None


def scan(path: str | os.PathLike[str], on_error: OnError | None = None, limits: Limits = _DEFAULTS) -> Iterator[Report]:
    """Report on a file, or on each file with device code in a wheel, zip or folder (wheels in it included).

    Nothing is unpacked to disk. `on_error` is given what goes wrong with one of several files, and the scan goes on;
    without it the first fault ends the scan. A path that is a single file always raises.
    """
    name = os.fspath(path)
    if Path(name).is_dir():
        yield from _scan_folder(name, on_error, limits)
    elif _magic(name) in wheel.MAGICS:
        yield from scan_archive(name, on_error, limits)
    else:
        yield inspect(name, limits)


def targets(path: str | os.PathLike[str], limits: Limits = _DEFAULTS) -> tuple[str, ...]:
    """The targets that a file, wheel or folder holds executable code for, in ascending order."""
    return sort_targets(target for report in scan(path, limits=limits) for target in report.targets)


def read(source: Source, name: str, ledger: Ledger, path: str | None) -> Report:
    """Read an open source; `path` is its place in the file system, for side files, or None."""
    head = source.read(0, min(len(bundle.PLAIN), source.size))
    sections: tuple[str, ...] = ()
    references: tuple[SideReference, ...] = ()
    kind: Format
    if head[:4] == elf.MAGIC:
        header = elf.read_header(source)
        if header.machine == elf.EM_AMDGPU:
            kind = "code object"
            read_code_object(source, "", "the file", ledger)
        else:
            kind = "elf"
            sections, references = read_host(source, header, path, ledger)
    elif head == bundle.PLAIN or head[:4] == bundle.COMPRESSED:
        kind = "bundle"
        bundle.read_region(source, "", ledger)
    elif head[:4] == kpack.MAGIC:
        kind = "kpack"
        kpack.read_kpack(source, ledger)
    elif head[:4] in wheel.MAGICS:
        raise UnknownFormat("is an archive of files", cure="scan() reads those")
    else:
        raise UnknownFormat(
            "is no ELF file, offload bundle, code object or kpack archive", cure="give a library, a wheel or a folder"
        )
    return Report(
        name,
        kind,
        source.size,
        sections,
        tuple(ledger.containers),
        tuple(ledger.objects),
        references,
        tuple(ledger.warnings),
    )


def _magic(path: str) -> bytes:
    with FileSource(path, Ledger(_DEFAULTS)) as source:
        return source.read(0, min(4, source.size))


def is_candidate(head: bytes) -> bool:
    """True for the first bytes of what may hold device code."""
    return head[:4] in (elf.MAGIC, bundle.COMPRESSED, kpack.MAGIC) or head.startswith(bundle.PLAIN)


def holds_something(report: Report) -> bool:
    """True when a file among many is worth a report."""
    return bool(report.code_objects or report.side_references)


def scan_archive(path: str, on_error: OnError | None, limits: Limits) -> Iterator[Report]:
    """Report on each member of a wheel or zip that holds device code."""
    with wheel.open_archive(path) as archive:
        for member in wheel.members(archive):
            name = f"{path}/{elf.printable(member.filename, 1024)}"
            ledger = Ledger(limits)
            try:
                source = wheel.MemberSource(archive, member, ledger)
                if not is_candidate(source.read(0, min(len(bundle.PLAIN), source.size))):
                    continue
                report = read(source, name, ledger, None)
                # Its length and checksum are only right once its end was seen.
                source.finish()
            except CodeObjectError as error:
                if on_error is None:
                    raise error.at(name) from None
                on_error(error.at(name))
                continue
            if holds_something(report):
                yield report


def _scan_folder(folder: str, on_error: OnError | None, limits: Limits) -> Iterator[Report]:
    def refuse(error: OSError) -> None:
        fault = Unreadable(f"cannot be read: {error.strerror}", path=str(error.filename))
        if on_error is None:
            raise fault
        on_error(fault)

    for parent, names, files in os.walk(folder, onerror=refuse):
        names.sort()
        for name in sorted(files):
            place = Path(parent, name)
            # A library is usually there under three names, two of them links to the third.
            if place.is_symlink() or not place.is_file():
                continue
            path = str(place)
            try:
                head = _head(path)
                if head[:4] in wheel.MAGICS and name.endswith(".whl"):
                    yield from scan_archive(path, on_error, limits)
                elif is_candidate(head):
                    report = inspect(path, limits)
                    if holds_something(report):
                        yield report
            except CodeObjectError as error:
                if on_error is None:
                    raise
                on_error(error)


def _head(path: str) -> bytes:
    with FileSource(path, Ledger(_DEFAULTS)) as source:
        return source.read(0, min(len(bundle.PLAIN), source.size))
