"""What a file turned out to hold: values only, no reading."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Feature = Literal["unsupported", "any", "off", "on"]
Kind = Literal["elf", "bitcode", "spirv", "unknown"]
Format = Literal["elf", "code object", "bundle", "kpack"]


@dataclass(frozen=True, slots=True)
class CodeObject:
    """Device code for one target.

    `target`: "gfx1151", "gfx11-generic"; for an ELF it comes from its flags, not from the label beside it.
    `size`: bytes of the whole object, decompressed. `code_size`: bytes of machine code in it.
    `wave_sizes`: lanes per wave that its kernels were compiled for, ascending; empty when it lists no kernel.
    `abi`: code object version (2 to 6), 0 for what is not an ELF.
    `label`: what the bundle or archive calls it. `source`: where in the file it lies.
    """

    target: str
    xnack: Feature
    sramecc: Feature
    wave_sizes: tuple[int, ...]
    size: int
    code_size: int
    kernels: int
    kind: Kind
    abi: int
    label: str
    source: str

    @property
    def wave_size(self) -> int | None:
        """The one wave size of all kernels, or None when there is none or more than one."""
        return self.wave_sizes[0] if len(self.wave_sizes) == 1 else None

    @property
    def target_id(self) -> str:
        """The target with the features that were fixed at compile time, as in "gfx90a:sramecc+:xnack-"."""
        marks = {"on": "+", "off": "-"}
        features = (("sramecc", self.sramecc), ("xnack", self.xnack))
        return self.target + "".join(f":{name}{marks[value]}" for name, value in features if value in marks)

    @property
    def runs(self) -> bool:
        """True when a GPU can execute something of it: linked machine code, not bitcode and not an empty shell."""
        return self.kind == "elf" and self.code_size > 0


@dataclass(frozen=True, slots=True)
class Container:
    """One offload bundle or archive.

    `offset`: bytes from the start of `section` (of the file when that is empty). `size` is what it takes there and
    `raw_size` what that is decompressed. `encoding`: "plain", "ccob v3 zstd", "kpack zstd-per-kernel", …
    """

    section: str
    offset: int
    size: int
    raw_size: int
    encoding: str
    entries: int


@dataclass(frozen=True, slots=True)
class SideReference:
    """Device code kept outside the file: the name it has there, and where the runtime looks (@GFXARCH@ is a target)."""

    name: str
    search_paths: tuple[str, ...]
    found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Everything found in one file. `path` of a wheel's member is "wheel.whl/member"."""

    path: str
    format: Format
    size: int
    sections: tuple[str, ...]
    containers: tuple[Container, ...]
    code_objects: tuple[CodeObject, ...]
    side_references: tuple[SideReference, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets that a GPU finds executable code for, in ascending order."""
        return sort_targets(item.target for item in self.code_objects if item.runs)

    def summaries(self) -> tuple[TargetSummary, ...]:
        """One line a target id, in ascending order."""
        groups: dict[str, list[CodeObject]] = {}
        for item in self.code_objects:
            groups.setdefault(item.target_id, []).append(item)
        return tuple(_summary(target_id, groups[target_id]) for target_id in sort_targets(groups))

    def to_json(self) -> dict[str, Any]:
        """Plain values for json.dumps; keys are the field names, plus `targets` and `summaries`."""
        found = asdict(self)
        found["targets"] = list(self.targets)
        found["summaries"] = [asdict(summary) for summary in self.summaries()]
        return found


@dataclass(frozen=True, slots=True)
class TargetSummary:
    """All code of one target id in a file; sizes in bytes."""

    target_id: str
    target: str
    objects: int
    size: int
    code_size: int
    kernels: int
    wave_sizes: tuple[int, ...]
    runs: bool


def _summary(target_id: str, items: list[CodeObject]) -> TargetSummary:
    return TargetSummary(
        target_id=target_id,
        target=items[0].target,
        objects=len(items),
        size=sum(item.size for item in items),
        code_size=sum(item.code_size for item in items),
        kernels=sum(item.kernels for item in items),
        wave_sizes=tuple(sorted({wave for item in items for wave in item.wave_sizes})),
        runs=any(item.runs for item in items),
    )


def sort_targets(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct names by generation: gfx90a before gfx942 before gfx1030."""
    return tuple(sorted(set(names), key=lambda name: (len(name.partition(":")[0]), name)))
