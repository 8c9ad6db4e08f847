"""llama.cpp's converter and programs, as an image has them. Nothing is ever fetched here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from strix_train.errors import InputError, Problem, TrainError

VARIABLE = "STRIX_LLAMA_CPP"
_PLACES = ("/opt/llama.cpp",)
CONVERTER = "convert_hf_to_gguf.py"
_CURE = f"use an image with the layer export, or set {VARIABLE} to a folder with llama.cpp's converter"


@dataclass(frozen=True, slots=True)
class Tools:
    """`folder`: the converter with its modules `conversion` and `gguf`. `quantize`, `server`: programs, or None."""

    folder: Path
    quantize: Path | None
    server: Path | None


def find(quantization: str) -> Tools:
    """Return the tools that an export needs. Raises InputError in one sentence where they are absent."""
    named = os.environ.get(VARIABLE)
    places = [Path(named)] if named else [Path(place) for place in _PLACES]
    folder = next((place for place in places if (place / CONVERTER).is_file()), None)
    if folder is None:
        raise InputError(Problem(f"there is no {CONVERTER} here, so no GGUF file can be made", cure=_CURE))
    tools = Tools(folder, _program(folder, "llama-quantize"), _program(folder, "llama-server"))
    if quantization == "q4_k_m" and tools.quantize is None:
        raise InputError(
            Problem(
                "there is no llama-quantize here, which q4_k_m needs",
                cure="take --quant q8_0, or an image whose layer export has llama.cpp's programs",
            )
        )
    return tools


def _program(folder: Path, name: str) -> Path | None:
    for place in (folder, folder / "bin"):
        if os.access(place / name, os.X_OK) and (place / name).is_file():
            return place / name
    found = shutil.which(name)
    return Path(found) if found else None


def convert(tools: Tools, model: Path, target: Path, outtype: str) -> None:
    """Write a model folder as a GGUF file. `outtype`: f16 or q8_0. Raises TrainError."""
    paths = [str(tools.folder), str(tools.folder / "gguf-py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    environment.pop("NO_LOCAL_GGUF", None)
    command = [sys.executable, str(tools.folder / CONVERTER), str(model), "--outfile", str(target)]
    _run([*command, "--outtype", outtype], environment, "llama.cpp's converter")


def quantize(tools: Tools, source: Path, target: Path, quantization: str) -> None:
    """Write a GGUF file with fewer bits. Raises TrainError."""
    assert tools.quantize is not None
    _run([str(tools.quantize), str(source), str(target), quantization.upper()], dict(os.environ), "llama-quantize")


def _run(command: list[str], environment: dict[str, str], name: str) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    # into the log that the caller keeps
    print(done.stdout, done.stderr, sep="\n", file=sys.stderr, flush=True)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else f"exit status {done.returncode}"
        raise TrainError(f"{name} failed: {reason}", cure="not every model family can be converted")
