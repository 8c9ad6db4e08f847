"""Installing without an index, by a real uv whose cache remembers one: the folder of wheels is all there is."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import uv

from strix_finetune.indexes import Indexes
from tests.fileserver import served
from tests.standin.wheels import wheel


def test_a_page_that_the_cache_remembers_is_not_asked(tmp_path: Path) -> None:
    wheels, site, cache = tmp_path / "wheels", tmp_path / "site", tmp_path / "cache"
    wheels.mkdir()
    archive = wheel("demo", "1.0", {"demo.py": ""})
    archive.save(wheels)
    digest = hashlib.sha256(archive.content).hexdigest()
    (tmp_path / "wanted.txt").write_text(f"demo==1.0 --hash=sha256:{digest}\n")
    (site / "demo").mkdir(parents=True)
    (site / "demo/index.html").write_text(f'<a href="{archive.filename}#sha256={digest}">{archive.filename}</a>')
    usual = {"UV_CACHE_DIR": str(cache), "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}

    def run(env: dict[str, str], *words: str) -> None:
        command = [uv.find_uv_bin(), *words, str(tmp_path / "wanted.txt"), "--no-deps", "--quiet"]
        done = subprocess.run(command, env={**clean, **usual, **env}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    with served(site) as url:
        run(Indexes(default=url).variables(""), "pip", "compile", "--generate-hashes")
    assert list(cache.rglob("demo.rkyv"))
    settings = Indexes(default=url, no_index=True).variables(str(wheels))
    assert settings["UV_OFFLINE"] == "1"
    target = ["--target", str(tmp_path / "target"), "--python", sys.executable]
    run(settings, "pip", "install", *target, "--require-hashes", "--requirements")
    assert (tmp_path / "target/demo.py").is_file()
