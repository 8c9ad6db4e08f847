"""The process's environment, made right before the first heavy import: caches that can be written, no telemetry."""

from __future__ import annotations

import logging
import math
import os
import stat
import tempfile
from pathlib import Path

from strix_train.errors import TrainError


def prepare(*, offline: bool) -> None:
    """Set what torch, transformers and Unsloth read at import. A variable that the user set is left alone.

    `offline`: the model is a folder, so nothing may be looked up on a hub. When HOME cannot be written (a container
    run under any uid), every cache goes to a private folder under the temporary folder.
    """
    quiet = {
        "UNSLOTH_DISABLE_STATISTICS": "1",
        "UNSLOTH_AUTO_INSTALL": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONNOUSERSITE": "1",
        "MPLBACKEND": "Agg",
        # Threads that spin while they wait cost a factor of ten as soon as another program wants a core too.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    granted = _granted_cores()
    if granted:
        quiet["OMP_NUM_THREADS"] = str(granted)
    if offline:
        quiet |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    # bitsandbytes warns on every CPU that it has not downloaded a faster kernel, which 16-bit training does not use.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    # ... and of 8 bits, in every layer of every step, that it computes in fp16, as it always does
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    own = settle()
    # Unsloth writes generated modules into the current folder unless it is told where.
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(own / "unsloth"))


def settle() -> Path:
    """Give the process a user's name and a HOME that can be written, where it has none; return our cache folder."""
    _name_the_user()
    own = cache_folder()
    if not _has_home():
        os.environ["HOME"] = str(own)
        for name, folder in _CACHES.items():
            os.environ.setdefault(name, str(own / folder))
    return own


def cache_folder() -> Path:
    """Return our own cache: in the user's, or in a private folder where HOME cannot be written."""
    if not _has_home():
        return _private_folder()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(os.environ["HOME"]) / ".cache") / "strix-finetune"


def _has_home() -> bool:
    home = os.environ.get("HOME", "")
    return bool(home) and home != "/" and _writable(home)


_CACHES = {
    "XDG_CACHE_HOME": "cache",
    "HF_HOME": "huggingface",
    "MPLCONFIGDIR": "matplotlib",
    "TRITON_CACHE_DIR": "triton",
    "TRITON_HOME": "triton-home",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_HOME": "torch",
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen-cache",
}


def _granted_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the cores that the container's quota grants where those are fewer than it sees, else 0."""
    try:
        quota, _, period = (root / "cpu.max").read_text(encoding="ascii").partition(" ")
        granted = math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return 0
    return granted if 0 < granted < len(os.sched_getaffinity(0)) else 0


def _name_the_user() -> None:
    """getpass.getuser() fails for a uid without a passwd entry; torch's compiler cache asks it."""
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("USER", str(os.getuid()))
        os.environ.setdefault("LOGNAME", str(os.getuid()))


def _writable(folder: str) -> bool:
    """Whether a file can be made there; modes alone do not tell (read-only mounts, root)."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _private_folder() -> Path:
    """Return a folder under the temporary folder that is ours alone, kept between runs for its compiled kernels."""
    folder = Path(tempfile.gettempdir()) / f"strix-train-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
        return Path(tempfile.mkdtemp(prefix="strix-train-"))
    except OSError as error:
        raise TrainError(
            f"neither HOME nor {tempfile.gettempdir()} can be written ({error.strerror})",
            cure="set TMPDIR to a folder that can",
        ) from None
