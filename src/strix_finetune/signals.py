"""Exit statuses in words."""

from __future__ import annotations

import signal

_MEANING = {
    "SIGSEGV": "it crashed: a native library touched memory that is not its own",
    "SIGILL": "it met an instruction that this processor does not have",
    "SIGABRT": "it aborted itself",
    "SIGBUS": "a bus error, often a full /dev/shm",
    "SIGKILL": "killed from outside, most often for using too much memory",
    "SIGFPE": "an arithmetic fault",
}


def signal_name(code: int) -> str:
    """The signal behind an exit status of 128 + n, or an empty string."""
    try:
        return signal.Signals(code - 128).name if code > 128 else ""
    except ValueError:
        return ""


def describe_exit(code: int) -> str:
    """ "exit code 3", or "SIGSEGV (it crashed …)"."""
    name = signal_name(code)
    if not name:
        return f"exit code {code}"
    return f"{name} ({_MEANING[name]})" if name in _MEANING else name


def how_it_ended(code: int) -> str:
    """ "failed with exit code 3", or "was killed by SIGSEGV (exit code 139)"."""
    name = signal_name(code)
    return f"was killed by {name} (exit code {code})" if name else f"failed with exit code {code}"
