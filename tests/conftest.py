"""A factory of small images/ folders, and what the unit tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from strix_finetune import graph
from strix_finetune.errors import StrixError
from strix_finetune.load import load
from strix_finetune.lockmodel import WheelSetLock
from strix_finetune.model import Keyed, Project, Stack
from strix_finetune.paths import Folders
from strix_finetune.render import Locked, render_stack

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts what it runs in the background so, and the tests of Ctrl-C would wait for an interrupt in vain
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the machines that run this are often busy and slow; a test that hangs is seen by its own time limit
settings.register_profile(
    "quick", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("deep", max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("quick")

CHANNEL = """\
name = "{name}"
description = "a channel for tests"
python = "3.14"
bootstrap = {{ source = "mmdebstrap" }}
apt = {{ suite = "sid" }}
"""
TARGETS = """\
default = "gfx1151"

[target.gfx1151]
kind = "gpu"
family = "RDNA 3.5"
wave_size = 32
memory = "unified"

[target.cpu]
kind = "cpu"
memory = "host"
"""


class Images:
    """Writes definitions below `root`/images and reads them back as the driver does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "images"
        for folder in ("images/channels", "python/strix_train", "recipes", "toolbox"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        self.write("images/macros.j2", "")

    def write(self, path: str, content: str | bytes, *, executable: bool = False) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        file.chmod(0o755 if executable else 0o644)
        return file

    def layer(self, name: str, toml: str = "", template: str | None = None, folder: str = "images") -> Path:
        """Write a layer; `toml` stands from line 3 on. Without `template` it is FROM its parent, or scratch."""
        self.write(f"{folder}/{name}/layer.toml", f'name = "{name}"\ndescription = "a layer"\n{toml}')
        if template is None:
            template = "FROM {{ parent or 'scratch' }}\nRUN make " + name + "\n"
        self.write(f"{folder}/{name}/Dockerfile.j2", template)
        return self.path / name

    def channel(self, name: str = "debian", toml: str = "") -> Path:
        return self.write(f"images/channels/{name}.toml", CHANNEL.format(name=name) + toml)

    def targets(self, toml: str = TARGETS) -> Path:
        return self.write("images/targets.toml", toml)

    @property
    def folders(self) -> Folders:
        root = self.root
        return Folders(
            images=self.path,
            recipes=root / "recipes",
            python=root / "python",
            cache=root / "cache",
            state=root / "state",
            data=root / "data",
        )

    def load(self, override: Path | None = None) -> Project:
        return load(self.path, override)

    def stack(self, target: str = "gfx1151", channel: str = "debian", override: Path | None = None) -> Stack:
        return graph.stack(self.load(override), target, channel)

    def render(
        self,
        target: str = "gfx1151",
        channel: str = "debian",
        locked: Locked | None = None,
        override: Path | None = None,
    ) -> dict[str, Keyed]:
        project = self.load(override)
        stack = graph.stack(project, target, channel)
        return {keyed.name: keyed for keyed in render_stack(project, stack, locked or lock(), self.folders)}

    def faults(self, error: StrixError) -> list[str]:
        """Each problem as the user sees it, with paths as they are below the root."""
        return [str(problem).replace(f"{self.root}/", "") for problem in error.problems]


def lock(
    versions: Mapping[str, str] | None = None,
    pip: Mapping[str, bytes] | None = None,
    image: str = "registry.example/debian@sha256:" + "a" * 64,
    wheels: Mapping[str, WheelSetLock] | None = None,
) -> Locked:
    """What a lock would say: version 1.0-1 of every Debian package, but for `versions`."""
    return Locked(
        apt=lambda names: {name: (versions or {}).get(name, "1.0-1") for name in names},
        pip=lambda name: (pip or {}).get(name, f"{name}==1.0 --hash=sha256:{'b' * 64}\n".encode()),
        image=lambda name: image,
        wheels=lambda name: (wheels or {})[name],
    )


@pytest.fixture
def images(tmp_path: Path) -> Images:
    """An empty images/ folder with the channel `debian` and the targets gfx1151 and cpu."""
    made = Images(tmp_path)
    made.channel()
    made.targets()
    return made


@pytest.fixture
def chain(images: Images) -> Images:
    """base → torch → app, where torch uses the side branch devel → rccl on a GPU target."""
    images.layer(
        "base", 'packages = { rootfs = ["bash"] }\nvars = { jobs = 2 }\n', "FROM scratch\nADD {{ rootfs }} /\n"
    )
    images.layer(
        "devel", 'parent = ["base"]\nrole = "builder"\nserves = "gpu"\n', "FROM {{ parent }}\nRUN make tools\n"
    )
    images.layer("rccl", 'parent = ["base"]\nbuilders = ["devel"]\nserves = "gpu"\n', RCCL)
    images.write("images/rccl/layer.toml", LAYER_RCCL)
    images.write("images/rccl/patches/series", "0001-a.patch\n0002-x.patch\n")
    images.write("images/rccl/patches/0001-a.patch", "--- a\n+++ b\n")
    images.write("images/rccl/patches/0002-x.patch", "--- c\n+++ d\n")
    images.layer(
        "torch",
        'parent = ["rccl", "base"]\npackages = { torch = ["python3-torch"] }\n',
        "FROM {{ parent }}\nRUN apt-get install {{ apt('torch') }}\n",
    )
    images.layer(
        "app",
        'parent = ["torch"]\nfinal = true\npip = { app = { requirements = ["peft==1.0"] } }\n'
        'context = { packages = ["strix_train"] }\n',
        "FROM {{ parent }}\nCOPY {{ pip('app') }} /r.txt\nCOPY python /opt\n",
    )
    images.write("python/strix_train/__init__.py", "")
    images.write("python/strix_train/run.py", "print(1)\n")
    return images


LAYER_RCCL = """\
name = "rccl"
description = "a layer"
parent = ["base"]
builders = ["devel"]
serves = "gpu"
patches = { series = "patches/series" }
"""
RCCL = """\
FROM {{ builder('devel') }} AS devel
COPY patches /p
RUN {% for patch in patches %}patch -p1 < {{ patch }} && {% endfor %}make
FROM {{ parent }}
COPY --from=devel /out /
"""


@pytest.fixture
def umask() -> Iterator[None]:
    """Put the process's umask back."""
    import os

    old = os.umask(0o022)
    yield
    os.umask(old)
