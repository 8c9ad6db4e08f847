"""Sets of requirements and of wheels: every fault of what is declared, with its line, in one go."""

from __future__ import annotations

import pytest

from strix_finetune.errors import DefinitionError
from tests.conftest import Images

AMD = """\
[indexes]
amd = { url = "https://stable.example/whl", absent = [403, 404] }
here = { url = "http://127.0.0.1:8080/whl" }
[layers.torch.wheels.rocm]
index = "amd"
requirements = ["torch[device-{target}]==2.13.0+rocm10", "rocm-sdk-device-{target}==10.0.0"]
follow = ["rocm*", "amd-torch-device-*", "torch"]
"""
ODD = "expected semicolon (after name with no version specifier) or end"


def faults(images: Images) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        images.load()
    return images.faults(caught.value)


def test_a_good_channel(chain: Images) -> None:
    chain.channel("amd", AMD)
    node = chain.stack(channel="amd").node("torch")
    assert node.wheels["rocm"].follow == ["rocm*", "amd-torch-device-*", "torch"]
    assert chain.stack().node("torch").wheels == {}


def test_all_faults_of_a_set_of_wheels_come_together(chain: Images) -> None:
    chain.channel(
        "amd",
        """\
[indexes]
amd = { url = "http://stable.example/whl", absent = [500] }
[layers.torch.wheels.rocm]
index = "amdd"
requirements = [
  "torch[device-{gfx}]==2.13.0",
  "rocm>=10",
  "rocm-sdk-core",
  "rocm-sdk-devel==",
  "rocm{target==1",
  "rocm-sdk-device-{target}==10.0.0",
  "rocm_sdk.device-{target}==10.0.1",
  "triton @ https://x.example/triton.whl",
  "torchvision==0.28.0,!=0.27",
  "a b",
]
follow = ["rocm_*", "Torch", "amd-torch-device-{target}", ""]
[layers.app.pip.app]
requirements = ["peft=="]
""",
    )
    write, names = (
        "write it as name==version or name>=version",
        "names are compared in lower case with '-' between their words",
    )
    assert [fault.removeprefix("images/channels/amd.toml:") for fault in faults(chain)] == [
        "7: the index 'amd' is not encrypted; write https://; plain http is for this host alone",
        "7: HTTP 500 cannot mean that the index 'amd' does not serve a project; name one of 400 to 499",
        "9: the channel 'amd' has no index 'amdd'; did you mean 'amd'?",
        "11: '{gfx}' in 'torch[device-{gfx}]==2.13.0' stands for nothing; only {target} is replaced",
        f"13: 'rocm-sdk-core' says no version and no range of versions; {write}",
        f"14: the requirement 'rocm-sdk-devel==' names no version; {write}",
        "15: '{' in 'rocm{target==1' stands for nothing; only {target} is replaced",
        "17: the set 'rocm' asks for 'rocm-sdk-device-{target}' twice; keep one of them",
        f"18: 'triton @ https://x.example/triton.whl' names an address, and a version is wanted; {write}",
        f"20: 'a b' is not a Python requirement ({ODD}); {write}",
        *(
            f"22: '{pattern}' matches no name of a distribution; {names}; * and ? stand for others"
            for pattern in ("rocm_*", "Torch", "amd-torch-device-{target}", "")
        ),
        "24: the requirement 'peft==' names no version; write it as name==version",
    ]


def test_a_layer_with_wheels_of_its_own_is_not_on_channels_without_their_index(chain: Images) -> None:
    chain.layer("lab", 'parent = ["app"]\n[wheels.lab]\nindex = "amdd"\nrequirements = ["lab==1"]\n')
    chain.channel("amd", '[indexes.amd]\nurl = "https://stable.example/whl"\n')
    assert faults(chain) == ["images/lab/layer.toml:5: no channel has an index 'amdd'; did you mean 'amd'?"]
    toml = (chain.path / "lab/layer.toml").read_text()
    chain.write("images/lab/layer.toml", toml.replace("amdd", "amd"))
    assert "lab" in [node.name for node in chain.stack(channel="amd").nodes]
    assert chain.stack().absent == {"lab": "the channel debian has no index 'amd'"}
    mirror = '[indexes.mirror]\nurl = "https://mirror.example/whl"\n[layers.lab.wheels.lab]\nindex = "mirror"\n'
    chain.channel("debian", mirror + 'requirements = ["lab==2"]\n')
    assert chain.stack().node("lab").wheels["lab"].requirements == ["lab==2"]


def test_two_sets_of_one_name_in_one_stack(chain: Images) -> None:
    chain.channel("amd", AMD + '[layers.app.wheels.rocm]\nindex = "amd"\nrequirements = ["rocm==10.0.0"]\n')
    chain.channel("both", '[layers.torch.pip.app]\nrequirements = ["x"]\n')
    assert faults(chain) == [
        "images/channels/amd.toml:9: 'torch' and 'app' both have a set of wheels 'rocm'; rename one of them",
        "images/channels/both.toml:6: 'torch' and 'app' both have a requirement set 'app'; rename one of them",
    ]
    # never in one stack: one layer is for GPUs, the other for the rest
    chain.channel("amd", AMD)
    chain.channel("both")
    for kind in ("gpu", "cpu"):
        chain.layer(f"tools-{kind}", f'parent = ["base"]\nserves = "{kind}"\npip.tools.requirements = ["x"]\n')
    chain.load()
