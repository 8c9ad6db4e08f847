"""What build steps ask of apt, read from rendered Dockerfiles."""

from __future__ import annotations

import pytest

from strix_finetune import graph
from strix_finetune.vendor import steps
from strix_finetune.vendor.steps import Install, LayerSteps, Stage
from tests.conftest import Images

CONTROL = "Package: ucx\nVersion: 1\nArchitecture: all\n"
TOOL = """\
FROM {{ builder('devel') }} AS build
RUN apt-get install make=1.0-1 {{ apt('tools') }}
FROM build AS more
RUN --mount=type=bind,source=files,target=/media dpkg-deb --build /media/ucx /tmp/a.deb; dpkg -i /tmp/a.deb; \\
    apt-get install \\
      {{ apt('more') }}
FROM {{ parent }}
COPY --from=more /out /
RUN echo none
"""


@pytest.fixture
def tooled(chain: Images) -> Images:
    chain.layer(
        "rccl",
        'parent = ["base"]\nbuilders = ["devel"]\nserves = "gpu"\n'
        'packages = { tools = ["cmake"], more = ["hip", "g++"] }\n',
        TOOL,
    )
    chain.write("images/rccl/files/ucx/DEBIAN/control", CONTROL)
    return chain


def read(images: Images, target: str = "gfx1151") -> dict[str, LayerSteps]:
    stack = graph.stack(images.load(), target, "debian")
    return {entry.layer: entry for entry in steps.read_steps(stack, list(images.render(target).values()))}


def test_stages_begin_where_the_dockerfile_says(tooled: Images) -> None:
    found = read(tooled)
    assert found["base"] == LayerSteps("base", (Stage("0", steps.ROOT),), {"bash": "1.0-1", "variant": "minbase"})
    assert found["rccl"].stages == (
        Stage("build", "layer:devel", (Install(("cmake=1.0-1",)),)),
        Stage("more", "stage:build", (Install(("hip=1.0-1", "g++=1.0-1"), (CONTROL,)),)),
        Stage("2", "layer:base"),
    )
    assert found["torch"].stages == (Stage("0", "layer:rccl", (Install(("python3-torch=1.0-1",)),)),)
    assert found["app"].stages == (Stage("0", "layer:torch"),)


def test_another_target_has_other_parents(tooled: Images) -> None:
    assert read(tooled, "cpu")["torch"].stages[0].base == "layer:base"


def test_a_registry_image_is_the_beginning(chain: Images) -> None:
    toml = (chain.path / "channels/debian.toml").read_text()
    bootstrap = 'bootstrap = { source = "image", image = "registry.example/debian:13" }'
    chain.write("images/channels/debian.toml", toml.replace('bootstrap = { source = "mmdebstrap" }', bootstrap))
    chain.layer("base", 'packages = { rootfs = ["bash"] }\n', "FROM {{ base_image }}\nRUN x {{ apt('rootfs') }}\n")
    assert read(chain)["base"] == LayerSteps("base", (Stage("0", steps.IMAGE, (Install(("bash=1.0-1",)),)),))


def test_the_digest_changes_with_what_is_asked(tooled: Images) -> None:
    def digest() -> str:
        stack = graph.stack(tooled.load(), "gfx1151", "debian")
        return steps.digest(stack, steps.read_steps(stack, list(tooled.render().values())))

    first = digest()
    tooled.write("images/rccl/files/other", "x")
    assert digest() == first
    tooled.write("images/rccl/files/ucx/DEBIAN/control", CONTROL.replace("1", "2"))
    second = digest()
    assert second != first
    text = (tooled.path / "rccl/Dockerfile.j2").read_text()
    tooled.write("images/rccl/Dockerfile.j2", text.replace("apt-get install \\", "true \\"))
    assert digest() == second
    tooled.write("images/rccl/Dockerfile.j2", text.replace("FROM build AS more", "FROM {{ parent }} AS more"))
    assert digest() != second
    tooled.write(
        "images/channels/debian.toml",
        (tooled.path / "channels/debian.toml").read_text().replace('suite = "sid"', 'suite = "trixie"'),
    )
    third = digest()
    assert third not in (first, second)
