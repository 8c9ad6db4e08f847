"""The stand-in's rocm_sdk: finds ROCm's libraries among the installed packages and loads them for a process."""

import ctypes
import importlib.util
import re
import warnings
from pathlib import Path

from ._dist_info import __version__ as __version__

# short name → (package, file)
LIBRARIES = {
    "amd_comgr": ("_rocm_sdk_core", "libamd_comgr.so*"),
    "amdhip64": ("_rocm_sdk_core", "libamdhip64.so*"),
    "hiprtc": ("_rocm_sdk_core", "libhiprtc.so*"),
    "hsa-runtime64": ("_rocm_sdk_core", "libhsa-runtime64.so*"),
    "roctx64": ("_rocm_sdk_core", "libroctx64.so*"),
    "hipblas": ("_rocm_sdk_libraries", "libhipblas.so*"),
    "hipblaslt": ("_rocm_sdk_libraries", "libhipblaslt.so*"),
    "hipfft": ("_rocm_sdk_libraries", "libhipfft.so*"),
    "hiprand": ("_rocm_sdk_libraries", "libhiprand.so*"),
    "hipsolver": ("_rocm_sdk_libraries", "libhipsolver.so*"),
    "hipsparse": ("_rocm_sdk_libraries", "libhipsparse.so*"),
    "miopen": ("_rocm_sdk_libraries", "libMIOpen.so*"),
    "rccl": ("_rocm_sdk_libraries", "librccl.so*"),
}
_loaded: dict[str, ctypes.CDLL] = {}


def find_libraries(*names: str) -> list[Path]:
    """The file of each library. Raises ModuleNotFoundError for a package that is missing."""
    found = []
    for name in names:
        if name not in LIBRARIES:
            raise ModuleNotFoundError(f"Unknown rocm library '{name}'")
        package, pattern = LIBRARIES[name]
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"Missing required rocm libraries: {package}")
        folder = Path(spec.origin).parent / "lib"
        files = sorted(folder.glob(pattern))
        if not files:
            raise FileNotFoundError(f"Could not find rocm library '{name}' at path '{folder}'")
        found.append(files[0])
    return found


def initialize_process(*, preload_shortnames=(), check_version="", fail_on_version_mismatch=False, **_more):
    """Load libraries for all that comes later, and compare the version with the one that the caller was built with."""
    for name, path in zip(preload_shortnames, find_libraries(*preload_shortnames), strict=True):
        if name not in _loaded:
            _loaded[name] = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    if check_version and not re.fullmatch(re.escape(check_version).replace(r"\*", ".*"), __version__):
        sentence = f"built with ROCm {check_version}, installed is ROCm {__version__}"
        if fail_on_version_mismatch:
            raise RuntimeError(sentence)
        warnings.warn(sentence, stacklevel=2)
