"""The folder of one run. Whatever stands in it under its final name is whole: files are written aside and renamed.

status.json comes last (report.html, which can be made again, may follow). A folder without it is of a run that goes
on, or that was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.errors import InputError, Problem


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Names and writes the parts of a run folder (an absolute path that exists)."""

    path: Path

    @property
    def log(self) -> Path:
        """What the libraries printed, and tracebacks."""
        return self.path / "log.txt"

    @property
    def metrics(self) -> Path:
        """One JSON object an optimizer step."""
        return self.path / "metrics.jsonl"

    @property
    def adapter(self) -> Path:
        """The trained adapter with its tokenizer."""
        return self.path / "adapter"

    @staticmethod
    def result_name(model: Any) -> str:
        """Return the name of the folder that gets a trained model: adapter, or model where every weight learned."""
        return "adapter" if hasattr(model, "peft_config") else "model"

    @property
    def result(self) -> Path:
        """The trained adapter or model, whichever is there."""
        return self.adapter if self.adapter.is_dir() or not (self.path / "model").is_dir() else self.path / "model"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie, as checkpoint-STEP."""
        return self.path / "checkpoints"

    def write(self, name: str, text: str) -> Path:
        """Write a file whole: aside, then renamed."""
        target = self.path / name
        aside = target.with_name(f".{target.name}.partial")
        try:
            aside.write_text(text, encoding="utf-8")
            aside.replace(target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        return target

    def write_json(self, name: str, value: Any) -> Path:
        """Write a JSON file whole."""
        return self.write(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def write_folder(self, name: str, fill: Callable[[Path], None]) -> Path:
        """Let `fill` write a folder aside, then put it in the place of `name`."""
        target, aside = self.path / name, self.path / f".{name}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            fill(aside)
            readable(aside)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        shutil.rmtree(target, ignore_errors=True)
        aside.replace(target)
        return target

    def read_json(self, name: str) -> Any:
        """Return a JSON file's value, or None where it is missing or broken."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def finish(self, state: str, **facts: Any) -> None:
        """Write status.json: done, failed or interrupted."""
        self.write_json("status.json", {"state": state, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **facts})

    @contextmanager
    def held(self) -> Iterator[None]:
        """While this lasts, no other process may train in the folder; a killed process lets go of it."""
        with self.log.open("a", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    Problem(
                        f"another process is training in {self.path}", cure="wait for it, or name another --run-dir"
                    )
                ) from None
            except OSError:
                pass  # a file system without locks
            yield

    def reopen(self) -> None:
        """Make the folder count as unfinished again."""
        (self.path / "status.json").unlink(missing_ok=True)


def readable(folder: Path) -> None:
    """Give a folder and its files the modes of the umask; safetensors writes its files for the owner only."""
    mask = os.umask(0o022)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def create(wanted: Path | None, output: Path, name: str) -> RunFolder:
    """Make the run folder: `wanted` itself, or OUTPUT/NAME-TIME. Raises InputError when it cannot be made."""
    if wanted is not None:
        folder = wanted.absolute()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                Problem(f"{folder} exists and is not an empty folder", cure="name another one, or add --resume")
            )
    else:
        folder = (output / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    stem, number = folder.name, 2
    while True:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(exist_ok=wanted is not None)
            probe = folder / ".probe"
            probe.touch()
            probe.unlink()
            return RunFolder(folder)
        except FileExistsError:
            if wanted is not None or not folder.is_dir():
                raise InputError(Problem(f"{folder.parent} is not a folder")) from None
            folder, number = folder.with_name(f"{stem}-{number}"), number + 1
        except OSError as error:
            raise InputError(
                Problem(
                    f"the run folder {folder} cannot be made: {error.strerror}",
                    cure="start in a folder that you can write, or give --run-dir",
                )
            ) from None


def find_unfinished(wanted: Path | None, output: Path, name: str) -> RunFolder:
    """Return the run to resume: `wanted`, or the newest unfinished one of this recipe. Raises InputError."""
    if wanted is not None:
        folder = RunFolder(wanted.absolute())
        if not folder.path.is_dir():
            raise InputError(Problem(f"there is no run folder {folder.path}", cure="leave --resume out to begin one"))
        if (folder.read_json("status.json") or {}).get("state") == "done":
            raise InputError(Problem(f"the run in {folder.path} is done", cure="leave --resume out to begin another"))
        return folder
    begun = ((_begun(path.name, name), RunFolder(path.absolute())) for path in _folders(output))
    found = [(when, run) for when, run in begun if when]
    found = [(when, run) for when, run in found if (run.read_json("status.json") or {}).get("state") != "done"]
    if not found:
        raise InputError(
            Problem(f"no unfinished run of '{name}' in {output.absolute()}", cure="leave --resume out to begin one")
        )
    return max(found, key=lambda each: each[0])[1]


def _folders(output: Path) -> list[Path]:
    return [path for path in output.iterdir() if path.is_dir()] if output.is_dir() else []


def _begun(folder: str, name: str) -> tuple[str, int] | None:
    """Return when a run of the recipe `name` began, by its folder's name as `create` makes it; None for any other.

    The folder's own time is no help: a page that is written again changes it.
    """
    found = re.fullmatch(rf"{re.escape(name)}-([0-9]{{8}}-[0-9]{{6}})(?:-([0-9]+))?", folder)
    return (found[1], int(found[2] or 1)) if found else None
