"""The field's traps: each stops the lock or the build, in a sentence that names it."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.amd.images import FIRST
from tests.standin.amd import KNOWN_BAD, RELEASE, archives, placeholders
from tests.standin.device_code import split_library
from tests.standin.place import Place, Said
from tests.standin.server import Standin
from tests.standin.tree import Tree
from tests.standin.wheels import Archive, wheel

SITE = "/opt/venv/lib/python3.13/site-packages"
TRAP = 'name = "trap"\ndescription = "what somebody adds"\nparent = ["finetune"]\n'


def sprung(place: Place, name: str, commands: str, files: dict[str, bytes] | None = None) -> str:
    """All that the smoke tests complain about in an image to which somebody does this."""
    template = f"FROM {{{{ parent }}}}\nCOPY files/ /tmp/trap/\nRUN {commands} && rm -r /tmp/trap\n"
    layer = {"layer.toml": TRAP, "Dockerfile.j2": template, "files/note": "nothing else\n"}
    given = {f"files/{path}": content for path, content in (files or {}).items()}
    made = place.override(name, {f"layers/trap/{path}": content for path, content in {**layer, **given}.items()})
    said = place.strix("build", "trap", "--json", override=made)
    assert said.code == 1, said.out[-2000:]
    assert "no tag was moved" in said.sentence
    # one sentence is what people see first; each test has one of its own
    return "\n".join(detail for _, (state, detail) in said.smoke.items() if state == "failed")


def unpack(archive: Archive) -> tuple[str, dict[str, bytes]]:
    """What installing a wheel over the others does."""
    return f"python3 -m zipfile -e /tmp/trap/{archive.filename} {SITE}", {archive.filename: archive.content}


def test_a_newer_torch_over_the_locked_one(place: Place, built: Said) -> None:
    version = "__version__ = '2.99.0'\nhip = None\ncuda = '13.0'\n"
    newer = wheel("torch", "2.99.0", {"torch/version.py": version}, tag="cp313-cp313-linux_x86_64")
    told = sprung(place, "newer", *unpack(newer))
    assert "there is not one torch but 2: " in told
    assert f"2.99.0 in {SITE}" in told


def test_a_library_of_another_maker(place: Place, built: Said) -> None:
    cuda = wheel("nvidia-cublas", "13.0.1", {"nvidia/cublas/lib/libcublas.so.13": b"\x7fELF"})
    assert "nvidia-cublas 13.0.1 is made for other GPUs" in sprung(place, "cuda", *unpack(cuda))


def test_a_missing_device_pack(place: Place, built: Said) -> None:
    told = sprung(place, "packless", f"rm -r {SITE}/amd_torch_device_gfx1151-* {SITE}/torch/.kpack")
    assert "amd-torch-device-gfx1151 2.13.0+rocm10.0.0 is missing: without it torch has no code for gfx1151" in told


def test_a_second_rccl_that_differs(place: Place, built: Said) -> None:
    other = split_library("librccl.so.1", "lib/librccl.so.1.0", ".kpack/rccl_lib_@GFXARCH@.kpack", ["ncclOther"])
    told = sprung(place, "rccl", "cp /tmp/trap/librccl.so.1 /usr/lib/x86_64-linux-gnu/", {"librccl.so.1": other})
    assert "there are 2 librccl that differ: " in told
    assert f"{SITE}/_rocm_sdk_libraries/lib/librccl.so.1" in told
    assert "/usr/lib/x86_64-linux-gnu/librccl.so.1" in told


def test_a_name_that_bitsandbytes_has_no_library_for(place: Place, built: Said) -> None:
    """As it was with ROCm 7.12: a version of HIP that the wheel does not know, of another major version even."""
    told = sprung(place, "bnb", f"sed -i s/7.15.26333/8.2.000000/ {SITE}/torch/version.py")
    assert "bitsandbytes looks for libbitsandbytes_rocm82.so with HIP 8.2.000000" in told


def test_a_package_that_asks_for_another_torch(place: Place, built: Said) -> None:
    """A torch that is newer, in a folder of wheels that the host offers, and a package that wants it."""
    wheels = place.root / "wheels"
    wheels.mkdir()
    wheel("torch", "2.99.0", {"torch/__init__.py": ""}, tag="py3-none-any").save(wheels)
    wheel("greedy", "1.0", {"greedy.py": ""}, tag="py3-none-any", requires=["torch>=2.99"]).save(wheels)
    text = '[layers.unsloth.requirements.unsloth]\nappend = ["greedy==1.0"]\n'
    said = place.strix("lock", "--wheels", str(wheels), override=place.override("greedy", {"override.toml": text}))
    assert said.code == 2
    assert "greedy" in said.err
    assert "torch>=2.99" in said.err
    assert not (place.root / "overrides/greedy/locks").exists()


def test_half_of_a_set_is_not_locked(place: Place, locked: Place) -> None:
    before = place.locked()
    pack = next(item for item in archives(RELEASE, [FIRST]) if item.project == "amd-torch-device-gfx1151")
    place.amd.tree.withdraw(pack.filename)
    try:
        said = place.strix("lock", "--update", "torch")
        assert said.code == 2
        assert "has no amd-torch-device-gfx1151==2.13.0+rocm10.0.0" in said.err
        assert place.locked() == before
        # what is locked and gone is said as well
        said = place.strix("lock", "--check")
        assert (said.code, "amd-torch-device-gfx1151" in said.out) == (1, True)
    finally:
        place.amd.tree.add(pack)


def test_a_placeholder_of_the_same_name_is_never_asked_for(locked: Place, tmp_path: Path) -> None:
    """The index of Python packages may have what it wants under AMD's names: only AMD's is asked for them."""
    for empty in placeholders():
        empty.save(tmp_path)
    said = locked.strix("lock", "--update", "rocm", "--update", "torch", "--wheels", str(tmp_path))
    assert said.code == 0, said.err
    assert "no changes" in said.out


def test_a_nightly_that_is_known_to_be_bad(place: Place, tmp_path: Path) -> None:
    tree = Tree(archives(KNOWN_BAD, [FIRST]))
    with Standin(tree) as amd:
        other = Place.made(tmp_path, amd)
        channel = other.images / "channels/amd.toml"
        text = channel.read_text()
        for right, wrong in (
            (RELEASE.torch_version, KNOWN_BAD.torch_version),
            (RELEASE.vision_version, KNOWN_BAD.vision_version),
            (f"=={RELEASE.rocm}", f"=={KNOWN_BAD.rocm}"),
        ):
            assert right in text
            text = text.replace(right, wrong)
        channel.write_text(text)
        said = other.strix("lock")
    assert said.code == 2
    assert "20260610" in said.err
    assert "HIP crashes when it starts" in said.err
    assert not list((other.images / "locks").iterdir())
