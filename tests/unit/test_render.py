"""Rendering a stack: what a template is given, and all faults of all layers at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strix_finetune.errors import DefinitionError, InputError, LockError, TemplateError
from strix_finetune.lockmodel import WheelLock, WheelSetLock
from strix_finetune.render import Locked
from tests.conftest import RCCL, Images, lock

SHA = "c" * 64


def faults(images: Images, locked: Locked | None = None, override: Path | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        images.render(locked=locked, override=override)
    assert caught.value.exit_code == 2
    return images.faults(caught.value)


def test_the_chain(chain: Images) -> None:
    layers = chain.render(locked=lock({"bash": "5.3-1", "python3-torch": "2.14.1-1"}))
    key = {name: layer.key[:12] for name, layer in layers.items()}
    assert {name: layer.layer.dockerfile for name, layer in layers.items()} == {
        "base": "FROM scratch\nADD inputs/rootfs.tar /\n",
        "devel": f"FROM localhost/strix-finetune/base:gfx1151-{key['base']}\nRUN make tools\n",
        "rccl": f"FROM localhost/strix-finetune/devel:gfx1151-{key['devel']} AS devel\nCOPY patches /p\n"
        "RUN patch -p1 < patches/0001-a.patch && patch -p1 < patches/0002-x.patch && make\n"
        f"FROM localhost/strix-finetune/base:gfx1151-{key['base']}\nCOPY --from=devel /out /\n",
        "torch": f"FROM localhost/strix-finetune/rccl:gfx1151-{key['rccl']}\n"
        "RUN apt-get install python3-torch=2.14.1-1\n",
        "app": f"FROM localhost/strix-finetune/torch:gfx1151-{key['torch']}\n"
        "COPY inputs/pip/app.txt /r.txt\nCOPY python /opt\n",
    }
    assert [file.path for file in layers["app"].layer.files] == [
        "inputs/pip/app.txt",
        "python/strix_train/__init__.py",
        "python/strix_train/run.py",
    ]
    assert layers["base"].layer.inputs == {"apt bash": "5.3-1", "suite": "sid", "var jobs": "2"}
    assert layers["torch"].layer.inputs == {"apt python3-torch": "2.14.1-1"}


def test_a_series_is_applied_in_its_own_order(chain: Images) -> None:
    chain.write("images/rccl/patches/series", "0002-x.patch\n0001-a.patch\n")
    chain.write("mine/override.toml", '[layers.rccl]\npatches = ["0000-mine.patch"]\n')
    chain.write("mine/0000-mine.patch", "")
    text = chain.render(override=chain.root / "mine")["rccl"].layer.dockerfile
    wanted = ["patches/0002-x.patch", "patches/0001-a.patch", "patches/0000-mine.patch"]
    assert [word for word in text.split() if word.startswith("patches/0")] == wanted


def test_an_image_as_the_beginning(chain: Images) -> None:
    text = chain.channel("image").read_text()
    chain.write(
        "images/channels/image.toml", text.replace('"mmdebstrap"', '"image", image = "registry.example/debian:sid"')
    )
    chain.layer("base", "", "FROM {{ base_image }}\n")
    base = chain.render(channel="image")["base"].layer
    assert base.dockerfile == f"FROM registry.example/debian@sha256:{'a' * 64}\n"
    assert base.inputs == {"image": f"registry.example/debian@sha256:{'a' * 64}"}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("apt('trch')", "the layer 'torch' has no package list 'trch' in [packages]; did you mean 'torch'?"),
        ("pip('x')", "the layer 'torch' has no requirement set 'x' in [pip]; none is defined"),
        ("wheels('torch')", "the layer 'torch' has no set of wheels 'torch' in [wheels]; none is defined"),
        ("has_wheels('torch')", "no layer and no channel has a set of wheels 'torch'; none is defined"),
        ("has_pip('ap')", "no layer and no channel has a requirement set 'ap'; did you mean 'app'?"),
        ("archive('src')", "the layer 'torch' has no archive 'src' in [archives]; none is defined"),
        ("builder('devel')", "the layer 'torch' has no builder 'devel' in builders; none is defined"),
        ("apt()", "the template fails: apt() missing 1 required positional argument: 'name'; "),
        ("apt('torch', 2)", "the template fails: apt() takes 1 positional argument but 2 were given; "),
        ("apt(['torch'])", "the template fails: unhashable type: 'list'; "),
        ("apt(nope)", "'nope' is undefined; known: "),
        ("apt", "'apt' is a function and has no text; call it: apt('…')"),
        ("target", "a group of values has no text; name one of its values"),
        ("target.idd", "there is no 'target.idd'; did you mean 'id'?"),
        ("base_image", "'base_image' is undefined; known: "),
        ("patches", "a list has no text; join it: | join(' '), or print it with | tojson"),
    ],
)
def test_a_function_that_is_called_wrongly(chain: Images, call: str, sentence: str) -> None:
    chain.write("images/torch/Dockerfile.j2", f"FROM {{{{ parent }}}}\n\nRUN {{{{ {call} }}}}\n")
    (fault,) = faults(chain)
    assert fault.startswith(f"images/torch/Dockerfile.j2:3: {sentence}")


def test_a_call_over_several_lines_has_the_line_of_what_is_wrong(chain: Images) -> None:
    chain.write("images/macros.j2", "{% macro install(a, b) %}\nRUN {{ a }} {{ b }}\n{% endmacro %}\n")
    text = (
        "{% import 'macros.j2' as m %}\nFROM {{ parent }}\n{{ m.install(\n  'x',\n  apt('trch'),\n) }}\n"
        "{{ m.install(\n  'y',\n  nope) }}\n"
    )
    chain.write("images/torch/Dockerfile.j2", text)
    assert faults(chain)[0].startswith("images/torch/Dockerfile.j2:5: the layer 'torch' has no package list 'trch'")
    chain.write("images/torch/Dockerfile.j2", text.replace("trch", "torch"))
    assert faults(chain)[0].startswith("images/torch/Dockerfile.j2:9: 'nope' is undefined")


def test_faults_of_all_layers_come_together_children_of_a_broken_one_included(chain: Images) -> None:
    chain.write("images/base/Dockerfile.j2", "FROM scratch\nADD {{ rootf }} /\n")
    chain.write("images/rccl/Dockerfile.j2", RCCL + "\nENTRYPOINT x\nRUN pip install torch==\n")
    chain.write("images/torch/Dockerfile.j2", "FROM {{ parent }}\n{% if x %}\n")
    with (chain.path / "app/big").open("wb") as stream:
        stream.truncate(10**9)
    (chain.path / "app/files").mkdir()
    (chain.path / "app/big").rename(chain.path / "app/files/big")
    assert faults(chain) == [
        "images/base/Dockerfile.j2:2: 'rootf' is undefined; did you mean 'rootfs'?",
        "images/rccl/Dockerfile.j2:7: ENTRYPOINT breaks Toolbx; put the program on PATH and use CMD",
        "images/rccl/Dockerfile.j2:8: 'torch==' has nothing after it; the version is empty: is it in the lock?",
        "images/torch/Dockerfile.j2:2: the block 'if' is never closed; add {% endif %}",
        (
            "images/app/layer.toml:6: the build context would hold 1000 MB and may hold 64 MB; the largest file is "
            "files/big with 1000 MB; remove the file, or raise [context] max_mb"
        ),
    ]


def test_lint_places_are_those_of_the_macro(chain: Images) -> None:
    chain.write("images/macros.j2", "\n{% macro end(x) %}\nENV HIP_VISIBLE_DEVICES={{ x }}\n{% endmacro %}\n")
    chain.write("images/torch/Dockerfile.j2", "{% import 'macros.j2' as m %}\nFROM {{ parent }}\n{{ m.end(0) }}\n")
    assert faults(chain) == [
        (
            "images/macros.j2:3: ENV HIP_VISIBLE_DEVICES must not be baked into an image; "
            "set it for one run, where it is needed"
        )
    ]


def test_what_the_lock_lacks_is_the_locks_fault(chain: Images) -> None:
    def lacking(names: tuple[str, ...]) -> dict[str, str]:
        raise LockError(f"the lock has no {names[0]}", cure="lock it")

    good = lock()
    with pytest.raises(LockError) as caught:
        chain.render(locked=Locked(lacking, good.pip, good.image))
    assert chain.faults(caught.value) == ["the lock has no bash; lock it", "the lock has no python3-torch; lock it"]


def test_two_archives_of_one_name(chain: Images) -> None:
    entry = f'url = "https://example.org/{{}}/v1.tar.gz"\nsha256 = "{SHA}"\nsize = 1\n'
    other = entry.replace(SHA, "d" * 64)
    chain.layer(
        "torch",
        'parent = ["base"]\n[archives.a]\n' + entry.format("a") + "[archives.b]\n" + other.format("b"),
        "FROM {{ parent }}\nCOPY {{ archive('a') }} /\n",
    )
    with pytest.raises(TemplateError) as caught:
        chain.render()
    assert chain.faults(caught.value) == [
        (
            "images/torch/Dockerfile.j2:2: the archives 'b' and 'a' would both be the file 'v1.tar.gz'; "
            "take one of them from an address with another name"
        )
    ]
    chain.layer(
        "torch",
        'parent = ["base"]\n[archives.a]\n' + entry.format("a") + "[archives.b]\n" + entry.format("b"),
        "FROM {{ parent }}\nCOPY {{ archive('a') }} /\n",
    )
    torch = chain.render()["torch"].layer
    assert "COPY inputs/archives/v1.tar.gz /" in torch.dockerfile
    assert torch.inputs == {"archive a": SHA}


def test_rendering_is_the_same_each_time(chain: Images) -> None:
    assert chain.render() == chain.render()


def test_pins_are_part_of_the_key_of_what_apt_installs(chain: Images) -> None:
    before = chain.render()
    chain.channel(toml='[apt]\npins = ["Package: a"]\n')
    text = (chain.path / "channels/debian.toml").read_text().replace('apt = { suite = "sid" }\n', "")
    chain.write("images/channels/debian.toml", text.replace("[apt]\n", '[apt]\nsuite = "sid"\n'))
    after = chain.render()
    assert after["torch"].layer.inputs.keys() == before["torch"].layer.inputs.keys() | {"pins"}
    assert after["torch"].key != before["torch"].key
    assert after["rccl"].key == before["rccl"].key


AMD = """\
[indexes.amd]
url = "https://stable.example/whl"
[layers.torch.wheels.rocm]
index = "amd"
requirements = ["torch[device-{target}]==2.13.0+rocm10"]
"""
TORCH = """\
FROM {{ parent }}
{% if has_wheels("rocm") %}
RUN install {{ wheels("rocm") }}
{% else %}
RUN apt-get install {{ apt("torch") }}
{% endif %}
"""
URL = "https://stable.example/whl/torch/torch-2.13.0%2Brocm10-cp314-cp314-linux_x86_64.whl"
WHEELS = WheelSetLock(
    "3.14",
    "amd",
    "2026-11-30T00:00:00Z",
    SHA,
    (
        WheelLock("torch", "2.13.0+rocm10", URL, "d" * 64, 7),
        WheelLock("rocm", "10.0.0", "https://stable.example/whl/rocm/rocm-10.0.0.tar.gz", "e" * 64),
    ),
)


def test_one_template_serves_a_channel_with_wheels_and_one_without(chain: Images) -> None:
    chain.write("images/torch/Dockerfile.j2", TORCH)
    chain.channel("amd", AMD)
    assert chain.render()["torch"].layer.dockerfile.endswith("\nRUN apt-get install python3-torch=1.0-1\n")
    torch = chain.render(channel="amd", locked=lock(wheels={"rocm": WHEELS}))["torch"].layer
    assert torch.dockerfile.endswith("\nRUN install inputs/wheels/rocm\n")
    (file,) = torch.files
    assert file.path == "inputs/wheels/rocm/requirements.txt"
    assert file.source == (
        f"rocm==10.0.0 --hash=sha256:{'e' * 64}\ntorch==2.13.0+rocm10 --hash=sha256:{'d' * 64}\n".encode()
    )
    assert torch.inputs == {"wheel rocm": f"10.0.0 ({'e' * 12})", "wheel torch": f"2.13.0+rocm10 ({'d' * 12})"}


def test_every_hash_is_in_the_key_and_no_address(chain: Images) -> None:
    chain.write("images/torch/Dockerfile.j2", TORCH)
    chain.channel("amd", AMD)

    def key(*changed: WheelLock) -> str:
        wheels = {"rocm": replace(WHEELS, wheels=(*changed, *WHEELS.wheels[len(changed) :]))}
        return chain.render(channel="amd", locked=lock(wheels=wheels))["torch"].key

    torch = WHEELS.wheels[0]
    assert key(replace(torch, sha256="d" * 63 + "e")) != key()
    assert key(replace(torch, version="2.13.1")) != key()
    assert key(replace(torch, url=URL.replace("stable", "mirror"), size=0)) == key()


def test_other_layers_can_ask_for_a_set_of_the_stack(chain: Images) -> None:
    chain.write("images/torch/Dockerfile.j2", TORCH)
    chain.layer(
        "app",
        'parent = ["torch"]\nfinal = true\npip = { app = { requirements = ["peft==1.0"] } }\n',
        "FROM {{ parent }}\nRUN echo {{ has_wheels('rocm') }} {{ has_pip('app') }} {{ has_pip('more') }}\n"
        "COPY {{ pip('app') }} /\n",
    )
    chain.channel("amd", AMD)
    chain.channel("more", '[layers.torch.pip.more]\nrequirements = ["numpy"]\n')
    assert "RUN echo False True False\n" in chain.render()["app"].layer.dockerfile
    text = chain.render(channel="amd", locked=lock(wheels={"rocm": WHEELS}))["app"].layer.dockerfile
    assert "RUN echo True True False\n" in text


def test_a_set_of_the_channel_takes_the_place_of_the_layers_own(chain: Images) -> None:
    chain.channel("amd", '[layers.app.pip.app]\nrequirements = ["peft==2.0"]\nexclude = ["torch"]\n')
    node = chain.stack(channel="amd").node("app")
    assert node.pip["app"].requirements == ["peft==2.0"]
    assert node.pip["app"].exclude == ["torch"]
    assert chain.stack().node("app").pip["app"].requirements == ["peft==1.0"]


def test_a_set_that_the_template_does_not_install_is_the_channels_fault(chain: Images) -> None:
    chain.channel("amd", AMD + '[layers.app.pip.ap]\nrequirements = ["x"]\n')
    with pytest.raises(DefinitionError) as caught:
        chain.render(channel="amd", locked=lock(wheels={"rocm": WHEELS}))
    assert chain.faults(caught.value) == [
        (
            "images/channels/amd.toml:8: the template of 'torch' does not install the set 'rocm' on this channel; "
            "call wheels('rocm') in it, or remove the set"
        ),
        (
            "images/channels/amd.toml:11: the template of 'app' does not install the set 'ap' on this channel; "
            "call pip('ap') in it, or remove the set"
        ),
    ]
