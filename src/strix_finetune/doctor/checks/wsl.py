"""Windows' Linux: there the GPU is /dev/dxg, and a library of AMD's own speaks to it."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune import hostwsl
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding

_DXCORE = hostwsl.DXCORE.lstrip("/")


def is_wsl(host: Host) -> bool:
    return hostwsl.is_wsl(host.line("proc/sys/kernel/osrelease"))


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
    found = next((path for pattern in hostwsl.BRIDGES for path in host.glob(pattern)), "")
    if not found:
        yield Finding(
            "warning",
            "this is WSL, and librocdxg, through which ROCm speaks to /dev/dxg, is not installed",
            "install ROCm for WSL as AMD's guide says, unless the image's ROCm brings the library",
        )
        return
    yield Finding(
        "advice",
        f"this is WSL with /dev/dxg and /{found}; for AMD that is a preview, and nothing here was ever run on it",
        "use strix-finetune train, run and shell, which hand on /dev/dxg and both libraries; for other tools there is "
        "strix-finetune emit wsl",
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
