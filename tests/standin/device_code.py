"""Libraries with real GPU code, laid out as ROCm does it: inside the library, or in a side file of each target."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.standin.shared_object import shared_object
from tests.unit.codeobject_forge import HOST, bundle, ccob, kpack, reference

DATA = Path(__file__).parent / "data"
# what the side files leave behind in a library, bytes
_MOVED = 0x2000


def code(target: str) -> bytes:
    """A real code object for the target: one small kernel, compiled by ROCm's compiler (data/README.md)."""
    return (DATA / f"{target}.hsaco").read_bytes()


def side_file(binaries: Iterable[str], target: str) -> bytes:
    """A kpack archive of the target with one code object for each binary ("lib/librccl.so.1.0")."""
    return kpack([(f"{binary}#0", target, code(target)) for binary in binaries])


def split_library(
    soname: str, binary: str, side: str, functions: Iterable[str] = (), needed: Iterable[str] = (), runpath: str = ""
) -> bytes:
    """A library whose code lies in side files: `side` is their path from its folder, with @GFXARCH@ for the target."""
    sections = {".rocm_kpack_ref": reference(binary, [side])}
    return shared_object(soname, functions, needed=needed, runpath=runpath, sections=sections, moved_code=_MOVED)


def fat_library(
    soname: str, targets: Iterable[str], functions: Iterable[str] = (), needed: Iterable[str] = ()
) -> bytes:
    """A library with the code of these targets inside, compressed, as ROCm before the side files has it."""
    entries = {HOST: b"", **{f"hipv4-amdgcn-amd-amdhsa--{target}": code(target) for target in targets}}
    return shared_object(soname, functions, needed=needed, sections={".hip_fatbin": ccob(bundle(entries))})
