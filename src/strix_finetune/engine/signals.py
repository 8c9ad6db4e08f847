"""Exit codes that stand for signals, in words."""

from __future__ import annotations

import signal


def signal_name(exit_code: int) -> str:
    """The signal behind an exit code of 128+n, by engine or shell; empty when it is none."""
    try:
        return signal.Signals(exit_code - 128).name if exit_code > 128 else ""
    except ValueError:
        return ""


def how_it_ended(exit_code: int) -> str:
    """ "failed with exit code 3", or "was killed by SIGSEGV (exit code 139)"."""
    name = signal_name(exit_code)
    return f"was killed by {name} (exit code {exit_code})" if name else f"failed with exit code {exit_code}"
