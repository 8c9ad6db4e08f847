"""`uv pip compile` on this host: with its network settings, and of this process's environment only what uv needs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from strix_finetune.netconf import NetSettings, uv_program

_KEPT = ("PATH", "HOME", "TMPDIR", "UV_CACHE_DIR", "XDG_CACHE_HOME", "LANG", "NETRC")


def compile_pins(
    words: Sequence[str], text: str, settings: NetSettings, work: Path, *, links: str = ""
) -> subprocess.CompletedProcess[str]:
    """Ask in the folder `work` for what `text` requires. `links`: a folder of wheels beside those of the settings."""
    env = {name: os.environ[name] for name in _KEPT if name in os.environ} | settings.uv_variables()
    if links:
        env["UV_FIND_LINKS"] = ",".join(found for found in (env.get("UV_FIND_LINKS", ""), links) if found)
    command = [str(uv_program()), "pip", "compile", "-", "--quiet", "--color", "never", *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, cwd=work, env=env)
