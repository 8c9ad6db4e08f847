"""The declared graph, narrowed to one target and channel."""

from __future__ import annotations

import pytest

from strix_finetune import graph
from strix_finetune.errors import DefinitionError, InputError
from tests.conftest import Images


def test_parents_come_before_children_and_follow_the_target(chain: Images) -> None:
    gpu = chain.stack("gfx1151")
    names = [node.name for node in gpu.nodes]
    assert sorted(names) == ["app", "base", "devel", "rccl", "torch"]
    for node in gpu.nodes:
        assert all(names.index(other) < names.index(node.name) for other in node.needs)
    assert gpu.node("torch").parent == "rccl"
    assert gpu.node("rccl").needs == ("base", "devel")
    assert gpu.final.name == "app"
    cpu = chain.stack("cpu")
    assert [node.name for node in cpu.nodes] == ["base", "torch", "app"]
    assert cpu.node("torch").parent == "base"


def test_a_channel_omits_a_layer_and_a_target_lacks_a_part(chain: Images) -> None:
    chain.channel("slim", 'omit = ["rccl", "devel"]\n')
    assert [node.name for node in chain.stack(channel="slim").nodes] == ["base", "torch", "app"]
    chain.write("images/rccl/layer.toml", (chain.path / "rccl/layer.toml").read_text() + 'needs_part = "rccl"\n')
    text = (chain.path / "targets.toml").read_text()
    chain.targets(text.replace('family = "RDNA 3.5"', 'family = "RDNA 3.5"\nmissing = { rccl = "not built" }'))
    assert "rccl" not in [node.name for node in chain.stack().nodes]


@pytest.mark.parametrize(
    ("target", "channel", "sentence"),
    [
        ("gfx1511", "debian", "unknown target 'gfx1511'; did you mean 'gfx1151'?"),
        ("GFX1151", "debian", "unknown target 'GFX1151'; did you mean 'gfx1151'?"),
        ("zzz", "debian", "unknown target 'zzz'; known: cpu, gfx1151, gfx906"),
        ("gfx1151", "debain", "unknown channel 'debain'; did you mean 'debian'?"),
        ("gfx1151", "", "unknown channel ''; known: amd, debian"),
        ("gfx906", "debian", "the target gfx906 is excluded: its last ROCm is 5.7; choose another --target"),
        ("cpu", "amd", "the channel amd does not serve cpu; it serves gfx1151"),
    ],
)
def test_a_mistyped_target_or_channel(chain: Images, target: str, channel: str, sentence: str) -> None:
    chain.channel("amd", 'targets = ["gfx1151"]\n')
    text = (chain.path / "targets.toml").read_text()
    chain.targets(text + '[target.gfx906]\nkind = "gpu"\nexcluded = "its last ROCm is 5.7"\n')
    with pytest.raises(InputError) as caught:
        chain.stack(target, channel)
    assert str(caught.value) == sentence
    assert caught.value.exit_code == 2


def test_a_mistyped_layer(chain: Images) -> None:
    stack = chain.stack()
    assert graph.wanted(stack, ("torch", "base")) == ("torch", "base")
    assert graph.wanted(stack, ()) == ("app",)
    with pytest.raises(InputError) as caught:
        graph.wanted(stack, ("torch", "trch"))
    assert str(caught.value) == "there is no layer 'trch' for gfx1151 on debian; did you mean 'torch'?"
    with pytest.raises(InputError) as caught:
        graph.wanted(stack, ("trch", "torch", "bsae"))
    assert len(caught.value.problems) == 2


def test_every_reason_is_told_at_once(chain: Images) -> None:
    with pytest.raises(InputError) as both:
        chain.stack("gfx1511", "debain")
    assert chain.faults(both.value) == [
        "unknown target 'gfx1511'; did you mean 'gfx1151'?",
        "unknown channel 'debain'; did you mean 'debian'?",
    ]
    chain.channel("bare", 'omit = ["devel", "torch"]\n')
    chain.layer("lab", 'parent = ["base"]\nbuilders = ["devel"]\n\nfinal = true\n')
    with pytest.raises(DefinitionError) as caught:
        chain.stack(channel="bare")
    assert [fault.split("; ")[0] for fault in chain.faults(caught.value)] == [
        "images/app/layer.toml:3: none of the parents of 'app' exists on the channel bare",
        "images/lab/layer.toml:4: 'lab' needs the builder 'devel', which gfx1151 on bare does not have",
        "images/rccl/layer.toml:4: 'rccl' needs the builder 'devel', which gfx1151 on bare does not have",
        "images/lab/layer.toml:6: the stack of gfx1151 on bare needs exactly one final layer and has app, lab",
    ]


def test_stacks_that_cannot_be(chain: Images) -> None:
    chain.channel("no-devel", 'omit = ["devel"]\n')
    chain.channel("no-parent", 'omit = ["base", "rccl", "devel"]\n')

    def sentence(channel: str) -> list[str]:
        with pytest.raises(DefinitionError) as caught:
            chain.stack(channel=channel)
        return chain.faults(caught.value)

    assert sentence("no-devel") == [
        (
            "images/rccl/layer.toml:4: 'rccl' needs the builder 'devel', which gfx1151 on no-devel does not have; "
            "omit 'rccl' as well, or keep 'devel'"
        )
    ]
    assert sentence("no-parent") == [
        (
            "images/torch/layer.toml:3: none of the parents of 'torch' exists on the channel no-parent; "
            "add one that does, or omit the layer"
        )
    ]
    chain.layer("lab", 'parent = ["base"]\n\nfinal = true\n')
    assert sentence("debian") == [
        (
            "images/lab/layer.toml:5: the stack of gfx1151 on debian needs exactly one final layer and has app, lab; "
            "set final = true in one layer.toml"
        )
    ]
    chain.channel("no-final", 'omit = ["app", "lab"]\n')
    assert sentence("no-final") == [
        (
            "images/channels/no-final.toml: the stack of gfx1151 on no-final needs exactly one final layer and has "
            "none; set final = true in one layer.toml"
        )
    ]


def test_a_layer_that_the_stack_lacks_is_told_with_the_reason(chain: Images) -> None:
    chain.write("images/rccl/layer.toml", (chain.path / "rccl/layer.toml").read_text() + 'needs_part = "rccl"\n')
    chain.channel("slim", 'omit = ["rccl", "devel"]\n')
    text = (chain.path / "targets.toml").read_text()
    other = '\n[target.gfx1103]\nkind = "gpu"\nmissing = { rccl = "ROCm does not build it" }\n'
    chain.targets(text + other)

    def sentence(target: str, channel: str = "debian") -> str:
        with pytest.raises(InputError) as caught:
            graph.wanted(chain.stack(target, channel), ("rccl",))
        return str(caught.value)

    assert sentence("gfx1103") == (
        "there is no layer 'rccl' for gfx1103 on debian: ROCm does not build it; the stack has base, torch, app, devel"
    )
    assert "for cpu on debian: it serves gpu targets only;" in sentence("cpu")
    assert "for gfx1151 on slim: the channel slim omits it;" in sentence("gfx1151", "slim")
