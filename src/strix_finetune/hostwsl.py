"""WSL2: no /dev/kfd, but /dev/dxg, which ROCm reaches through AMD's librocdxg and Microsoft's libdxcore.

Both are looked for by their names alone, so that they lie in a container where the loader looks last: a librocdxg of
the image's own ROCm, which must be of the same build as the rest of that, comes first
(https://rocm.docs.amd.com/projects/rocprofiler-sdk/en/develop/how-to/using-rocprofv3-on-wsl.html, 2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEVICE = "/dev/dxg"
DXCORE = "/usr/lib/wsl/lib/libdxcore.so"
# AMD's own place, then those of packages and of what was built by hand
BRIDGES = (
    "opt/rocm/lib/librocdxg.so*",
    "opt/rocm-*/lib/librocdxg.so*",
    "usr/lib/x86_64-linux-gnu/librocdxg.so*",
    "usr/lib/librocdxg.so*",
    "usr/local/lib/librocdxg.so*",
)
# inside the image
DXCORE_INSIDE = "/usr/lib/libdxcore.so"
BRIDGE_INSIDE = ("/usr/lib/librocdxg.so", "/usr/lib/librocdxg.so.1")
# ROCm before 7.13 looks for /dev/dxg only when it is told to
ENVIRONMENT = {"HSA_ENABLE_DXG_DETECTION": "1"}


@dataclass(frozen=True, slots=True)
class Wsl:
    """What WSL2 lends. `device`: empty where Windows lends no GPU; `dxcore`, `bridge`: libraries, empty without."""

    device: str = ""
    dxcore: str = ""
    bridge: str = ""

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        """(file of the host, path in the image) of each library."""
        bridge = [(self.bridge, inside) for inside in BRIDGE_INSIDE if self.bridge]
        return ((self.dxcore, DXCORE_INSIDE), *bridge) if self.dxcore else tuple(bridge)


def is_wsl(release: str) -> bool:
    """Whether a kernel's release is that of Microsoft's."""
    return "microsoft" in release.lower()


def find(root: Path = Path("/")) -> Wsl | None:
    """What this host lends; None where it is no WSL."""
    try:
        release = (root / "proc/sys/kernel/osrelease").read_text("ascii", "replace")
    except OSError:
        return None
    if not is_wsl(release):
        return None
    # links lead to the file itself: one that is mounted must be one
    bridges = (path.resolve() for pattern in BRIDGES for path in sorted(root.glob(pattern)))
    bridge = next((str(path) for path in bridges if path.is_file()), "")
    device, dxcore = (root / path.lstrip("/") for path in (DEVICE, DXCORE))
    return Wsl(str(device) if device.exists() else "", str(dxcore) if dxcore.exists() else "", bridge)
