"""Somebody with a fresh clone and an empty home."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# what `make demo` builds by itself: RCCL in minutes instead of a quarter of an hour
TRAINING = "images/profiles/training"


@dataclass(frozen=True)
class Stranger:
    """Someone with a clone of the repository in `clone`, a home with nothing in it, and this machine."""

    clone: Path
    home: Path

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The machine's environment without anything of the caller's own, and with what a login sets.

        Toolbx refuses to work without SHELL, which nobody sets for a job of CI.
        """
        shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
        dropped = ("XDG_", "STRIX_", "VIRTUAL_ENV", "PYTEST_", "MAKE", "MFLAGS", "PYTHON")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {"SHELL": shell} | kept | {"HOME": str(self.home)} | dict(more or {})

    def run(self, *command: str, timeout: float = 3000, env: Mapping[str, str] | None = None) -> str:
        """Run a command in the clone and return what it printed; fail with all of it when it fails."""
        done = subprocess.run(
            command,
            cwd=self.clone,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-8000:]}"
        return done.stdout

    def strix(self, *arguments: str) -> str:
        return self.run(str(self.clone / ".venv/bin/strix-finetune"), *arguments)
