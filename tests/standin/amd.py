"""A release of AMD's packages as stubs: the names, versions, dependencies and places of the real ones.

The dependencies are those that the real metadata of torch 2.13.0+rocm10.0.0, torchvision 0.28.0+rocm10.0.0 and
rocm 10.0.0 state (read by others in 2026-09), spelling and quirks included: `rocm` asks for itself, `rocm-bootstrap`
is asked for without a version, and a target's extra names one pack or two.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.standin.device_code import code, side_file, split_library
from tests.standin.rocm_libraries import CORE, LIBRARIES, PRELOADED
from tests.standin.shared_object import shared_object
from tests.standin.wheels import Archive, sdist, wheel

_SOURCES = Path(__file__).parent / "sources"
# says in each stub that has one that it is none of AMD's
MARK = "strix-finetune-standin"

# the targets that the real release declares extras for
TARGETS = (
    *("gfx1010", "gfx1011", "gfx1012", "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"),
    *("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1200", "gfx1201"),
    *("gfx908", "gfx90a", "gfx942", "gfx950"),
)
# the second pack of torch, with the flash attention images of a family; not every target has one
FAMILIES = {"gfx110": "gfx110x", "gfx115": "gfx115x", "gfx120": "gfx12-0"}

_BALLAST = 1 << 19
_ACROSS = "$ORIGIN:$ORIGIN/../../_rocm_sdk_core/lib"


@dataclass(frozen=True, slots=True)
class Release:
    """Versions that belong together. `python` is the tag of the wheels with compiled code."""

    rocm: str = "10.0.0"
    torch: str = "2.13.0"
    vision: str = "0.28.0"
    audio: str = "2.11.0.2"
    triton: str = "3.8.0+git4cff872c"
    hip: str = "7.15.26333"
    python: str = "cp313"

    @property
    def local(self) -> str:
        return f"+rocm{self.rocm}"

    @property
    def torch_version(self) -> str:
        return self.torch + self.local

    @property
    def vision_version(self) -> str:
        return self.vision + self.local

    @property
    def triton_version(self) -> str:
        return f"{self.triton}.rocm{self.rocm}"

    @property
    def tag(self) -> str:
        return f"{self.python}-{self.python}-linux_x86_64"


RELEASE = Release()
NEWER = Release(rocm="10.1.0", torch="2.14.0", vision="0.29.0", triton="3.9.0+git11d5a2c0", hip="7.16.26401")
# on the older index
OLDER = Release("7.14.0", "2.11.0", "0.26.0", "2.11.0", "3.6.0+gitb1ad9b5f", "7.14.26203")
# of the days when HIP crashed on gfx1151 at its first call
KNOWN_BAD = Release(
    rocm="7.14.0a20260610", torch="2.12.0a0", vision="0.27.0a0", triton="3.7.0+git0f3b1c7a", hip="7.14.26101"
)


def archives(release: Release = RELEASE, targets: Iterable[str] = ("gfx1151",)) -> list[Archive]:
    """All packages of a release, with the device packs of these targets; other Pythons and systems as far as torch
    has them on the real index.
    """
    chosen = tuple(targets)
    found = [
        rocm(release),
        wheel("rocm-bootstrap", "0.1.0", {"rocm_bootstrap/__init__.py": '__version__ = "0.1.0"\n'}, tag="py3-none-any"),
        core(release),
        libraries(release),
        devel(release),
        triton(release),
        torch(release),
        vision(release),
        audio(release),
    ]
    for target in chosen:
        found += device(release, target)
    families = {family for target in chosen if (family := family_of(target))}
    found += [family_pack(release, family) for family in sorted(families)]
    found += elsewhere(release)
    return found


def family_of(target: str) -> str:
    """The family whose pack torch asks for beside the target's own, or nothing."""
    return FAMILIES.get(target[:-1], "")


def rocm(release: Release) -> Archive:
    """The source archive that picks the target where it is installed."""
    extras = {
        "libraries": [f"rocm-sdk-libraries=={release.rocm}"],
        "devel": [f"rocm-sdk-devel=={release.rocm}"],
        "device": [f"rocm-sdk-device-gfx942=={release.rocm}"],
        **{f"device-{target}": [f"rocm-sdk-device-{target}=={release.rocm}"] for target in TARGETS},
    }
    files = {
        "setup.py": (_SOURCES / "rocm/setup.py").read_text(),
        "src/rocm_sdk/__init__.py": (_SOURCES / "rocm/rocm_sdk.py").read_text(),
        "src/rocm_sdk/__main__.py": (_SOURCES / "rocm/main.py").read_text(),
        "src/rocm_sdk/_dist_info.py": f"__version__ = {release.rocm!r}\nTARGETS = {TARGETS!r}\nDEFAULT = 'gfx942'\n",
    }
    needs = [f"rocm=={release.rocm}", f"rocm-sdk-core=={release.rocm}"]
    return sdist(
        "rocm", release.rocm, files, requires=needs, extras=extras, dynamic=("Provides-Extra", "Requires-Dist")
    )


def core(release: Release) -> Archive:
    files: dict[str, bytes | str] = {
        "_rocm_sdk_core/__init__.py": "",
        "_rocm_sdk_core/bin/rocminfo": (_SOURCES / "core/rocminfo").read_text(),
        "rocm_sdk_core/__init__.py": "",
        "rocm_sdk_core/_cli.py": (_SOURCES / "core/cli.py").read_text(),
    }
    files |= {f"_rocm_sdk_core/lib/{name}": shared_object(name, functions) for name, functions in CORE.items()}
    # long enough that a download of it can break off, be slow and go on
    files["_rocm_sdk_core/share/ballast"] = random.Random(release.rocm).randbytes(_BALLAST)
    scripts = {"rocminfo": "rocm_sdk_core._cli:rocminfo"}
    return wheel("rocm-sdk-core", release.rocm, files, scripts=scripts, info={"STANDIN": MARK})


def libraries(release: Release) -> Archive:
    files: dict[str, bytes | str] = {"_rocm_sdk_libraries/__init__.py": ""}
    for soname, (binary, side, functions, needed) in LIBRARIES.items():
        if side:
            built = split_library(soname, binary, f"../.kpack/{side}_@GFXARCH@.kpack", functions, needed, _ACROSS)
        else:
            built = shared_object(soname, functions, needed=needed, runpath=_ACROSS)
        files[f"_rocm_sdk_libraries/lib/{soname}"] = built
    return wheel("rocm-sdk-libraries", release.rocm, files, requires=[f"rocm-sdk-core=={release.rocm}"])


def devel(release: Release) -> Archive:
    """Everything a compiler needs, packed in one file: of no use in a runtime, and to be kept out of it."""
    files: dict[str, bytes | str] = {
        "rocm_sdk_devel/__init__.py": "",
        "rocm_sdk_devel/_devel.tar": b"no archive, but as good as one here" * 99,
    }
    return wheel("rocm-sdk-devel", release.rocm, files, requires=[f"rocm-sdk-core=={release.rocm}"])


def triton(release: Release) -> Archive:
    files = {
        "triton/__init__.py": f'__version__ = "{release.triton.partition("+")[0]}"\n',
        "triton/backends/__init__.py": "",
        "triton/backends/amd/__init__.py": "",
        "triton/backends/amd/compiler.py": "# stand-in: no compiler\n",
        "triton/backends/amd/driver.py": "# stand-in: no driver\n",
        "triton/backends/nvidia/__init__.py": "",
    }
    points = {"triton.backends": {"amd": "triton.backends.amd", "nvidia": "triton.backends.nvidia"}}
    return wheel("triton", release.triton_version, files, tag=release.tag, points=points)


def torch(release: Release, tag: str = "") -> Archive:
    version = release.torch_version
    files: dict[str, bytes | str] = {
        "torch/__init__.py": (_SOURCES / "torch/init.py").read_text(),
        "torch/version.py": (
            f"__version__ = {version!r}\ndebug = False\ncuda = None\ngit_version = '{'0' * 40}'\n"
            f"hip = {release.hip!r}\nrocm = {release.rocm!r}\nxpu = None\n"
        ),
        "torch/_rocm_init.py": (
            "def initialize():\n    import rocm_sdk\n\n"
            f"    rocm_sdk.initialize_process(preload_shortnames={PRELOADED!r}, check_version={release.rocm!r})\n"
        ),
        "torch/lib/libtorch_cpu.so": shared_object("libtorch_cpu.so"),
        "torch/lib/libc10_hip.so": shared_object("libc10_hip.so", needed=["libamdhip64.so.7"]),
        "torch/lib/libtorch_hip.so": split_library(
            "libtorch_hip.so",
            "lib/libtorch_hip.so",
            "../.kpack/torch_@GFXARCH@.kpack",
            needed=["libamdhip64.so.7", "libhipblas.so.3", "libhipblaslt.so.1", "librccl.so.1", "libc10_hip.so"],
            runpath="$ORIGIN",
        ),
    }
    extras = {f"device-{target}": list(_packs("torch", version, target)) for target in TARGETS}
    extras["device-all"] = sorted({line for lines in extras.values() for line in lines})
    needs = [
        "filelock", "typing-extensions>=4.10.0", "sympy>=1.13.3", "networkx>=2.5.1", "jinja2", "fsspec>=0.8.5",
        'setuptools; python_version >= "3.12"', f"triton=={release.triton_version}; platform_system == \"Linux\"",
        f"rocm[libraries]=={release.rocm}", "rocm-bootstrap",
    ]  # fmt: skip
    return wheel(
        "torch",
        version,
        files,
        tag=tag or release.tag,
        requires=needs,
        extras=extras,
        scripts={"torchrun": "torch.distributed.run:main"},
        info={"STANDIN": MARK},
    )


def vision(release: Release) -> Archive:
    version = release.vision_version
    files: dict[str, bytes | str] = {
        "torchvision/__init__.py": "from .version import __version__ as __version__\n",
        "torchvision/version.py": f"__version__ = {version!r}\n",
        "torchvision/_C.so": split_library(
            "_C.so", "_C.so", ".kpack/torchvision_@GFXARCH@.kpack", needed=["libamdhip64.so.7"]
        ),
    }
    extras = {f"device-{target}": list(_packs("torchvision", version, target)) for target in TARGETS}
    needs = ["numpy", f"torch=={release.torch_version}", "pillow!=8.3.*,>=5.3.0"]
    return wheel("torchvision", version, files, tag=release.tag, requires=needs, extras=extras)


def audio(release: Release) -> Archive:
    files = {"torchaudio/__init__.py": f"__version__ = {release.audio + release.local!r}\n"}
    return wheel("torchaudio", release.audio + release.local, files, tag=release.tag)


def device(release: Release, target: str) -> Iterator[Archive]:
    """What differs from target to target: ROCm's pack, torch's and torchvision's."""
    archives = {side for _, side, _, _ in LIBRARIES.values() if side}
    files: dict[str, bytes | str] = {
        f"_rocm_sdk_libraries/.kpack/{side}_{target}.kpack": side_file(
            [binary for binary, where, _, _ in LIBRARIES.values() if where == side], target
        )
        for side in sorted(archives)
    }
    files[f"_rocm_sdk_libraries/lib/rocblas/library/TensileLibrary_{target}.co"] = code(target)
    files[f"_rocm_sdk_libraries/lib/rocblas/library/TensileLibrary_lazy_{target}.dat"] = b"\x80"
    needs = [f"rocm-sdk-libraries=={release.rocm}"]
    yield wheel(f"rocm-sdk-device-{target}", release.rocm, files, requires=needs)
    yield wheel(
        f"amd-torch-device-{target}",
        release.torch_version,
        {f"torch/.kpack/torch_{target}.kpack": side_file(["lib/libtorch_hip.so"], target)},
        tag=release.tag,
        requires=[f"torch == {release.torch_version}", f"rocm-sdk-device-{target} == {release.rocm}"],
    )
    yield wheel(
        f"amd-torchvision-device-{target}",
        release.vision_version,
        {f"torchvision/.kpack/torchvision_{target}.kpack": side_file(["_C.so"], target)},
        tag=release.tag,
        requires=[f"torchvision == {release.vision_version}", f"rocm-sdk-device-{target} == {release.rocm}"],
    )


def family_pack(release: Release, family: str) -> Archive:
    """Flash attention images of a family of targets."""
    images = f"torch/lib/aotriton.images/amd-{family.replace('-', '_')}"
    files = {f"{images}/flash/attn_fwd.aks2": b"no kernels here\n", f"{images}/flash/attn_bwd.aks2": b"nor here\n"}
    needs = [f"torch == {release.torch_version}"]
    return wheel(f"amd-torch-device-{family}", release.torch_version, files, tag=release.tag, requires=needs)


def elsewhere(release: Release) -> list[Archive]:
    """torch of the same version for other Pythons and systems: listed beside it, and not to be taken."""
    tags = (*(f"cp{v}-cp{v}-linux_x86_64" for v in (310, 312, 314)), f"{release.python}-{release.python}-win_amd64")
    return [torch(release, tag) for tag in tags]


def placeholders() -> list[Archive]:
    """What PyPI has under AMD's names: empty packages, and others that only bear the same name."""
    empty = [
        wheel(f"amd-torch-device-{target}", "0.0.1.dev0", {}, tag="py3-none-any") for target in ("gfx1151", "gfx1100")
    ]
    return [
        *empty,
        wheel("rocm", "0.1.0", {"rocm/__init__.py": ""}, tag="py3-none-any"),
        wheel("rocm-bootstrap", "0.3.0", {"rocm_bootstrap/__init__.py": ""}, tag="py3-none-any"),
    ]


def _packs(name: str, version: str, target: str) -> Iterator[str]:
    yield f"amd-{name}-device-{target} == {version}"
    if name == "torch" and (family := family_of(target)):
        yield f"amd-torch-device-{family} == {version}"
