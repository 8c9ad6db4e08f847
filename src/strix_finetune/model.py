"""The values that flow from load to execute: frozen, made once, changed by nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strix_finetune.errors import Place
from strix_finetune.knownbad import KnownBad
from strix_finetune.schema import (
    Archive,
    ChannelFile,
    LayerFile,
    LayerOverride,
    PipSet,
    TargetEntry,
    Value,
    WheelSet,
)
from strix_finetune.tomlpos import Positions


@dataclass(frozen=True, slots=True)
class Source:
    """A TOML file with the lines of its keys, so that later steps can still name them."""

    path: Path
    positions: Positions = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Edit:
    """A user's changes to one layer, and the file that says them."""

    spec: LayerOverride
    source: Source


@dataclass(frozen=True, slots=True)
class LayerDef:
    """One layer as declared. `templates`: a user's first, then the shipped one; `edit`: the user's changes.

    `patches`: the series and what a user adds. Where a variable chooses the series, `series` has them all by its
    value, and `patches` only what a user adds; `Node.patches` is what is applied.
    """

    spec: LayerFile
    source: Source
    folder: Path
    templates: tuple[Path, ...]
    patches: tuple[Path, ...] = ()
    series: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    edit: Edit | None = None

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Channel:
    spec: ChannelFile
    source: Source

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Target:
    id: str
    spec: TargetEntry


@dataclass(frozen=True, slots=True)
class Project:
    """Everything that is declared: checked, but not yet narrowed to a target and a channel."""

    layers: Mapping[str, LayerDef]
    channels: Mapping[str, Channel]
    targets: Mapping[str, Target]
    default_target: str
    macros: Path
    override: Path | None = None
    known_bad: tuple[KnownBad, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A layer in a stack: the declared parent candidates are resolved, the channel's tuning is merged.

    `pip`, `wheels`: the layer's sets, those of the channel in the place of the layer's own; a user's edits are in them.
    """

    layer: LayerDef
    parent: str | None
    builders: tuple[str, ...]
    vars: Mapping[str, Value]
    packages: Mapping[str, tuple[str, ...]]
    archives: Mapping[str, Archive]
    patches: tuple[Path, ...] = ()
    pip: Mapping[str, PipSet] = field(default_factory=dict)
    wheels: Mapping[str, WheelSet] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def needs(self) -> tuple[str, ...]:
        """The layers that must exist before this one can be built."""
        return ((self.parent,) if self.parent else ()) + self.builders


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers of one target on one channel, parents before children. `absent`: layers that it lacks, and why.

    `known_bad`: the whole list of versions that must not be locked.
    """

    target: Target
    channel: Channel
    nodes: tuple[Node, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    known_bad: tuple[KnownBad, ...] = ()

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def lineage(self, name: str) -> tuple[Node, ...]:
        """The layer and the parents that its image holds, the nearest first."""
        found = [self.node(name)]
        while found[-1].parent:
            found.append(self.node(found[-1].parent))
        return tuple(found)

    @property
    def final(self) -> Node:
        return next(node for node in self.nodes if node.layer.spec.final)


@dataclass(frozen=True, slots=True)
class ContextFile:
    """A file of a build context: its path in it, and its content on disk or in memory.

    `digest`: what its layer's key was made of, where it is part of one.
    """

    path: str
    source: Path | bytes
    executable: bool = False
    digest: str = ""


@dataclass(frozen=True, slots=True)
class RenderedLayer:
    """A layer ready to be keyed: its Dockerfile and files, and in words the locked inputs it uses.

    `inputs`: name ("apt python3-torch", "pip unsloth", "suite") → version or digest. `places`: the template line
    behind each line of the Dockerfile.
    """

    node: Node
    dockerfile: str
    files: tuple[ContextFile, ...]
    inputs: Mapping[str, str]
    locate: Callable[[], Sequence[Place]] = field(default=tuple, repr=False, compare=False)

    @property
    def places(self) -> Sequence[Place]:
        return self.locate()


@dataclass(frozen=True, slots=True)
class Keyed:
    """A layer with its key: sha256 over everything that makes it, as 64 hex digits.

    `parts`: what went into the key, by name, as short digests or versions; the reason of a rebuild is their
    difference to the parts that the previous image's label holds. `inputs`: the text whose sha256 the key is, which
    travels with a pushed image, so that whoever pulls it can compute the key again.
    """

    layer: RenderedLayer
    key: str
    parts: Mapping[str, str]
    inputs: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        return self.layer.node.name
