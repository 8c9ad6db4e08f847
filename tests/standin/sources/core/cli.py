"""The programs of the stand-in's rocm-sdk-core."""

import os
import sys
from pathlib import Path


def rocminfo() -> None:
    program = Path(__file__).parents[1] / "_rocm_sdk_core/bin/rocminfo"
    os.execv(program, [str(program), *sys.argv[1:]])
