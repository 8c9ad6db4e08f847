"""Versions of AMD's wheels: which ROCm they are for, which of two is newer, and which are previews. Pure.

PEP 440 compares local versions by text where they are not numbers, so that `+rocm7.0` is newer than `+rocm10.0`, and
it does not look into them: `2.13.0+rocm10.1.0a20260823`, a nightly, counts as a release. Both are put right here.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

# ROCm's own parts have its version as their own
_PART = re.compile(r"rocm(?:-profiler|-sdk-.+)?|amdrocm-.+")
_LOCAL = re.compile(r"rocm(\d+(?:\.\d+)*(?:(?:a|b|rc|\.?dev)\d+)?)")
_NIGHTLY = re.compile(r"(?:a|dev)(20\d{6})(?!\d)")

Order: TypeAlias = tuple[Version, bool, Version, tuple[tuple[int, int, str], ...]]


def rocm_of(project: str, version: Version) -> Version | None:
    """The ROCm that a file of `project` (normalized) is for; None where its version does not say.

    "+rocm10.0.0" and "+git4cff872c.rocm10.0.0" say it, and so does any version of ROCm's own parts.
    """
    if _PART.fullmatch(project):
        return version
    found = _LOCAL.search(version.local or "")
    return Version(found[1]) if found else None


def order(version: Version) -> Order:
    """The key to sort by, oldest first: the public version, then the ROCm behind the "+", then what else is there."""
    public, local = Version(version.public), version.local or ""
    rocm = _LOCAL.search(local)
    rest = local[: rocm.start()] + local[rocm.end() :] if rocm else local
    pieces = re.findall(r"\d+|[^\d.]+", rest)
    natural = tuple((1, int(piece), "") if piece.isdigit() else (0, 0, piece) for piece in pieces)
    return public, bool(local), Version(rocm[1]) if rocm else Version("0"), natural


def is_preview(project: str, version: Version) -> bool:
    """Whether a file is a pre-release, by its own version or by that of the ROCm it is for."""
    rocm = rocm_of(project, version)
    return version.is_prerelease or (rocm is not None and rocm.is_prerelease)


def nightly(version: Version) -> str:
    """The date ("20260823") of a nightly build, or an empty string."""
    found = _NIGHTLY.search(str(version))
    return found[1] if found else ""


def wants_previews(project: str, specifier: SpecifierSet) -> bool:
    """Whether a range names a pre-release itself, and so asks for them."""
    return any(is_preview(project, version) for version in named(specifier))


def named(specifier: SpecifierSet) -> list[Version]:
    """The versions that a range names."""
    found = []
    for clause in specifier:
        try:
            found.append(Version(clause.version.removesuffix(".*")))
        except InvalidVersion:
            # "===" compares text
            continue
    return found


def is_pinned(specifier: SpecifierSet) -> bool:
    """Whether a range leaves one version: "==2.13.0", not "==2.13.*"."""
    return any(clause.operator in ("==", "===") and not clause.version.endswith(".*") for clause in specifier)


def satisfies(version: Version, specifier: SpecifierSet) -> bool:
    """Whether a version is in a range, whatever it says of pre-releases."""
    return specifier.contains(version, prereleases=True)
