"""Windows' Linux: there the GPU is /dev/dxg, and a library of AMD's own speaks to it."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding

_LIBRARIES = (
    "opt/rocm/lib/librocdxg.so*",
    "opt/rocm-*/lib/librocdxg.so*",
    "usr/lib/x86_64-linux-gnu/librocdxg.so*",
    "usr/lib/librocdxg.so*",
    "usr/local/lib/librocdxg.so*",
)
_DXCORE = "usr/lib/wsl/lib/libdxcore.so"


def is_wsl(host: Host) -> bool:
    return "microsoft" in host.line("proc/sys/kernel/osrelease").lower()


def wsl(host: Host) -> Iterator[Finding]:
    if not is_wsl(host):
        return
    if not host.exists("dev/dxg") or not host.exists(_DXCORE):
        lacking = "/dev/dxg" if not host.exists("dev/dxg") else f"/{_DXCORE}"
        yield Finding(
            "blocks",
            f"this is WSL, and {lacking} is missing: Windows lends it no GPU",
            "update the Radeon driver of Windows and WSL itself",
            ("wsl.exe --update",),
        )
        return
    if host.env.get("HSA_ENABLE_DXG_DETECTION") == "0":
        yield Finding(
            "blocks",
            "HSA_ENABLE_DXG_DETECTION=0 forbids ROCm the only way to the GPU that WSL has",
            "unset it",
            ("unset HSA_ENABLE_DXG_DETECTION",),
        )
        return
    found = next((path for pattern in _LIBRARIES for path in host.glob(pattern)), "")
    if not found:
        yield Finding(
            "warning",
            "this is WSL, and librocdxg, through which ROCm speaks to /dev/dxg, is not installed",
            "install ROCm for WSL as AMD's guide says; the images do not have the library, so it is mounted into them",
        )
        return
    yield Finding(
        "advice",
        f"this is WSL with /dev/dxg and /{found}; for AMD that is a preview, and nothing here was ever run on it",
        "mount /dev/dxg, libdxcore.so and librocdxg.so into the container, and set HSA_ENABLE_DXG_DETECTION=1 for ROCm "
        "before 7.13",
    )


CHECKS = (
    Check(
        "wsl",
        "WSL has no /dev/kfd; whoever passes that device to a container there gets an error that names neither.",
        "https://github.com/ROCm/librocdxg",
        ("advice", "warning", "blocks"),
        wsl,
    ),
)
