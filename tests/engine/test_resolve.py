"""The real archive, index and registry, and a build step that reaches them with the host's settings on both engines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from strix_finetune import bootstrap, context, debian, netconf, programs
from strix_finetune.engine.base import BuildRequest, RunRequest
from strix_finetune.errors import FetchFailed, LockError, Place
from strix_finetune.lockmodel import AptLock, Lock
from strix_finetune.model import ContextFile, Keyed, LayerDef, Node, RenderedLayer, Source
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve import aptsource, image, pip
from strix_finetune.resolve.apt import AptArchive
from strix_finetune.schema import Apt, ChannelFile, LayerFile, PipSet
from strix_finetune.tomlpos import Positions
from tests.engine.conftest import LABEL, Bench
from tests.engine.publish import publish
from tests.fileserver import served

pytestmark = pytest.mark.engine
SID = Apt(suite="sid")
PACKAGES = ("ca-certificates", "python3-torch")


@pytest.fixture(scope="module")
def settings() -> NetSettings:
    return netconf.collect(os.environ)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def archive(settings: NetSettings, cache: Path) -> AptArchive:
    return AptArchive(settings, cache)


def test_the_archive_answers_and_the_second_time_it_is_quick(archive: AptArchive) -> None:
    first = archive.ask([*PACKAGES, "python3-troch", "awk"], SID)
    assert first.releases.keys() == {"sid"}
    assert first.releases["sid"].date.startswith("20")
    torch = first.candidates["python3-torch"]
    assert torch.version in first.served["python3-torch"]
    assert torch.size > 10**6
    assert dict(first.unknown).pop("python3-troch") == "did you mean 'python3-torch'?"
    assert "mawk" in first.unknown["awk"]
    began = time.monotonic()
    assert archive.ask(PACKAGES, SID).candidates["python3-torch"] == torch
    assert time.monotonic() - began < 5


def test_another_suite_is_weighed_by_its_pins(archive: AptArchive) -> None:
    apt = Apt(suite="sid", extra_suites=["experimental"])
    plain = archive.ask(["hipcc"], apt)
    assert plain.releases.keys() == {"sid", "experimental"}
    newest = max(plain.served["hipcc"], key=lambda version: version.split("-")[0])
    if len(plain.served["hipcc"]) > 1:
        assert plain.candidates["hipcc"].version != newest
        pinned = replace_pins(apt, "Package: hipcc\nPin: release a=experimental\nPin-Priority: 990")
        assert archive.ask(["hipcc"], pinned).candidates["hipcc"].version == newest


def replace_pins(apt: Apt, pin: str) -> Apt:
    return apt.model_copy(update={"pins": [pin]})


def test_a_suite_that_is_not_there(archive: AptArchive) -> None:
    with pytest.raises(FetchFailed, match="does not serve the suite 'sidd'"):
        archive.ask(["bash"], Apt(suite="sidd"))


@pytest.fixture
def forged(archive: AptArchive, cache: Path, tmp_path: Path) -> Iterator[str]:
    """A mirror whose Release file was changed after Debian signed it; yields its URL."""
    archive.ask(["bash"], SID)
    signed = next(cache.glob("apt/*/state/lists/*_dists_sid_InRelease"))
    folder = tmp_path / "debian/dists/sid"
    folder.mkdir(parents=True)
    (folder / "InRelease").write_text(signed.read_text().replace("Label: Debian", "Label: Debian, in truth"))
    with served(tmp_path) as root:
        yield f"{root}/debian"


def test_a_mirror_that_forges_the_archive_is_not_believed(forged: str, settings: NetSettings, cache: Path) -> None:
    resolver = AptArchive(replace(settings, debian_mirror=forged), cache)
    with pytest.raises(FetchFailed, match="the signature of Debian's suite 'sid' cannot be verified"):
        resolver.ask(["bash"], SID)


def test_debians_own_sources_are_known_without_the_network() -> None:
    assert programs.HOST.mmdebstrap.default_sources("sid")[0].suite == "sid"
    assert {source.suite for source in programs.HOST.mmdebstrap.default_sources("trixie")} >= {
        "trixie",
        "trixie-updates",
    }


UNSLOTH = PipSet(
    requirements=["unsloth==2026.10.9", "unsloth_zoo==2026.10.9", "transformers<=5.17.0", "trl<=1.15.0", "datasets<5"],
    exclude=["torch", "torchvision", "triton", "xformers"],
    forbid=["nvidia-*", "cuda-*"],
)
PLACE = Place(Path("images/unsloth/layer.toml"), 9)


def test_the_real_set_resolves_to_hashed_wheels(settings: NetSettings) -> None:
    solve = partial(pip.resolve, "unsloth", python="3.14", glibc="2.43", settings=settings, place=PLACE)
    locked = solve(UNSLOTH)
    assert locked.packages["unsloth"] == "2026.10.9"
    assert "torch" not in locked.packages
    assert all(locked.files.values())
    assert "://" not in locked.text
    assert "#" not in locked.text
    again = solve(UNSLOTH, previous=locked.text, upgrade=())
    assert again == locked
    older = locked.text.replace(f"idna=={locked.packages['idna']}", "idna==3.10")
    assert solve(UNSLOTH, previous=older, upgrade=()).packages["idna"] == "3.10"
    assert solve(UNSLOTH, previous=older, upgrade=("idna",)).packages["idna"] == locked.packages["idna"]


def test_what_is_forbidden_is_named_with_what_brings_it(settings: NetSettings) -> None:
    wanted = UNSLOTH.model_copy(update={"forbid": ["cut-*"]})
    with pytest.raises(LockError) as caught:
        pip.resolve("unsloth", wanted, python="3.14", glibc="2.43", settings=settings, place=PLACE)
    assert str(caught.value) == (
        "images/unsloth/layer.toml:9: 'unsloth' forbids cut-*, but 'cut-cross-entropy' gets in by way of unsloth-zoo;"
        " exclude it, or what brings it in"
    )


def test_requirements_that_contradict_each_other(settings: NetSettings) -> None:
    wanted = PipSet(requirements=["unsloth==2026.10.9", "trl>1.15.0"], exclude=["torch"])
    with pytest.raises(LockError, match=r"the requirements of 'unsloth' cannot be met: unsloth.* trl>1.15.0"):
        pip.resolve("unsloth", wanted, python="3.14", glibc="2.43", settings=settings)


def test_an_index_that_is_not_there(settings: NetSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path))
    nowhere = replace(settings, indexes=replace(settings.indexes, default="http://me:pw@127.0.0.1:9/simple"))
    with pytest.raises(FetchFailed, match="the package index gives no answer for 'x'") as caught:
        pip.resolve("x", PipSet(requirements=["idna"]), python="3.14", glibc="2.43", settings=nowhere)
    assert "pw" not in str(caught.value)


def test_a_registry_tells_the_digest_that_was_pushed(docker_bench: Bench, registry: str) -> None:
    name = f"{registry}/resolve/base:1"
    pushed = publish(docker_bench.engine, docker_bench.base, name)
    assert image.digest(name, NetSettings(), lambda text: None) == pushed
    with pytest.raises(LockError, match="has no image"):
        image.digest(f"{registry}/resolve/base:2", NetSettings(), lambda text: None)


@pytest.fixture(scope="module")
def rootfs_tar(archive: AptArchive, settings: NetSettings, cache: Path) -> Path:
    """A real root file system from the archive."""
    answer = archive.ask(["ca-certificates", "libc6"], SID)
    lock = Lock("debian", "cpu", AptLock("sid", answer.releases, answer.candidates))
    spec = LayerFile(name="base", description="d", packages={"rootfs": ["ca-certificates"]})
    definition = LayerDef(spec, Source(Path("layer.toml"), Positions("")), cache / "layer", ())
    node = Node(definition, None, (), {}, {"rootfs": ("ca-certificates",)}, {})
    channel = ChannelFile.model_validate(
        {"name": "debian", "description": "d", "python": "3.14", "bootstrap": {"source": "mmdebstrap"}, "apt": SID}
    )
    layer = Keyed(RenderedLayer(node, "", (), {}), "", {})
    made = bootstrap.rootfs(layer, lock, channel, settings, cache)
    assert [path.name for path in made.parent.iterdir() if not path.name.endswith(".lock")] == [made.name]
    return made


DOCKERFILE = """\
FROM scratch
ADD rootfs.tar /
RUN --mount=type=bind,source=.strix-net,target=/mnt --mount=type=bind,source=locked.txt,target=/media/locked.txt \\
    set -eu; . /mnt/env; apt-get -q update; \\
    apt-get -q install --yes --no-install-recommends python3-minimal; \\
    UV_CACHE_DIR=/tmp/uv uv pip install --python /usr/bin/python3 --target /opt/set --no-deps --require-hashes \\
      --only-binary :all: --requirements /media/locked.txt; \\
    rm -rf /tmp/uv /var/lib/apt/lists/*
"""


def test_a_build_step_reaches_the_archive_and_the_index(bench: Bench, rootfs_tar: Path, settings: NetSettings) -> None:
    locked = pip.resolve("x", PipSet(requirements=["idna"]), python="3.14", glibc="2.43", settings=settings)
    net = netconf.files(settings, locked.files, suites=debian.suites(SID))
    files = [
        ContextFile("Dockerfile", DOCKERFILE.encode()),
        *(ContextFile(f"{netconf.FOLDER}/{file.path}", file.source, file.executable) for file in net),
        ContextFile("locked.txt", locked.text.encode()),
        ContextFile("rootfs.tar", rootfs_tar),
    ]
    request = BuildRequest(
        lambda: context.tar(files), {LABEL: "net"}, network="host" if settings.loopback else None, use_cache=False
    )
    built = bench.engine.build(request, lambda event: None)
    try:
        script = (
            "ls /opt/set; echo --; test ! -d /mnt || ls -A /mnt; echo --; cat /etc/apt/sources.list.d/*;"
            " echo --; env; echo --; cat /etc/apt/apt.conf.d/*; ls /etc/apt/*; cat /etc/resolv.conf"
        )
        output: list[bytes] = []
        bench.engine.run(RunRequest(built, ("sh", "-c", script), labels={LABEL: "run"}, network="none"), output.append)
        installed, mounted, sources, env, rest = b"".join(output).decode().split("--\n")
        assert "idna" in installed.split()
        assert mounted == ""
        [default] = programs.HOST.mmdebstrap.default_sources("sid")
        assert sources == (
            f"Types: deb\nURIs: {default.url}\nSuites: sid\nComponents: main\n"
            "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        )
        for word in ("UV_", "SSL_CERT", "proxy", "PIP_", "APT_CONFIG"):
            assert word not in env
        for word in ("Check-Valid-Until", "99mmdebstrap", "/mnt"):
            assert word not in rest
    finally:
        bench.engine.remove(built)


def test_a_source_file_comes_by_apt_and_is_what_the_signed_index_says(
    settings: NetSettings, cache: Path, archive: AptArchive
) -> None:
    with archive.state(SID, sources=True) as state:
        state.update()
        versions = aptsource.parse_sources(state.run("apt-cache", "showsrc", "--only-source", "hello").stdout)
    version, files = next(iter(versions.items()))
    name = next(name for name in files if ".orig.tar" in name and not name.endswith(".asc"))
    url, listed = f"apt-source:hello={version}/{name}", files[name]
    path = aptsource.fetch_source(url, listed.sha256, listed.size, cache / "archives", settings, cache, SID)
    assert path.name == listed.sha256
    assert path.stat().st_size == listed.size
    with pytest.raises(FetchFailed, match="is not the file that the lock names"):
        aptsource.fetch_source(url, "0" * 64, listed.size, cache / "archives", settings, cache, SID)
