"""A normal user of this machine, made for a test and removed after it, with a copy of the driver and the image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strix_finetune.engine.podman_conf import HostFacts, configuration

_COPIED = ("src", "images", "recipes", "toolbox")


@dataclass(frozen=True)
class Somebody:
    """Who may use nothing but what is theirs. `place`: a folder that they can read, with the driver in it."""

    name: str
    uid: int
    home: Path
    runtime: Path
    place: Path
    python: str

    def run(
        self,
        *command: str,
        stdin: int = subprocess.DEVNULL,
        timeout: float = 900,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command as this user with what a bare session has: no SHELL. Fail with all that it printed."""
        bare = {
            "HOME": str(self.home),
            "USER": self.name,
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "XDG_RUNTIME_DIR": str(self.runtime),
            "PYTHONPATH": f"{self.place}/src:{self.place}/site-packages",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [*self._as, *command],
            cwd=cwd or self.home,
            env=bare | dict(env or {}),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-8000:]}"
        return done.stdout

    def strix(self, *arguments: str, cwd: Path | None = None) -> str:
        return self.run(self.python, "-m", "strix_finetune", *arguments, cwd=cwd)

    def toolbox(self, *arguments: str) -> str:
        """Toolbx as this user's shell would start it."""
        return self.run("env", "SHELL=/bin/sh", "toolbox", *arguments)

    @property
    def _as(self) -> list[str]:
        # env is the program that begins without root's capabilities, which setpriv itself still has
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--init-groups", "env"]


@contextmanager
def somebody(clone: Path, *groups: str) -> Iterator[Somebody]:
    """Make the user, who is in these groups besides; with the user goes every process and every file."""
    name = f"strix-e2e-{os.getpid()}"
    more = ["--groups", ",".join(groups)] if groups else []
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", *more, name], check=True)
    place = Path(tempfile.mkdtemp(prefix="strix-somebody-"))
    try:
        uid = int(subprocess.run(["id", "-u", name], capture_output=True, text=True, check=True).stdout)
        place.chmod(0o755)
        for folder in _COPIED:
            shutil.copytree(clone / folder, place / folder)
        site = next((clone / ".venv/lib").glob("python3.*/site-packages"))
        shutil.copytree(site, place / "site-packages")
        runtime = place / "run"
        runtime.mkdir(mode=0o700)
        os.chown(runtime, uid, uid)
        home = Path("/home") / name
        made = Somebody(name, uid, home, runtime, place, _python(uid))
        conf = configuration(HostFacts.read(os.environ), root=False)
        made.run("mkdir", "-p", ".config/containers")
        # without fuse-overlayfs Podman 4.3 takes vfs, by which an image of 1.3 GB takes 10 GB and each container 1.3
        for name_of, text in (("containers.conf", conf), ("storage.conf", '[storage]\ndriver = "overlay"\n')):
            file = home / ".config/containers" / name_of
            file.write_text(text)
            os.chown(file, uid, uid)
        yield made
    finally:
        _end(name)
        shutil.rmtree(place, ignore_errors=True)


def _python(uid: int) -> str:
    """An interpreter of our own version that this user may run; a tester's own may lie in a private home."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    code = "import sys; print(f'{sys.version_info.major}.{sys.version_info.minor}')"
    for python in (os.path.realpath(sys.executable), f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        done = subprocess.run(
            ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env", python, "-I", "-c", code],
            capture_output=True,
            text=True,
        )
        if done.stdout.strip() == version:
            return python
    raise AssertionError(f"no Python {version} that another user may run; install Debian's")


def _end(name: str) -> None:
    """Remove a user with the processes of this user alone, and the home with files of mapped ids."""
    uid = subprocess.run(["id", "-u", name], capture_output=True, text=True, check=True).stdout.strip()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == int(uid):
                os.kill(int(path.name), 9)
        except OSError:
            continue
    for _ in range(50):
        done = subprocess.run(["userdel", "--remove", name], capture_output=True, text=True)
        if done.returncode in (0, 6, 12):  # done, gone, home not removed
            break
        time.sleep(0.1)
    shutil.rmtree(Path("/home") / name, ignore_errors=True)
