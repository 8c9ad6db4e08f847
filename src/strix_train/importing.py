"""A GGUF file as a model folder that can be trained."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from strix_train import __version__
from strix_train.console import Console
from strix_train.errors import InputError, Problem, TrainError, at
from strix_train.ggufwords import mended
from strix_train.names import ModelName
from strix_train.runfolder import readable

# Raised when the same file would be imported in another way: folders of before are then made anew.
FORMAT = 2


def digest(path: Path) -> str:
    """Return the sha256 of a file, read as a stream."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def look(path: Path) -> None:
    """Check that a file begins like a GGUF file. Raises InputError."""
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
    except OSError as error:
        raise InputError(Problem(f"cannot be read: {error.strerror}", at(path))) from None
    if head[:4] != b"GGUF" or len(head) < 8:
        raise InputError(Problem("is not a GGUF file", at(path), "it would begin with the letters GGUF"))
    version = struct.unpack("<I", head[4:])[0]
    if version not in (2, 3):
        raise InputError(Problem(f"is GGUF of version {version}", at(path), "versions 2 and 3 can be read"))


def imported(path: Path) -> Path:
    """Return the folder that a GGUF file becomes when a recipe names it; another name when the file changes."""
    from strix_train import environment

    found = path.stat()
    told = f"{path.absolute()} {found.st_size} {found.st_mtime_ns}".encode()
    return environment.cache_folder() / "imported" / f"{path.stem}-{hashlib.blake2b(told, digest_size=5).hexdigest()}"


def ensure(model: ModelName, console: Console) -> None:
    """Make the folder of a model that is a GGUF file, unless it is there. Raises TrainError and InputError."""
    target = Path(model.source)
    if model.gguf is None or target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # processes that train together would all make it
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return
        console.fact("import", f"{model.gguf} becomes 16-bit weights in {target}, once")
        # in a process of its own: Unsloth has to be imported before transformers is
        command = [sys.executable, "-m", "strix_train", "import", str(model.gguf), str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        told = done.stderr.strip() or f"importing {model.gguf} ended with {done.returncode}"
        raise TrainError(told.splitlines()[-1].removeprefix("train: "))


def import_gguf(source: Path, target: Path, *, dtype: str, sha256: str | None) -> dict[str, Any]:
    """Write the model in `source` as a Hugging Face folder `target`, which must not exist, and return its facts.

    `dtype`: bf16, fp16 or fp32 of the weights written. The folder appears whole or not at all: it is written beside
    its place, loaded again, and renamed. Raises InputError and TrainError.
    """
    source, target = source.absolute(), target.absolute()
    if target.exists():
        raise InputError(Problem(f"{target} exists", cure="name a folder that does not"))
    look(source)
    found = digest(source)
    if sha256 and found != sha256.lower():
        raise InputError(Problem(f"has sha256 {found}, not {sha256.lower()}", at(source), "fetch the file again"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    except OSError as error:
        raise InputError(Problem(f"{target.parent} cannot be written: {error.strerror}")) from None
    try:
        facts = _convert(source, aside, dtype) | {"source": source.name, "sha256": found, "dtype": dtype}
        facts |= {"format": FORMAT, "strix_train": __version__, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        (aside / "import.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        readable(aside)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return facts


def _convert(source: Path, aside: Path, dtype: str) -> dict[str, Any]:
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise TrainError(f"import needs torch and transformers: {error}") from error
    from strix_train.backends.hf import dtype_of

    folder, name = str(source.parent), source.name
    try:
        tokenizer = mended(AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True), source)
        # Dequantised for good: a model that is still marked as quantised can be neither saved nor trained.
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=name,
            dtype=dtype_of(dtype),
            quantization_config=GgufConfig(dequantize=True),
            local_files_only=True,
        )
    except Exception as error:
        raise TrainError(
            f"{source}: cannot be converted: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
            cure="the file may be cut off, or of a model family that transformers does not read from GGUF",
        ) from error
    parameters = sum(weight.numel() for weight in model.parameters())
    model.save_pretrained(str(aside), safe_serialization=True)
    tokenizer.save_pretrained(str(aside))
    del model
    config = AutoConfig.from_pretrained(str(aside), local_files_only=True)
    again = AutoTokenizer.from_pretrained(str(aside), local_files_only=True)
    probe = "The quick brown fox, 7 × 6 = 42."
    if again(probe)["input_ids"] != tokenizer(probe)["input_ids"]:
        raise TrainError(f"{source}: the tokenizer did not survive the conversion")
    if again.chat_template != tokenizer.chat_template:
        raise TrainError(f"{source}: the chat template did not survive the conversion")
    with torch.device("meta"):
        expected = AutoModelForCausalLM.from_config(config)
    if sum(weight.numel() for weight in expected.parameters()) != parameters:
        raise TrainError(f"{source}: the written configuration does not describe the written weights")
    return {"model_type": config.model_type, "parameters": parameters, "chat_template": bool(again.chat_template)}
