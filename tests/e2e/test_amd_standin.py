"""The channel `amd` for real, on Docker, with a stand-in for AMD's servers: lock, vendor, offline build, smoke tests.

What the stubs cannot show is not shown: the smoke tests that compile or compute say so, and are counted as not run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from strix_finetune import names
from strix_finetune.engine.base import Engine, RunRequest
from strix_finetune.engine.select import connect
from tests.standin.amd import KNOWN_BAD, NEWER, OLDER, RELEASE, Release, archives, placeholders
from tests.standin.command import PREFIX, is_left_over, is_ours
from tests.standin.device_code import split_library
from tests.standin.faults import Altered, Cut, Kind, Shortened, Slow, Status
from tests.standin.place import Place, Said
from tests.standin.server import Standin
from tests.standin.tree import Tree
from tests.standin.wheels import Archive, wheel

FIRST = "gfx1151"
OTHERS = ("gfx1100", "gfx1201", "gfx942", "gfx1030")
# what only real packages can show, and what only a GPU can
COMPUTES = {"rocm/runtime.py", "pytorch/torch_cpu.py", "unsloth/lora_step.py", "export/converts.py"}
ON_A_GPU = {
    "rocm/hip_device.py",
    "pytorch/torch_device.py",
    "pytorch/collectives_device.py",
    "unsloth/four_bits_device.py",
}
SITE = "/opt/venv/lib/python3.13/site-packages"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    published = [*archives(RELEASE, (FIRST, *OTHERS)), *archives(NEWER, [FIRST])]
    with Standin(Tree(published, legacy=archives(OLDER, [FIRST]))) as amd:
        made = Place.made(tmp_path_factory.mktemp("amd"), amd)
        remove_images()
        try:
            yield made
        finally:
            remove_images()
            # half a gigabyte that pytest would keep for three runs
            shutil.rmtree(made.root)


@pytest.fixture(autouse=True)
def healthy(place: Place) -> None:
    """Each test begins with a server that nothing is wrong with, and that remembers nothing."""
    place.amd.heal()


@pytest.fixture(scope="module")
def docker() -> Iterator[Engine]:
    engine = connect("docker", os.environ)
    yield engine
    engine.close()


def remove_images() -> None:
    """What bears a name of this run, or of one that was killed; children first."""
    engine = connect("docker", os.environ)
    try:
        while ours := {image.id: tags for image in engine.images(names.KEY) if (tags := left_over(image.tags))}:
            for image, tags in ours.items():
                for tag in tags:
                    engine.untag(tag)
                engine.remove(image)
    finally:
        engine.close()


def left_over(tags: Iterable[str]) -> list[str]:
    return [tag for tag in tags if is_ours(tag) or is_left_over(tag)]


def moving(engine: Engine) -> dict[str, str]:
    """The names of this run's images → what they point to."""
    return {tag: image.id for image in engine.images(names.KEY) for tag in image.tags if is_ours(tag)}


@pytest.fixture(scope="module")
def locked(place: Place) -> Place:
    """The locks of all targets."""
    place.amd.heal()
    place.well("lock")
    for target in OTHERS:
        place.well("lock", "--from-lock", FIRST, target=target)
    return place


@pytest.fixture(scope="module")
def vendored(locked: Place) -> Path:
    """The inputs of all targets in one folder."""
    folder = locked.root / "vendored"
    for target in (FIRST, *OTHERS):
        locked.well("vendor", str(folder), target=target)
    return folder


@pytest.fixture(scope="module")
def built(locked: Place, vendored: Path) -> Said:
    """The whole chain of the first target, built from the folder."""
    return offline_build(locked, vendored, FIRST)


def offline_build(place: Place, folder: Path, target: str, *layers: str) -> Said:
    """Build with a cache that knows nothing, and a server that is not asked."""
    place.amd.heal()
    env = {"XDG_CACHE_HOME": str(place.root / "empty-cache")}
    said = place.strix("build", *layers, "--offline", str(folder), "--json", target=target, env=env)
    assert said.code == 0, said.sentence[-4000:]
    assert place.amd.asked == []
    return said


# from the index to the lock


@pytest.mark.parametrize("target", [FIRST, *OTHERS])
def test_a_lock_is_what_the_index_has_for_the_target(locked: Place, target: str) -> None:
    published = {item.sha256: item for item in archives(RELEASE, [target])}
    wheels = [item for entry in locked.locked(target)["wheels"].values() for item in entry["files"]]
    left_out = {"rocm-sdk-devel", "torchaudio"}
    assert {item["name"] for item in wheels} == {item.project for item in published.values()} - left_out
    for item in wheels:
        found = published[item["sha256"]]
        assert (item["version"], item["size"]) == (found.version, found.size)
        # where the files belong, not where this test has them from
        assert item["url"].startswith("https://")
        assert "127.0.0.1" not in item["url"]


def test_locking_asks_for_nothing_else(place: Place, tmp_path: Path) -> None:
    """Exactly the pages and the files of the set: no other project, no other Python, nothing for Windows."""
    other = Place(tmp_path, place.amd)
    for folder in ("images", "overrides"):
        (tmp_path / folder).symlink_to(place.root / folder)
    (tmp_path / "cache/strix-finetune").mkdir(parents=True)
    (tmp_path / "cache/strix-finetune/apt").symlink_to(place.root / "cache/strix-finetune/apt")
    other.well("lock", "--update", "torch", "--update", "rocm")
    wheels = [item for entry in place.locked()["wheels"].values() for item in entry["files"]]
    assert place.amd.files() == sorted(unquote(item["url"].rsplit("/", 1)[-1]) for item in wheels)
    pages = {asked.path.split("/")[-2] for asked in place.amd.asked if asked.path.endswith("/")}
    assert pages == {item["name"] for item in wheels}


def test_what_is_locked_is_served(locked: Place) -> None:
    said = locked.well("lock", "--check")
    assert "the lock is complete and everything in it is served" in said.out


@pytest.mark.parametrize(("channel", "release"), [("amd-7.14", OLDER), ("amd-edge", NEWER)])
def test_the_other_channels_are_locked_from_their_indexes(
    place: Place, tmp_path: Path, channel: str, release: Release
) -> None:
    """The older index is one flat folder of files; the newer one has the next release beside the stable one."""
    other = Place.made(tmp_path, place.amd, channel)
    other.well("lock")
    wheels = [item for entry in other.locked()["wheels"].values() for item in entry["files"]]
    versions = {item["name"]: item["version"] for item in wheels}
    assert (versions["torch"], versions["rocm"]) == (release.torch_version, release.rocm)
    assert versions["triton"] == release.triton_version
    assert {item["sha256"] for item in wheels} <= {item.sha256 for item in archives(release, [FIRST])}
    assert f"FROM {PREFIX}/rocm:gfx1151-" in other.well("render", "pytorch").out


# from the lock to the images


def test_the_whole_chain_is_built_from_the_folder(built: Said, docker: Engine) -> None:
    done = {event["layer"]: event["outcome"] for event in built.events if event["event"] == "layer-done"}
    planned = [event["layer"] for event in built.events if event.get("action") == "build"]
    assert {"base", "rocm", "pytorch", "unsloth", "finetune"} <= set(planned)
    assert done == dict.fromkeys(planned, "built")
    assert f"{PREFIX}:{FIRST}" in moving(docker)


def test_every_smoke_test_has_passed_or_says_why_not(built: Said) -> None:
    states: dict[str, set[str]] = {}
    for (_, test), (state, _) in built.smoke.items():
        states.setdefault(test, set()).add(state)
    not_shown = {test for test, found in states.items() if found == {"not-run"}}
    assert not_shown == COMPUTES | ON_A_GPU
    assert {test for test, found in states.items() if found == {"passed"}} == states.keys() - not_shown
    for (_, test), (_, detail) in built.smoke.items():
        if test in COMPUTES:
            assert "is a stub that" in detail
        if test in ON_A_GPU:
            assert "no AMD GPU on this machine" in detail


def test_the_guards_have_looked_at_each_layer(built: Said) -> None:
    """Device code is read in the layer that brings it; who came later must not have touched it."""
    details = {(layer, test): detail for (layer, test), (_, detail) in built.smoke.items()}
    for layer in ("pytorch", "unsloth", "finetune"):
        assert "torch 2.13.0+rocm10.0.0 (HIP 7.15.26333" in details[layer, "pytorch/rocm_build.py"]
        assert "_rocm_sdk_libraries/lib/librccl.so.1, the only one" in details[layer, "pytorch/one_rccl.py"]
        assert "5 packages are the locked ones and whole" in details[layer, "rocm/packages.py"]
    assert "all for gfx1151 alone" in details["rocm", "rocm/packages.py"]
    assert "code for gfx1151 alone" in details["pytorch", "pytorch/rocm_build.py"]
    assert "libbitsandbytes_rocm715.so" in details["unsloth", "unsloth/bitsandbytes_library.py"]


@pytest.mark.parametrize("target", OTHERS)
def test_another_target_is_built_from_the_folder(locked: Place, vendored: Path, built: Said, target: str) -> None:
    said = offline_build(locked, vendored, target, "pytorch")
    details = {(layer, test): detail for (layer, test), (_, detail) in said.smoke.items()}
    assert {state for _, (state, _) in said.smoke.items()} == {"passed", "not-run"}
    assert f"code for {target} alone" in details["pytorch", "pytorch/rocm_build.py"]
    assert f"all for {target} alone" in details["rocm", "rocm/packages.py"]


def test_nothing_is_left_to_do(locked: Place, vendored: Path, built: Said) -> None:
    said = offline_build(locked, vendored, FIRST)
    # the workbench is built when it is asked for
    plan = {event["layer"]: event["action"] for event in said.events if event["event"] == "layer-planned"}
    assert plan == {**dict.fromkeys(plan, "reuse"), "workbench": "not-needed"}


def test_the_image_holds_one_rocm_and_says_what_it_is(docker: Engine, built: Said) -> None:
    program = (
        "import os, torch; from importlib.metadata import version as v;"
        "print(torch.version.hip, v('torch'), v('triton'), os.environ['STRIX_CHANNEL_NOTICE'].split(';')[0])"
    )
    said: list[bytes] = []
    request = RunRequest(f"{PREFIX}:{FIRST}", ("/opt/venv/bin/python", "-c", program), network="none")
    assert docker.run(request, said.append).exit_code == 0, b"".join(said)
    assert b"".join(said).decode().strip() == (
        "7.15.26333 2.13.0+rocm10.0.0 3.8.0+git4cff872c.rocm10.0.0 Channel amd: ROCm 10.0.0 with PyTorch 2.13"
    )


# what goes wrong on the way to a build


def core(place: Place) -> str:
    """sha256 of a file that the layer rocm of every target is made of."""
    files = place.locked()["wheels"]["rocm"]["files"]
    return next(str(item["sha256"]) for item in files if item["name"] == "rocm-sdk-core")


SPOILED: list[tuple[Kind, str]] = [
    (Status(403), "the index 'amd' does not serve rocm_sdk_core-"),
    (Status(404), "the index 'amd' does not serve rocm_sdk_core-"),
    (Status(429, retry_after="1"), "could not be downloaded (HTTP 429"),
    (Cut(after=0), "could not be downloaded (the connection was cut"),
    (Altered(), "is not the file that the lock names: its sha256 is "),
    (Shortened(keep=5000), "has 5000 bytes there, and the lock says "),
]


@pytest.mark.parametrize(("kind", "sentence"), SPOILED, ids=repr)
def test_a_lasting_fault_stops_the_build_and_moves_no_name(
    place: Place, built: Said, docker: Engine, kind: Kind, sentence: str
) -> None:
    before = moving(docker)
    place.forget([core(place)])
    place.amd.fail("*/rocm_sdk_core-*.whl", kind)
    said = place.strix("build", "rocm", "--rebuild", "--json")
    assert said.code == 1
    assert f"rocm_sdk_core-{RELEASE.rocm}-py3-none-linux_x86_64.whl" in said.sentence
    assert sentence in said.sentence
    assert moving(docker) == before
    assert not (place.downloads / core(place)).exists()


def test_passing_faults_end_in_the_same_image(place: Place, built: Said, docker: Engine) -> None:
    wheels = [item for entry in place.locked()["wheels"].values() for item in entry["files"]]
    place.forget(item["sha256"] for item in wheels)
    amd = place.amd
    where = "/rocm/core/whl-next/*/"
    faults = [
        amd.fail(f"{where}rocm_sdk_core-*.whl", Cut(after=100_000), times=3),
        amd.fail(f"{where}rocm_sdk_libraries-*.whl", Status(429, retry_after="1"), times=2),
        amd.fail(f"{where}rocm_sdk_device_*.whl", Slow(delay=0.05, piece=1024)),
        amd.fail(f"{where}rocm-10.0.0.tar.gz", Status(500), times=2),
        amd.fail(f"{where}rocm_bootstrap-*.whl", Status(503, retry_after="1"), times=1),
    ]
    said = place.strix("build", "rocm", "--rebuild", "--json")
    assert said.code == 0, said.sentence
    assert [fault.hits for fault in faults] == [3, 2, 1, 2, 1]
    # what was there of a broken download is not asked for again
    assert [asked.range for asked in amd.asked if "rocm_sdk_core" in asked.path and asked.status == 206] == [
        "bytes=100000-",
        "bytes=200000-",
        "bytes=300000-",
    ]
    assert said.smoke["rocm", "rocm/packages.py"][0] == "passed"


# the field's traps: each stops the build, in a sentence that names it


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


def test_a_placeholder_of_the_same_name_is_never_asked_for(place: Place, tmp_path: Path) -> None:
    """The index of Python packages may have what it wants under AMD's names: only AMD's is asked for them."""
    for empty in placeholders():
        empty.save(tmp_path)
    said = place.strix("lock", "--update", "rocm", "--update", "torch", "--wheels", str(tmp_path))
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
