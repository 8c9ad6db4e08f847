"""Vulnerability scanners of the user's: each reads a bill of materials, so none needs the image or an engine."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from strix_finetune.errors import InputError, Problem, WorkError, nearest
from strix_finetune.signals import describe_exit

# name → how it is called with the file of a bill. What they find is no failure of theirs: their exit codes differ
_CALLS: dict[str, tuple[str, ...]] = {
    "grype": ("sbom:{file}",),
    "trivy": ("sbom", "{file}"),
    "osv-scanner": ("scan", "source", "--lockfile", "{file}"),
}
# osv-scanner says 1 where it has found something
_FOUND = {"osv-scanner": (1,)}


def find(name: str) -> str:
    """The program. Raises InputError where there is none, in one sentence that names what would do."""
    if name and name not in _CALLS:
        raise InputError(f"there is no scanner '{name}'", cure=nearest(name, list(_CALLS)))
    for candidate in [name] if name else _CALLS:
        if found := shutil.which(candidate):
            return found
    missing = name or "no vulnerability scanner"
    problem = f"{missing} is {'not ' if name else ''}installed"
    raise InputError(
        Problem(problem, cure=f"install {' or '.join([name] if name else _CALLS)}; it reads the bill alone")
    )


def run(program: str, bill: str) -> int:
    """Scan a bill; the tool prints what it finds. Returns 0 where it did its work, 1 where it says that it found some.

    Raises WorkError where the tool itself failed.
    """
    name = Path(program).name
    with tempfile.TemporaryDirectory(prefix="strix-finetune-") as folder:
        # the name tells some of them the format
        file = Path(folder, "image.cdx.json")
        file.write_text(bill, "utf-8")
        code = subprocess.run(command(program, str(file)), check=False).returncode
    if code in _FOUND.get(name, ()):
        return 1
    if code:
        raise WorkError(f"{name} failed: {describe_exit(code if code > 0 else 128 - code)}")
    return 0


def command(program: str, file: str) -> Sequence[str]:
    return [program, *(word.format(file=file) for word in _CALLS[Path(program).name])]
