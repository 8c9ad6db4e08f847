"""Choose versions that fit together, the newest that do: resolvelib's search over what one index has.

Beside the requirements one rule holds: all files that name a ROCm name the same one, which for nightlies means the
same date. It is a project of its own to the search, so that it is backtracked over like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from resolvelib import AbstractProvider, BaseReporter, Resolver
from resolvelib.resolvers import Criterion, RequirementInformation, ResolutionImpossible, ResolutionTooDeep

from strix_finetune.resolve.catalog import Catalog
from strix_finetune.resolve.distfiles import File, Listing
from strix_finetune.resolve.versions import (
    is_pinned,
    is_preview,
    rocm_of,
    satisfies,
    wants_previews,
)

_ROUNDS = 400
# not the name of a project: it has a blank in it
ROCM = "the ROCm release"


@dataclass(frozen=True, slots=True)
class Want:
    """A requirement on a project (normalized name), or with `rocm` on the ROCm that everything is for.

    `never`: why nothing can meet it.
    """

    project: str
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    extras: frozenset[str] = frozenset()
    rocm: Version | None = None
    never: str = ""

    def __str__(self) -> str:
        extras = f"[{','.join(sorted(self.extras))}]" if self.extras else ""
        return f"{self.project}{extras}{self.specifier}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A file with some of its extras, or with `rocm` a ROCm release."""

    file: File | None
    extras: frozenset[str] = frozenset()
    rocm: Version | None = None

    @property
    def project(self) -> str:
        return self.file.project if self.file else ROCM

    def __str__(self) -> str:
        return f"{self.project} {self.file.version if self.file else self.rocm}"


Key: TypeAlias = tuple[str, frozenset[str]]
Information: TypeAlias = "RequirementInformation[Want, Choice]"


class Unsolvable(Exception):
    """No choice meets all requirements; `causes`: the requirements that cannot be met together."""

    def __init__(self, causes: Sequence[Information]) -> None:
        super().__init__(causes)
        self.causes = causes


@dataclass
class Search(AbstractProvider[Want, Choice, Key]):
    """`roots`: what is asked for. `follow`: patterns of names whose dependencies are followed as well.

    `held`: project → the version to keep where it still fits. `newest`: how many versions of a project are looked at.
    """

    catalog: Catalog
    roots: Sequence[Want]
    follow: Collection[str]
    held: Mapping[str, Version] = field(default_factory=dict)
    newest: int | None = None

    def run(self) -> tuple[File, ...]:
        """The files, by project. Raises Unsolvable, and FetchFailed where the index gives no answer."""
        first = _First()
        try:
            found = Resolver(self, first).resolve(self.roots, max_rounds=_ROUNDS)
        except (ResolutionImpossible, ResolutionTooDeep) as error:
            last = list(error.causes) if isinstance(error, ResolutionImpossible) else []
            # where nothing was left to choose, what failed first is the reason, and the rest follows from it
            exact = all(is_pinned(root.specifier) for root in self.roots)
            raise Unsolvable(first.causes if first.causes and (exact or not last) else last) from None
        files = {choice.file.project: choice.file for choice in found.mapping.values() if choice.file}
        return tuple(file for _, file in sorted(files.items()))

    def identify(self, requirement_or_candidate: Want | Choice) -> Key:
        return requirement_or_candidate.project, requirement_or_candidate.extras

    def get_preference(
        self,
        identifier: Key,
        resolutions: Mapping[Key, Choice],
        candidates: Mapping[Key, Iterator[Choice]],
        information: Mapping[Key, Iterator[Information]],
        backtrack_causes: Sequence[Information],
    ) -> Any:
        """What may move comes first, then what leaves least to choose, then what was asked for first."""
        wants = [info.requirement for info in information[identifier]]
        pinned = any(is_pinned(want.specifier) for want in wants)
        asked = [number for number, root in enumerate(self.roots) if root.project == identifier[0]]
        place = asked[0] if asked else len(self.roots)
        return identifier[0] != ROCM, identifier[0] in self.held, not pinned, place, identifier[0]

    def find_matches(
        self,
        identifier: Key,
        requirements: Mapping[Key, Iterator[Want]],
        incompatibilities: Mapping[Key, Iterator[Choice]],
    ) -> list[Choice]:
        project, extras = identifier
        wants = list(requirements[identifier])
        if any(want.never for want in wants):
            return []
        refused = list(incompatibilities[identifier])
        if project == ROCM:
            releases = {want.rocm for want in wants}
            found = [Choice(None, rocm=next(iter(releases)))] if len(releases) == 1 else []
            return [choice for choice in found if choice not in refused]
        # what is asked of the project with other extras, or none, holds for these as well
        others = [key for key in requirements if key[0] == project and key != identifier]
        wants += [want for key in others for want in requirements[key]]
        files = self.fitting(self.catalog.listing(project), wants)
        choices = [Choice(file, extras) for file in self._kept_first(project, files)[: self.newest]]
        return [choice for choice in choices if choice not in refused]

    def fitting(self, listing: Listing, wants: Iterable[Want]) -> list[File]:
        """The files that meet all wants, the newest first. Previews only where something of the set asks for them (it
        is for one ROCm, so that it is a preview as a whole), or where nothing else is there."""
        wants = list(wants)
        files = [
            file
            for file in listing.files
            if all(not want.never and satisfies(file.version, want.specifier) for want in wants)
        ]
        if any(wants_previews(want.project, want.specifier) for want in (*wants, *self.roots)):
            return files
        final = [file for file in files if not is_preview(file.project, file.version)]
        held = self.held.get(listing.project)
        return [file for file in files if file in final or file.version == held] or files

    def _kept_first(self, project: str, files: list[File]) -> list[File]:
        held = self.held.get(project)
        return sorted(files, key=lambda file: file.version != held)

    def is_satisfied_by(self, requirement: Want, candidate: Choice) -> bool:
        if requirement.never:
            return False
        if candidate.file is None:
            return requirement.rocm == candidate.rocm
        return satisfies(candidate.file.version, requirement.specifier)

    def get_dependencies(self, candidate: Choice) -> list[Want]:
        file = candidate.file
        if file is None:
            return []
        metadata = self.catalog.metadata(file)
        if metadata.empty:
            never = f"{file.link.file} is an empty placeholder: it installs nothing"
            return [Want(f"content of {file.project}", never=never)]
        wants = []
        rocm = rocm_of(file.project, file.version)
        if rocm is not None:
            wants.append(Want(ROCM, rocm=rocm))
        if candidate.extras:
            wants.append(Want(file.project, SpecifierSet(f"=={file.version}")))
        for extra in sorted(candidate.extras - metadata.extras):
            known = ", ".join(sorted(metadata.extras)[:6]) or "none"
            never = f"{file.project} {file.version} has no extra '{extra}' (it has {known})"
            wants.append(Want(f"extra {extra} of {file.project}", never=never))
        wants += [self._want(requirement) for requirement in self._needed(metadata.requires, candidate.extras)]
        return wants

    def _needed(self, requires: Iterable[Requirement], extras: frozenset[str]) -> Iterator[Requirement]:
        """The requirements that hold in the image and concern this set; the others are another set's business."""
        named = {root.project for root in self.roots}
        for requirement in requires:
            project = canonicalize_name(requirement.name)
            if project not in named and not any(fnmatchcase(project, pattern.lower()) for pattern in self.follow):
                continue
            if holds(requirement, self.catalog.python, extras):
                yield requirement

    def _want(self, requirement: Requirement) -> Want:
        want = want_of(requirement)
        if requirement.url:
            return Want(f"{want.project} elsewhere", never=f"'{want.project}' is wanted from {requirement.url}")
        return want


class _First(BaseReporter[Want, Choice, Key]):
    """Remembers where the search ended first."""

    def __init__(self) -> None:
        self.causes: list[Information] = []

    def rejecting_candidate(self, criterion: Criterion[Want, Choice], candidate: Choice) -> None:
        if not self.causes:
            self.causes = list(criterion.information)


def want_of(requirement: Requirement) -> Want:
    extras = frozenset(canonicalize_name(extra) for extra in requirement.extras)
    return Want(canonicalize_name(requirement.name), requirement.specifier, extras)


def holds(requirement: Requirement, python: str, extras: frozenset[str] = frozenset()) -> bool:
    """Whether the marker of a requirement is true in an image with CPython `python` ("3.13")."""
    if requirement.marker is None:
        return True
    environment = {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    return any(requirement.marker.evaluate(environment | {"extra": extra}) for extra in {"", *extras})
