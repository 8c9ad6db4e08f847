"""The stand-in's `rocm`: like the real one, a source archive whose dependencies are known only where it is built."""

import os
import re
from pathlib import Path

from setuptools import setup

told = Path(__file__).with_name("src").joinpath("rocm_sdk/_dist_info.py").read_text()
known: dict[str, object] = {}
exec(told, known)
version, targets = known["__version__"], known["TARGETS"]
target = os.environ.get("ROCM_SDK_TARGET_FAMILY", known["DEFAULT"])
if target not in targets:
    raise SystemExit(f"ROCM_SDK_TARGET_FAMILY={target} is not available ({', '.join(targets)})")
if not re.fullmatch(r"gfx[0-9a-f]+", target):
    raise SystemExit(f"ROCM_SDK_TARGET_FAMILY={target} is no target")

setup(
    name="rocm",
    version=version,
    package_dir={"": "src"},
    packages=["rocm_sdk"],
    entry_points={"console_scripts": ["rocm-sdk = rocm_sdk.__main__:main"]},
    install_requires=[f"rocm=={version}", f"rocm-sdk-core=={version}"],
    extras_require={
        "libraries": [f"rocm-sdk-libraries=={version}"],
        "devel": [f"rocm-sdk-devel=={version}"],
        "device": [f"rocm-sdk-device-{target}=={version}"],
        **{f"device-{name}": [f"rocm-sdk-device-{name}=={version}"] for name in targets},
    },
)
