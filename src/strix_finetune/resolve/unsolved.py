"""Why a set of wheels cannot be had, in one sentence: what is missing, who asks for it, and what could be had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from packaging.specifiers import SpecifierSet

from strix_finetune.errors import LockError, Place, Problem, StrixError
from strix_finetune.resolve.catalog import Catalog
from strix_finetune.resolve.distfiles import File, versions
from strix_finetune.resolve.solve import ROCM, Information, Search, Unsolvable, Want
from strix_finetune.resolve.versions import is_pinned, order, satisfies, wants_previews

_SHOWN = 4
# versions of each project among which a complete set is looked for
_LOOKED_AT = 20


def explain(search: Search, causes: Sequence[Information], name: str, place: Place | None) -> LockError:
    """The fault of the set `name`, whose search ended with `causes`."""
    message = _reason(search.catalog, causes)
    return LockError(Problem(f"the wheels of '{name}' cannot be had: {message}", place, _cure(search)))


def _reason(catalog: Catalog, causes: Sequence[Information]) -> str:
    for cause in causes:
        if message := _alone(catalog, cause.requirement):
            return message + _asker(cause)
    releases = {info.requirement.rocm: info for info in causes if info.requirement.project == ROCM}
    if len(releases) > 1:
        told = [
            f"{info.parent} is for ROCm {rocm}" for rocm, info in sorted(releases.items(), key=lambda item: str(item))
        ]
        return ", and ".join(told[:2])
    asked = {
        f"{info.requirement} ({f'for {info.parent}' if info.parent else 'asked for'})"
        for info in causes
        if info.requirement.project != ROCM
    }
    return f"no file meets {' and '.join(sorted(asked)[:_SHOWN])}" if asked else "no versions fit together"


def _alone(catalog: Catalog, want: Want) -> str:
    """Why nothing meets a requirement taken by itself, or an empty string."""
    if want.never:
        return want.never
    if want.project == ROCM:
        return ""
    listing = catalog.listing(want.project)
    if not listing.served:
        return f"the index '{catalog.name}' does not serve '{want.project}'"
    if any(satisfies(file.version, want.specifier) for file in listing.files):
        return ""
    unfit = [version for version in listing.unfit if satisfies(version, want.specifier)]
    if unfit:
        where = f"Python {catalog.python} and glibc {catalog.glibc} on x86_64"
        return f"'{want.project}' {max(unfit, key=order)} has no file for {where}"
    yanked = [version for version in listing.yanked if satisfies(version, want.specifier)]
    if yanked:
        return f"'{want.project}' {max(yanked, key=order)} was withdrawn by its makers"
    has = f"it has {versions(listing.files)}" if listing.files else "it has no file that fits"
    return f"the index '{catalog.name}' has no {want} ({has})"


def _asker(cause: Information) -> str:
    return f", which {cause.parent} needs" if cause.parent and not cause.requirement.never else ""


def _cure(search: Search) -> str:
    """What could be had instead: the newest set that is complete."""
    roots = [
        replace(root, specifier=SpecifierSet(_loose(root))) if is_pinned(root.specifier) else root
        for root in search.roots
    ]
    try:
        found = Search(search.catalog, roots, search.follow, newest=_LOOKED_AT).run()
    except (Unsolvable, StrixError):
        # the fault itself is what matters
        return "try again later, or take another version"
    return f"the newest complete set has {_shown(roots, found)}"


def _loose(root: Want) -> str:
    # a range that names a pre-release admits others
    return ">=0.dev0" if wants_previews(root.project, root.specifier) else ""


def _shown(roots: Sequence[Want], files: Sequence[File]) -> str:
    named = [root.project for root in roots]
    shown = [f"{file.project} {file.version}" for name in named for file in files if file.project == name]
    return ", ".join(shown[:_SHOWN])
