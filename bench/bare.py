"""The README's first command on a machine with nothing: no engine, no Python, an empty home, empty caches.

The machine is a privileged container of a minimal Debian that has only git and make, with a volume for the engine
that `make demo` installs in it. It borrows this host's sources of packages and its CA bundle, and nothing else. The
commands: `make demo`, then again, then again without .venv. Needs root, mmdebstrap and Docker.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.measure import ROOT, run, table

IMAGE = "localhost/strix-bench/bare"
BORROWED = ("/etc/apt", "/etc/pip.conf", "/etc/ssl/certs", "/usr/local/share/ca-certificates")
VARIABLES = ("PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "http_proxy", "https_proxy")


def main() -> None:
    if os.geteuid() != 0:
        raise SystemExit("a machine inside a machine needs root")
    with machine() as (name, clone):
        commands = {
            "make demo, nothing installed or cached": ["make", "demo"],
            "again": ["make", "demo"],
            "again, without .venv": ["sh", "-c", "rm -rf .venv && make demo"],
        }
        rows: list[tuple[str, list[float]]] = []
        for title, command in commands.items():
            rows.append((title, [run(["docker", "exec", "--workdir", clone, name, *command])]))
        table(rows)


@contextlib.contextmanager
def machine() -> Iterator[tuple[str, str]]:
    """A running machine: its container's name, and the folder of the clone in it."""
    name = f"strix-bench-bare-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="strix-bare-") as folder:
        tar = Path(folder, "root.tar")
        packages = "--include=ca-certificates,git,make"
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", packages, _suite(), str(tar)], check=True)
        subprocess.run(["docker", "import", str(tar), IMAGE], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), f"{folder}/clone"], check=True)
        borrowed = [f"--volume={path}:{path}:ro" for path in BORROWED if Path(path).exists()]
        passed = [f"--env={key}" for key in os.environ if key.startswith(VARIABLES)]
        start = ["docker", "run", "--detach", "--name", name, *borrowed, *passed, *_privileges()]
        start += [f"--volume={name}:/var/lib/docker", f"--volume={folder}/clone:/root/strix-finetune"]
        try:
            subprocess.run([*start, "--init", IMAGE, "sleep", "infinity"], check=True, stdout=subprocess.DEVNULL)
            yield name, "/root/strix-finetune"
        finally:
            for command in (["rm", "--force", "--volumes", name], ["volume", "rm", name], ["rmi", IMAGE]):
                subprocess.run(["docker", *command], stdout=subprocess.DEVNULL)


def _privileges() -> list[str]:
    """What an engine needs in a container: `--privileged` asks for more, which not every host has to give."""
    added = [f"--cap-add={name}" for name in ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SYS_MODULE", "DAC_READ_SEARCH")]
    unconfined = [f"--security-opt={what}=unconfined" for what in ("seccomp", "apparmor", "systempaths")]
    return [*added, *unconfined, "--volume=/sys/fs/cgroup:/sys/fs/cgroup"]


def _suite() -> str:
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text("utf-8").splitlines() if "=" in line
    )
    return release.get("VERSION_CODENAME", "stable")
