"""The key of a layer: what changes it, what does not, and the parts that explain a change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune import key as keys
from strix_finetune.model import ContextFile, Keyed
from tests.conftest import Images, lock


def keys_of(images: Images, **options: object) -> dict[str, str]:
    return {name: layer.key for name, layer in images.render(**options).items()}  # type: ignore[arg-type]


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_the_same_input_has_the_same_key(chain: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys_of(chain)
    assert all(len(key) == 64 for key in before.values())
    # another checkout, elsewhere, written in another order with other times, under another umask
    old = os.umask(0o077)
    try:
        copy = Images(tmp_path / "deep" / "er")
        for source in sorted(chain.root.rglob("*"), reverse=True):
            target = copy.root / source.relative_to(chain.root)
            if source.is_file() and "deep" not in source.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                target.chmod(0o700 if source.stat().st_mode & 0o100 else 0o600)
                os.utime(target, (1, 1))
    finally:
        os.umask(old)
    monkeypatch.chdir("/")
    for name, value in {
        "HOME": "/nowhere",
        "LANG": "tr_TR.UTF-8",
        "TZ": "Asia/Kolkata",
        "http_proxy": "http://proxy:3128",
        "HTTPS_PROXY": "http://proxy:3128",
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "UV_INDEX_URL": "https://mirror.example/simple",
        "SSL_CERT_FILE": "/etc/ssl/x.pem",
        "SOURCE_DATE_EPOCH": "1",
        "DOCKER_HOST": "tcp://x:1",
    }.items():
        monkeypatch.setenv(name, value)
    assert keys_of(copy) == before


EVERYTHING = {"base", "devel", "rccl", "torch", "app"}


def edit(path: str, old: str, new: str) -> Callable[[Images], None]:
    def change(images: Images) -> None:
        text = (images.root / path).read_text()
        assert old in text
        images.write(path, text.replace(old, new))

    return change


def executable(images: Images) -> None:
    (images.root / "python/strix_train/run.py").chmod(0o755)


def rename(images: Images) -> None:
    patches = images.path / "rccl/patches"
    (patches / "0001-a.patch").rename(patches / "0001-b.patch")
    images.write("images/rccl/patches/series", "0001-b.patch\n0002-x.patch\n")


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        (edit("images/torch/Dockerfile.j2", "RUN", "RUN  "), {"torch", "app"}),
        (edit("images/base/layer.toml", "jobs = 2", "jobs = 3"), EVERYTHING),
        (edit("images/devel/Dockerfile.j2", "tools", "others"), {"devel", "rccl", "torch", "app"}),
        (edit("images/rccl/patches/0002-x.patch", "+++ d", "+++ e"), {"rccl", "torch", "app"}),
        (edit("images/rccl/patches/series", "0002-x.patch\n", ""), {"rccl", "torch", "app"}),
        (executable, {"app"}),
        (rename, {"rccl", "torch", "app"}),
        (edit("python/strix_train/run.py", "1", "2"), {"app"}),
        (lambda images: images.write("python/strix_train/new.py", ""), {"app"}),
        (lambda images: images.write("images/app/files/x", ""), {"app"}),
        (lambda images: (images.root / "python/strix_train/run.py").unlink(), {"app"}),
        (edit("images/channels/debian.toml", '"sid"', '"trixie"'), EVERYTHING),
        # what is only said about a layer, or decides about nothing here
        (edit("images/torch/layer.toml", "a layer", "another"), set()),
        (lambda images: images.write("images/torch/README.md", "x"), set()),
        (lambda images: images.write("recipes/x.yaml", "x"), set()),
        (edit("images/macros.j2", "", "{% macro unused() %}{% endmacro %}"), set()),
        (lambda images: os.utime(images.root / "python/strix_train/run.py", (9, 9)), set()),
        (lambda images: images.write("python/strix_train/__pycache__/run.pyc", "x"), set()),
        (lambda images: images.channel("other", 'notice = "x"\n'), set()),
    ],
)
def test_each_kind_of_change(chain: Images, change: Callable[[Images], None], layers: set[str]) -> None:
    before = keys_of(chain)
    change(chain)
    assert changed(before, keys_of(chain)) == layers


def test_locked_inputs(chain: Images) -> None:
    before = keys_of(chain)
    assert changed(before, keys_of(chain, locked=lock({"python3-torch": "1.0-2"}))) == {"torch", "app"}
    assert changed(before, keys_of(chain, locked=lock({"bash": "1.0-2"}))) == EVERYTHING
    assert changed(before, keys_of(chain, locked=lock({"unrelated": "1.0-2"}))) == set()
    assert changed(before, keys_of(chain, locked=lock(pip={"app": b"peft==1.1 --hash=sha256:0\n"}))) == {"app"}


def test_archives_by_their_hash_alone(chain: Images) -> None:
    def archive(url: str, sha: str) -> dict[str, str]:
        toml = f'parent = ["base"]\nserves = "gpu"\n[archives.src]\nurl = "{url}"\nsha256 = "{sha * 64}"\nsize = 9\n'
        chain.layer("rccl", toml, "FROM {{ parent }}\nADD {{ archive('src') }} /\n")
        return keys_of(chain)

    before = archive("https://a.example/v1.tar", "a")
    assert changed(before, archive("https://mirror.example/deep/v1.tar", "a")) == set()
    assert changed(before, archive("https://a.example/v1.tar", "b")) == {"rccl", "torch", "app"}


def test_base_images_by_their_digest(chain: Images) -> None:
    text = chain.channel("debian").read_text()
    chain.write("images/channels/debian.toml", text.replace('"mmdebstrap"', '"image", image = "r.example/d:sid"'))
    chain.layer("base", "", "FROM {{ base_image }}\n")
    one, two = (chain.render(locked=lock(image=f"r.example/d@sha256:{digit * 64}")) for digit in "ab")
    assert changed({n: k.key for n, k in one.items()}, {n: k.key for n, k in two.items()}) == EVERYTHING
    # the part tells the digests apart, not only the name that both share
    assert (one["base"].parts["image"], two["base"].parts["image"]) == ("a" * 12, "b" * 12)


def test_parts_name_what_is_in_a_layer(chain: Images) -> None:
    layers = chain.render(locked=lock({"python3-torch": "2.14.1-1"}))
    assert set(layers["app"].parts) == {
        "parent torch",
        "pip app",
        "python/strix_train/__init__.py",
        "python/strix_train/run.py",
        "Dockerfile",
    }
    assert layers["torch"].parts["apt python3-torch"] == "2.14.1-1"
    assert layers["torch"].parts["parent rccl"] == layers["rccl"].key[:12]
    assert set(layers["rccl"].parts) >= {"parent base", "builder devel", "patches/0001-a.patch", "patches/0002-x.patch"}


def test_a_dockerfile_that_only_follows_its_parent_is_no_part_that_changed(chain: Images) -> None:
    before = chain.render()["app"]
    chain.write("images/base/Dockerfile.j2", "FROM scratch\nADD {{ rootfs }} /\nRUN more\n")
    after = chain.render()["app"]
    assert {name for name in before.parts if before.parts[name] != after.parts[name]} == {"parent torch"}


def test_files_carry_the_digest_that_the_key_was_made_of(chain: Images) -> None:
    layer = chain.render()["app"].layer
    assert all(file.digest == keys.digest(file) for file in layer.files)
    assert len({file.digest for file in layer.files}) == len(layer.files)


@given(st.binary(max_size=100), st.booleans(), st.binary(max_size=100), st.booleans())
def test_digests(one: bytes, first: bool, two: bytes, second: bool) -> None:
    a, b = ContextFile("a", one, first), ContextFile("b", two, second)
    assert (keys.digest(a) == keys.digest(b)) == ((one, first) == (two, second))


@given(st.text(min_size=1, max_size=90), st.text(min_size=1, max_size=90))
def test_shown_inputs_differ_when_the_inputs_do(one: str, two: str) -> None:
    for prefix in ("", "x" * 70):
        assert (keys.shown(prefix + one) == keys.shown(prefix + two)) == (one == two)
        assert len(keys.shown(prefix + one)) <= keys.LONGEST + 1


def test_keys_are_long_lived(images: Images) -> None:
    """The key of a fixed input is a fixed number: a change of the format must change FORMAT as well."""
    images.layer("only", "final = true\n", "FROM scratch\nCOPY files /\n")
    images.write("images/only/files/x", "x", executable=True)
    only: Keyed = images.render()["only"]
    assert (keys.FORMAT, only.key) == ("1", "b2899150503e811f04197357066da95cacdcaf6f6e4aef93dec32fa64d7b5d4d")


def test_a_key_can_be_computed_again_from_its_record(chain: Images) -> None:
    for layer in chain.render().values():
        assert keys.key_of(layer.inputs) == layer.key
        name, parts = keys.recorded(layer.inputs)
        assert name == layer.name
        assert set(parts) <= {part.replace("builder ", "parent ") for part in layer.parts}
        assert keys.tells_of(layer.inputs, layer.parts)
        assert not keys.tells_of(layer.inputs, {**layer.parts, "apt more": "1"})
        assert not keys.tells_of(layer.inputs, {})


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"format": "1"}', "[" * 100_000])
def test_what_is_no_record(text: str) -> None:
    with pytest.raises(ValueError):
        keys.recorded(text)
