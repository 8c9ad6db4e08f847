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
    if not 128 < code < 160:
        return ""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return ""


def describe_exit(code: int) -> str:
    """ "exit code 3", or "SIGSEGV (it crashed …)"."""
    name = signal_name(code)
    if not name:
        return f"exit code {code}"
    return f"{name} ({_MEANING[name]})" if name in _MEANING else name
