"""The files a maintainer writes, as strict models: layer.toml, channels/*.toml, targets.toml, override.toml.

A key that is not here is an error: a typing mistake must never pass as "not set".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$", max_length=64)]
PackageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]*$", max_length=128)]
Requirement = Annotated[str, StringConstraints(min_length=1, max_length=512)]
RelativePath = Annotated[str, StringConstraints(pattern=r"^(?!/)(?!.*(^|/)\.\.(/|$)).+$", max_length=512)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Value = str | int | bool | list[str]


class Strict(BaseModel):
    """Frozen, no coercion, no unknown keys."""

    # python-re: the default engine has no look-ahead, which RelativePath needs
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, str_strip_whitespace=True, regex_engine="python-re"
    )


class PipSet(Strict):
    """A set of Python requirements that is resolved together and locked by hash.

    `exclude`: distributions that another layer provides or that must not come from the index (torch, CUDA builds).
    `forbid`: patterns of names that may not appear in the resolution, in whatever way they got in.
    """

    requirements: list[Requirement] = Field(min_length=1)
    exclude: list[Name] = []
    forbid: list[str] = []


class Index(Strict):
    """A package index that belongs to a channel: `url` ends before the project's name.

    `absent`: HTTP statuses that mean "this project is not served here" (some servers say 403 for it).
    """

    url: str = Field(pattern=r"^https?://[^\s@]+[^/\s@]$")
    absent: list[int] = [404]


class WheelSet(Strict):
    """Wheels of one index of the channel that belong together, fetched by the driver and laid into the context.

    `requirements` say a version or a range of them, of which the lock takes the newest whole set; "{target}" in them
    is the target's id. Their dependencies are followed, extras
    included, where the name matches a pattern of `follow`; what else they need is another set's business.
    """

    index: Name
    requirements: list[Requirement] = Field(min_length=1)
    follow: list[str] = []


class Archive(Strict):
    """A file that a layer builds from: fetched by the driver, checked while streaming, laid into the context."""

    url: str = Field(min_length=1)
    sha256: Sha256
    size: int = Field(gt=0)


class Bootstrap(Strict):
    """How a layer without a parent begins.

    `mmdebstrap`: the root file system of the channel's suite is made from the signed archive. `image`: a registry
    image, pinned by digest in the lock. `helper`: a Debian image of the suite, name:tag, that lends apt and
    mmdebstrap to hosts without them; it is in no layer and no key, and pinned in the lock of those hosts. Without
    a host in its name, each engine looks it up by its own settings.
    """

    source: Literal["mmdebstrap", "image"]
    image: str = ""
    helper: str = ""


class Context(Strict):
    """What goes into the build context beside the rendered Dockerfile: files/ and patches/ always do.

    `packages`: Python packages of this project, by import name. `data`: folders that travel with it ("recipes").
    """

    packages: list[Literal["strix_train"]] = []
    data: list[Literal["recipes"]] = []
    max_mb: int = Field(default=64, gt=0)


class Smoke(Strict):
    """One smoke test: a script that is laid into a fresh container of the new image and run there.

    `static` needs no GPU; `device` needs one and is recorded apart. With scope `descendants` it also runs in
    every layer built on this one. `timeout` is in seconds. Exit 0 passes, 77 means "cannot be shown here".
    """

    file: RelativePath
    kind: Literal["static", "device"] = "static"
    scope: Literal["layer", "descendants"] = "layer"
    timeout: int = Field(default=120, gt=0, le=3600)


class Patches(Strict):
    """A patch series: `series` lists file names beside it, one a line; applied strictly, fuzz and offset are errors.

    `{version}` in it is the layer's variable of that name: a channel then chooses among several series.
    """

    series: RelativePath


class LayerFile(Strict):
    """One images/<name>/layer.toml.

    `parent`: candidates, nearest first; the first one that exists for the target and channel is taken; none at all
    makes a root layer, which needs the channel's bootstrap. `builders`: layers used only as a source of files.
    `serves`: the kind of target that has this layer. `needs_part`: a part in targets.toml that the target must have.
    `groups`: what of its files becomes a layer of its own where the image is pushed, by globs of paths ("*" within one
    folder): an update of it then moves nothing else. `final`: the layer that gets the short image name. `budget_mb`:
    the most that it may add to its parent, unpacked, in millions of bytes; a build that makes more of it fails.
    """

    name: Name
    description: str = Field(min_length=1)
    parent: list[Name] = []
    builders: list[Name] = []
    serves: Literal["any", "gpu", "cpu"] = "any"
    needs_part: str = ""
    role: Literal["image", "builder"] = "image"
    final: bool = False
    vars: dict[str, Value] = {}
    packages: dict[Name, list[PackageName]] = {}
    pip: dict[Name, PipSet] = {}
    wheels: dict[Name, WheelSet] = {}
    archives: dict[Name, Archive] = {}
    provides: dict[Name, PackageName] = {}
    ceilings: dict[Name, str] = {}
    context: Context = Context()
    patches: Patches | None = None
    smoke: list[Smoke] = []
    groups: dict[Name, list[RelativePath]] = {}
    budget_mb: int | None = Field(default=None, gt=0)


class Apt(Strict):
    """Debian's archive as a channel uses it; the mirror is the host's business."""

    suite: Name
    components: list[Name] = ["main"]
    extra_suites: list[Name] = []
    pins: list[str] = []


class LayerTuning(Strict):
    """What a channel changes in one layer. `budget_mb` takes the place of the layer's."""

    vars: dict[str, Value] = {}
    archives: dict[Name, Archive] = {}
    packages: dict[Name, list[PackageName]] = {}
    pip: dict[Name, PipSet] = {}
    wheels: dict[Name, WheelSet] = {}
    budget_mb: int | None = Field(default=None, gt=0)


class ChannelFile(Strict):
    """One images/channels/<name>.toml: sources that fit together. `notice` is shown wherever an image of it is."""

    name: Name
    description: str = Field(min_length=1)
    notice: str = ""
    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
    bootstrap: Bootstrap
    apt: Apt
    indexes: dict[Name, Index] = {}
    targets: list[Name] = []
    omit: list[Name] = []
    layers: dict[Name, LayerTuning] = {}


class TargetEntry(Strict):
    """One GPU architecture, or `cpu`. `missing`: parts of ROCm that do not exist for it, with the reason."""

    kind: Literal["gpu", "cpu"]
    family: str = ""
    products: list[str] = []
    wave_size: Literal[0, 32, 64] = 0
    memory: Literal["unified", "dedicated", "host"] = "dedicated"
    missing: dict[str, str] = {}
    problems: list[str] = []
    excluded: str = ""


class TargetsFile(Strict):
    """images/targets.toml. `default` is taken where no GPU is found."""

    default: Name
    target: dict[Name, TargetEntry]


class ListEdit(Strict):
    append: list[str] = []
    remove: list[str] = []


class LayerOverride(Strict):
    """What a user changes in one layer: variables and budget replaced, lists edited, patches added to the series."""

    vars: dict[str, Value] = {}
    packages: dict[Name, ListEdit] = {}
    requirements: dict[Name, ListEdit] = {}
    patches: list[RelativePath] = []
    budget_mb: int | None = Field(default=None, gt=0)


class OverrideFile(Strict):
    """DIR/override.toml of `--override DIR`.

    Beside it: templates/<layer>/Dockerfile.j2 extends "layer:<layer>" block by block; layers/<name>/ adds a layer.
    """

    layers: dict[Name, LayerOverride] = {}
