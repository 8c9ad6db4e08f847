"""A copy of the definitions with a stand-in for AMD's servers, and the command line that works on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_finetune.mirrors import variable
from tests.standin.command import PREFIX, VARIABLE
from tests.standin.server import Standin
from tests.standin.tree import LEGACY

ROOT = Path(__file__).resolve().parents[2]
# The one step that is left out: a torch without tensors runs no program whose imports could be compiled.
STUBBED = {
    f"templates/{layer}/Dockerfile.j2": f'{{% extends "layer:{layer}" %}}\n{{% block byte_code %}}{{% endblock %}}\n'
    for layer in ("pytorch", "unsloth")
}


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended: its exit code, what it printed, and the events of --json where it was asked for them."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def smoke(self) -> dict[tuple[str, str], tuple[str, str]]:
        """(layer, test) → state and detail."""
        found = [event for event in self.events if event["event"] == "smoke-result"]
        return {(item["layer"], item["test"]): (item["state"], item["detail"]) for item in found}

    @property
    def sentence(self) -> str:
        """The one thing that went wrong, wherever it was said."""
        if not self.out.startswith("{"):
            return self.err
        return self.err + "".join(item["message"] for item in self.events if item["event"] == "layer-done")


@dataclass
class Place:
    """Definitions in `images`, caches and locks of its own, and images that bear no name which people type."""

    root: Path
    amd: Standin
    channel: str = "amd"

    @classmethod
    def made(cls, root: Path, amd: Standin, channel: str = "amd") -> Place:
        """A place with the one channel, and without a lock of it."""
        shutil.copytree(ROOT / "images", root / "images")
        channels = set((root / "images/channels").iterdir()) - {root / f"images/channels/{channel}.toml"}
        for file in (*channels, *(root / "images/locks").iterdir()):
            file.unlink()
        place = cls(root, amd, channel)
        place.override("stubs", {})
        return place

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def downloads(self) -> Path:
        """Where fetched files are kept, by sha256."""
        return self.root / "cache/strix-finetune/archives"

    def indexes(self) -> dict[str, str]:
        """The variables that put the stand-in in the place of each of the channel's indexes."""
        channel = tomllib.loads((self.images / f"channels/{self.channel}.toml").read_text())
        return {
            variable(name): self.amd.legacy if index["url"].endswith(LEGACY) else self.amd.index
            for name, index in channel["indexes"].items()
        }

    def environment(self) -> dict[str, str]:
        folders = {f"XDG_{name.upper()}_HOME": str(self.root / name) for name in ("cache", "state", "data")}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
        return {**os.environ, "PYTHONPATH": path, VARIABLE: PREFIX, **folders, **self.indexes()}

    def strix(
        self,
        command: str,
        *arguments: str,
        target: str = "gfx1151",
        override: str = "stubs",
        env: Mapping[str, str] | None = None,
    ) -> Said:
        """Run a command of the product with one of the overrides; no traceback may ever be seen."""
        where = ["--images", str(self.images), "--channel", self.channel, "--target", target, "--engine", "docker"]
        where += ["--override", str(self.root / "overrides" / override)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.standin.command", command, *where, *arguments],
            env={**self.environment(), **(env or {})},
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1500,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert "a fault in strix-finetune itself" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    def well(self, command: str, *arguments: str, target: str = "gfx1151", override: str = "stubs") -> Said:
        """The same for what must end well."""
        said = self.strix(command, *arguments, target=target, override=override)
        assert said.code == 0, f"{command} for {target} ended with {said.code}:\n{said.sentence[-4000:]}"
        return said

    def forget(self, sha256s: Iterable[str]) -> None:
        """Take files out of the download cache."""
        for sha256 in sha256s:
            (self.downloads / sha256).unlink(missing_ok=True)

    def locked(self, target: str = "gfx1151") -> dict[str, Any]:
        """The lock as it was written."""
        return tomllib.loads((self.images / f"locks/{self.channel}-{target}.toml").read_text())

    def override(self, name: str, files: Mapping[str, str | bytes]) -> str:
        """Write a user's changes, with what a stub cannot do left out; returns the name."""
        for path, content in {**STUBBED, **files}.items():
            file = self.root / "overrides" / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        return name
