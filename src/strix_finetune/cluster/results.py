"""The run folder of rank 0: the newest unfinished one on the head, and a copy of it here when the head is elsewhere.

A copy never takes anything away here: an earlier copy of that very run is brought up to date, and whatever else has its
name keeps it. The mark in a copy tells them apart.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from strix_finetune.cluster.reach import Reached
from strix_finetune.errors import InputError, Problem, WorkError

# $1: the folder of runs, $2: the recipe's name; prints the newest run of it that is not done. The digits are a date:
# the recipe qwen3 has nothing to do with the runs of qwen3-4b
_UNFINISHED = """
cd "$1" 2>/dev/null || exit 0
ls -1dt -- "$2"-[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]-[0-9]* 2>/dev/null | while IFS= read -r run; do
  grep -qs '"state": "done"' "./$run/status.json" || { printf '%s\\n' "$run"; exit; }
done
"""
# in a copy: the run that it is of, and its files as they were put there
MARK = ".copied.json"
# $1: the run folder; checkpoints are for going on, which is done there
_PACK = f'cd "$1" || exit 2; exec tar -cf - --exclude=./checkpoints --exclude=./{MARK} .'

# bytes of zero at the end of each archive
_END = 1024


def unfinished(head: Reached, runs: str, recipe: str) -> str:
    """The name of the run to go on with. Raises InputError where there is none."""
    found = head.run(["sh", "-c", _UNFINISHED, "sh", runs, recipe]).rstrip("\n")
    if not found:
        message = f"no unfinished run of '{recipe}' in {runs} on {head.node.name}"
        raise InputError(Problem(message, cure="leave --resume out to begin one"))
    return found


def fetch(head: Reached, run: str, target: Path) -> Path | None:
    """Copy a run folder of the head, without its checkpoints; returns where the copy is, None where nothing was in it.

    That is `target`, or the next free name, NAME-2, where `target` is something else than an earlier copy of that run,
    or one in which somebody changed what comes anew. What was added to an earlier copy stays in it. Raises WorkError.
    """
    aside = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        origin = _origin(head, run)
        why = _receive(head, run, aside)
        if not why:
            return _place(aside, target, origin) if any(aside.iterdir()) else None
    except OSError as error:
        why = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    message = f"the run folder {run} of {head.node.name} could not be copied: {why[:200]}"
    raise WorkError(Problem(message, cure=f"it is whole there; copy it to {target}"))


def _origin(head: Reached, run: str) -> str:
    """What no other run folder has, nor one that is made later with the same name; empty where it cannot be told."""
    done = head.try_run(["stat", "-c", "%i %W", run])
    return f"{head.node.name}:{run} {done.out.strip()}" if done.code == 0 else ""


class _Archive:
    """What tarfile reads of: it takes an archive that is cut between two files, or in a header, for whole."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.last = b""

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.last = (self.last + data)[-_END:]
        return data


def _receive(head: Reached, run: str, folder: Path) -> str:
    """Unpack all of it into `folder`; returns why it is not whole. Raises OSError where it cannot be written."""
    with head.popen(["sh", "-c", _PACK, "sh", run]) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.close()
        archive = _Archive(process.stdout)
        try:
            with tarfile.open(fileobj=archive, mode="r|") as tar:  # type: ignore[call-overload]
                for member in tar:
                    tar.extract(member, folder, filter="data")
            # what fills its last block up: tar would otherwise be told that nobody reads it
            while archive.read(1 << 16):
                pass
            why = "" if archive.last == bytes(_END) else "its end is missing"
        except tarfile.TarError as error:
            process.kill()
            why = str(error)
        except BaseException:
            process.kill()
            raise
        words = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
        code = process.wait()
    # 1 is tar's word for a file that grew meanwhile
    if not why and code not in (0, 1):
        why = f"tar ended with {code}"
    return words[-1] if why and words else why


def _place(aside: Path, target: Path, origin: str) -> Path:
    """Give what was unpacked its name, or put it into the earlier copy that has the name."""
    files = _files(aside)
    place, number = target, 2
    while os.path.lexists(place) and not _continues(place, origin, files):
        place, number = target.with_name(f"{target.name}-{number}"), number + 1
    known = {**_mark(place)[1], **files}
    (aside / MARK).write_text(json.dumps({"run": origin, "files": known}, indent=2) + "\n", encoding="utf-8")
    if not os.path.lexists(place):
        aside.rename(place)
        return place
    # file by file: whenever this is interrupted, all that was added is where it was
    for name in (*files, MARK):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (aside / name).replace(place / name)
    return place


def _continues(place: Path, origin: str, files: Mapping[str, str]) -> bool:
    """Whether this is an earlier copy of that run, and nobody's changes are where `files` would go."""
    run, known = _mark(place)
    if not origin or run != origin or place.is_symlink():
        return False
    for name in files:
        path = place / name
        folders = list(path.parents)[: name.count("/")]
        if any(each.is_symlink() or (each.exists() and not each.is_dir()) for each in folders):
            return False
        if os.path.lexists(path) and _state(path) != known.get(name):
            return False
    return True


def _mark(place: Path) -> tuple[str, dict[str, str]]:
    """The run that a folder is a copy of, and the state of its files then; both empty where it is no copy."""
    try:
        said = json.loads((place / MARK).read_text(encoding="utf-8"))
        return str(said["run"]), dict(said["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", {}


def _files(folder: Path) -> dict[str, str]:
    """All that are in it, links among them, by their names relative to it, with their states."""
    found = {}
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            if path.is_symlink() or not path.is_dir():
                found[path.relative_to(folder).as_posix()] = _state(path)
    return found


def _state(path: Path) -> str:
    """What differs after a change: kind, bytes, and time of change in ns."""
    state = path.lstat()
    return f"{stat.S_IFMT(state.st_mode):o} {state.st_size} {state.st_mtime_ns}"
