"""`rocm-sdk`: as much of the command as a build may call."""

import importlib.util
import sys
from pathlib import Path

from . import __version__


def main() -> None:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "version":
        print(__version__)
    elif word == "path":
        print(Path(importlib.util.find_spec("_rocm_sdk_core").origin).parent)
    else:
        sys.exit(f"rocm-sdk: the stand-in has version and path, not '{word}'")


if __name__ == "__main__":
    main()
