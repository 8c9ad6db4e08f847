"""Vendoring for real: apt's own downloads, and a small stack that is built on both engines without a network."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from strix_finetune import context, names, netconf
from strix_finetune.download import Gone
from strix_finetune.engine.base import BuildRequest, RunRequest
from strix_finetune.errors import FetchFailed
from strix_finetune.model import ContextFile
from strix_finetune.netconf import NetSettings
from strix_finetune.vendor import aptmirror, images, manifest
from strix_finetune.vendor.manifest import Entry
from tests.engine.conftest import LABEL, Bench
from tests.engine.publish import publish
from tests.fileserver import Quiet, served

pytestmark = pytest.mark.engine
ROOT = Path(__file__).resolve().parents[2]
BODY = bytes(range(256)) * 8192  # 2 MiB


@dataclass
class Archive:
    """A web server over a folder that looks like an archive; it answers ranges, as every mirror does."""

    root: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def entry(self, path: str, content: bytes = BODY, *, listed: bytes | None = None) -> Entry:
        """A file of the archive; with `listed` its index says something else of it."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        told = content if listed is None else listed
        return Entry(f"apt/sid-1/{path}", hashlib.sha256(told).hexdigest(), len(told), f"{self.url}/{path}")


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    state = Archive(tmp_path / "archive")

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            state.asked.append(f"{self.path} {self.headers.get('Range', '')}".strip())
            path = state.root / self.path.lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
            content = path.read_bytes()
            self.send_response(206 if begin else 200)
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - begin))
            self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
            self.end_headers()
            self.wfile.write(content[begin:])

    with served(tmp_path, Handler) as state.url:
        yield state


def fetch(archive: Archive, folder: Path, *entries: Entry) -> list[str]:
    done: list[str] = []
    aptmirror.fetch(entries, folder, archive.url, NetSettings(), lambda entry: done.append(entry.path))
    return done


def test_apt_fetches_many_files_and_goes_on_with_what_was_begun(archive: Archive, tmp_path: Path) -> None:
    entries = [archive.entry(f"pool/{number}.deb", BODY + bytes([number])) for number in range(40)]
    folder = tmp_path / "vendored"
    begun = folder / f"{entries[3].path}.part"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(BODY[:1_000_000])
    # apt gives what it could not finish the time that the server told
    served = (archive.root / "pool/3.deb").stat().st_mtime
    os.utime(begun, (served, served))
    assert fetch(archive, folder, *entries) == [entry.path for entry in entries]
    assert "/pool/3.deb bytes=1000000-" in archive.asked
    assert len(archive.asked) == 40
    for number, entry in enumerate(entries):
        path = folder / entry.path
        assert path.read_bytes() == BODY + bytes([number])
        assert path.stat().st_mode & 0o777 == 0o644
    assert not list(folder.rglob("*.part"))


def test_an_index_that_never_changes_is_fetched_by_its_hash(archive: Archive, tmp_path: Path) -> None:
    digest = hashlib.sha256(BODY).hexdigest()
    steady = f"dists/sid/main/binary-amd64/by-hash/SHA256/{digest}"
    archive.entry(steady)
    path = "apt/sid-1/dists/sid/main/binary-amd64/Packages.xz"
    fetch(archive, tmp_path / "v", Entry(path, digest, len(BODY), f"http://another.mirror.example/{steady}"))
    assert (tmp_path / "v" / path).read_bytes() == BODY


def test_a_mirror_without_such_names_has_it_under_its_own(archive: Archive, tmp_path: Path) -> None:
    path = "dists/sid/main/binary-amd64/Packages.xz"
    entry = archive.entry(path)
    steady = f"{archive.url}/dists/sid/main/binary-amd64/by-hash/SHA256/{entry.sha256}"
    assert fetch(archive, tmp_path / "v", replace(entry, source=steady)) == [entry.path]
    assert archive.asked[-1] == f"/{path}"


def test_what_the_archive_has_no_more(archive: Archive, tmp_path: Path) -> None:
    good, gone = archive.entry("pool/a.deb"), archive.entry("pool/b.deb")
    (archive.root / "pool/b.deb").unlink()
    with pytest.raises(Gone, match=r"no longer serves b\.deb; run the command again with --renew"):
        fetch(archive, tmp_path / "v", good, gone)
    # the others are kept
    assert (tmp_path / "v" / good.path).is_file()


def test_another_file_than_the_index_lists(archive: Archive, tmp_path: Path) -> None:
    entry = archive.entry("pool/a.deb", listed=bytes(reversed(BODY)))
    with pytest.raises(FetchFailed, match=r"serves another a\.deb than its signed index lists"):
        fetch(archive, tmp_path / "v", entry)
    assert not (tmp_path / "v" / entry.path).exists()


def test_nobody_answers(archive: Archive, tmp_path: Path) -> None:
    entry = archive.entry("pool/a.deb")
    archive.url = "http://127.0.0.1:9"
    with pytest.raises(FetchFailed, match=r"a\.deb could not be downloaded \(Could not connect to 127\.0\.0\.1:9"):
        fetch(archive, tmp_path / "v", entry)


VENDORED = images.local_name("").partition(":")[0]
# root can have a namespace of the network alone
ALONE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
# its images have names of their own
TARGET = "vendor-test"
TARGETS = f"""\
default = "{TARGET}"

[target.{TARGET}]
kind = "cpu"
memory = "host"
"""
CHANNEL = """\
name = "debian"
description = "a small stack for tests"
python = "3.14"
bootstrap = { source = "mmdebstrap" }
apt = { suite = "sid", extra_suites = ["experimental"] }
"""
TOOL = """\
name = "tool"
description = "something of each kind"
parent = ["base"]
final = true

[packages]
own = ["python3-minimal", "hello"]

[pip.own]
requirements = ["idna"]

[archives.source]
url = "apt-source:{source}"
sha256 = "{sha256}"
size = {size}
"""
TEMPLATE = """\
{% import "macros.j2" as m %}
FROM {{ parent }}
{% set stub = "dpkg-deb --build /media/stub /tmp/s.deb; dpkg -i /tmp/s.deb; rm /tmp/s.deb;" %}
{{ m.apt_install(channel.name, apt("own"), before=stub) }}
{{ m.uv_install("/opt/own", pip("own"), before="uv venv --quiet --python /usr/bin/python3 /opt/own;") }}
COPY {{ archive("source") }} /opt/source
{{ m.mount_points() -}}
CMD ["hello"]
"""
STUB = """\
Package: strix-stub
Version: 1
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: made by the step itself
"""


@dataclass
class Small:
    """A small stack with a lock, and the driver as a program."""

    folder: Path

    @property
    def where(self) -> list[str]:
        return ["--images", str(self.folder / "images"), "--channel", "debian", "--target", TARGET]

    def strix(self, *arguments: str, network: bool = True, cache: str = "cache") -> subprocess.CompletedProcess[str]:
        """Run the driver; without `network` it has nothing but the loopback."""
        alone = [] if network else ALONE
        command = [*alone, sys.executable, "-m", "strix_finetune", *arguments, *self.where]
        return subprocess.run(command, env=self.environment(cache), capture_output=True, text=True)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "strix_finetune", *arguments, *self.where]
        return subprocess.Popen(
            command, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def environment(self, cache: str = "cache") -> dict[str, str]:
        folders = {"state": "state", "data": "data", "cache": cache}
        return os.environ | {f"XDG_{name.upper()}_HOME": str(self.folder / path) for name, path in folders.items()}

    def good(self, *arguments: str, network: bool = True, cache: str = "cache") -> str:
        done = self.strix(*arguments, network=network, cache=cache)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stderr


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """The stack base → tool, locked and vendored."""
    made = Small(tmp_path_factory.mktemp("small"))
    images = made.folder / "images"
    (images / "channels").mkdir(parents=True)
    (images / "channels/debian.toml").write_text(CHANNEL)
    (images / "targets.toml").write_text(TARGETS)
    shutil.copy(ROOT / "images/macros.j2", images / "macros.j2")
    shutil.copytree(ROOT / "images/base", images / "base")
    source = source_file(made.folder)
    (images / "tool/files/stub/DEBIAN").mkdir(parents=True)
    (images / "tool/files/stub/DEBIAN/control").write_text(STUB)
    (images / "tool/layer.toml").write_text(TOOL.format(**source))
    (images / "tool/Dockerfile.j2").write_text(TEMPLATE)
    made.good("lock")
    made.good("vendor", str(made.folder / "vendored"))
    return made


def source_file(folder: Path) -> dict[str, object]:
    """A small file of a source package that the archive has today."""
    from strix_finetune.resolve import aptsource
    from strix_finetune.resolve.apt import AptArchive
    from strix_finetune.schema import Apt

    with AptArchive(netconf.collect(os.environ), folder / "cache").state(Apt(suite="sid"), sources=True) as state:
        state.update()
        told = state.run("apt-cache", "showsrc", "--only-source", "hello").stdout
    version, files = next(iter(aptsource.parse_sources(told).items()))
    name = next(name for name in files if name.endswith(".dsc"))
    return {"source": f"hello={version}/{name}", "sha256": files[name].sha256, "size": files[name].size}


def test_the_folder_holds_each_file_once_and_says_where_it_came_from(small: Small) -> None:
    folder = small.folder / "vendored"
    listed = json.loads((folder / manifest.NAME).read_text())
    lock = listed["locks"][f"debian-{TARGET}"]
    assert lock["complete"] is True
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert there == {*listed["files"], manifest.NAME}
    suites = {path.split("/")[3] for path in listed["files"] if path.endswith("/InRelease")}
    assert suites == {"sid", "experimental"}
    debs = {path.rsplit("/", 1)[-1].partition("_")[0] for path in lock["debs"]["tool"]}
    assert {"hello", "python3-minimal", "python3.14-minimal"} <= debs
    assert "libc6" not in debs
    assert "libc6" in {path.rsplit("/", 1)[-1].partition("_")[0] for path in lock["debs"]["base"]}
    wheel = next(path for path in listed["files"] if path.startswith("wheels/python/idna/idna-"))
    assert listed["files"][wheel]["from"].startswith("https://")
    assert all(row["time"] and len(row["sha256"]) == 64 for row in listed["files"].values())


def test_the_second_time_nothing_is_asked(small: Small) -> None:
    """Where nobody could be asked, it is as content as before; and every file is what it was."""
    assert "nothing was fetched" in small.good("vendor", str(small.folder / "vendored"), network=False)
    small.good("vendor", "--check", str(small.folder / "vendored"), network=False)


def test_an_interrupt_loses_nothing_that_came(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "vendored"
    process = small.begin("vendor", str(folder))
    while process.poll() is None and not list(folder.rglob("*.deb*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert said.rstrip().endswith("interrupted; what was finished is kept, the next run goes on from there")
    assert json.loads((folder / manifest.NAME).read_text())["locks"][f"debian-{TARGET}"]["complete"] is False
    there = {path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".part")}
    times = {path: path.stat().st_mtime_ns for path in there if path.name != manifest.NAME}
    assert "is complete" in small.good("vendor", str(folder))
    assert {path: path.stat().st_mtime_ns for path in times} == times
    small.good("vendor", "--check", str(folder))
    assert not list(folder.rglob("*.part"))


def test_a_web_server_over_the_folder_is_a_mirror(small: Small, tmp_path: Path) -> None:
    """Where there is no other: another folder is filled from it."""
    folder = small.folder / "vendored"
    [snapshot] = (folder / "apt").iterdir()
    server = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(folder), "8099"]
    script = 'ip link set lo up; "$@" >/dev/null 2>&1 & sleep 1; eval "$VENDOR"; code=$?; kill $!; exit $code'
    command = [sys.executable, "-m", "strix_finetune", "vendor", str(tmp_path / "second"), *small.where]
    env = small.environment() | {
        "VENDOR": shlex.join(command),
        "STRIX_DEBIAN_MIRROR": f"http://127.0.0.1:8099/apt/{snapshot.name}",
        "UV_DEFAULT_INDEX": "http://127.0.0.1:8099/wheels/python",
        "UV_CACHE_DIR": str(tmp_path / "uv"),
    }
    done = subprocess.run([*ALONE, "sh", "-c", script, "sh", *server], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = (json.loads((path / manifest.NAME).read_text())["files"] for path in (folder, tmp_path / "second"))
    assert {path: row["sha256"] for path, row in second.items()} == {path: row["sha256"] for path, row in first.items()}


@pytest.fixture
def tidy(bench: Bench) -> Iterator[Bench]:
    """An engine from which the images of these tests are gone afterwards, however they end."""
    before = {tag for found in bench.engine.api.images(VENDORED) for tag in found["RepoTags"] or ()}
    yield bench
    for found in bench.engine.images(f"{names.TARGET}={TARGET}"):
        for tag in found.tags:
            bench.engine.untag(tag)
    for found in bench.engine.api.images(VENDORED):
        for tag in set(found["RepoTags"] or ()) - before:
            bench.engine.untag(tag)


def test_a_build_from_it_has_no_network(small: Small, tidy: Bench) -> None:
    bench = tidy
    kind = bench.engine.info.kind
    said = small.good(
        *("build", "--engine", kind, "--offline", str(small.folder / "vendored"), "--rebuild", "base", "tool"),
        cache="cache-offline",
    )
    assert "2 built" in said
    image = bench.engine.image(f"localhost/strix-finetune:{TARGET}")
    assert image
    script = (
        "hello -g yes; /opt/own/bin/python -c 'import idna; print(idna.encode(\"ok\"))'; grep ^Source: /opt/source;"
        " ls -A /mnt; dpkg -s strix-stub | grep Status; cat /etc/apt/sources.list.d/*; ls /etc/apt/sources.list*"
    )
    output: list[bytes] = []
    request = RunRequest(image.id, ("sh", "-c", script), labels={LABEL: "run"}, network="none")
    bench.engine.run(request, output.append)
    told = b"".join(output).decode()
    assert "yes" in told
    assert "b'ok'" in told
    assert "Source: hello" in told
    assert "Status: install ok installed" in told
    assert "/mnt" not in told
    assert "copy:" not in told


def test_a_registry_image_is_vendored_and_loaded(
    small: Small, tidy: Bench, docker_bench: Bench, registry: str, tmp_path: Path
) -> None:
    """A channel that begins with an image: its layers are in the folder, and no engine asks a registry for it."""
    pushed = f"{registry}/vendor/debian:1"
    [tar] = (small.folder / "cache/strix-finetune/rootfs").glob("*.tar")
    files = [ContextFile("Dockerfile", b"FROM scratch\nADD rootfs.tar /\n"), ContextFile("rootfs.tar", tar)]
    made = docker_bench.engine.build(BuildRequest(lambda: context.tar(files), {LABEL: "debian"}), lambda event: None)
    publish(docker_bench.engine, made, pushed)
    docker_bench.engine.remove(made)
    shutil.copytree(small.folder / "images", tmp_path / "images", ignore=shutil.ignore_patterns("locks"))
    beginning = f'bootstrap = {{ source = "image", image = "{pushed}" }}'
    text = CHANNEL.replace('bootstrap = { source = "mmdebstrap" }', beginning)
    (tmp_path / "images/channels/debian.toml").write_text(text)
    other, kind = Small(tmp_path), tidy.engine.info.kind
    other.good("lock")
    folder = tmp_path / "vendored"
    other.good("vendor", str(folder))
    layout = folder / "images" / registry / "vendor/debian"
    assert len(list((layout / "blobs/sha256").iterdir())) == 3
    build = ("build", "--engine", kind, "--offline", str(folder), "--rebuild", "base")
    assert "1 built" in other.good(*build, network=False)


def test_one_file_less_or_another_stops_it(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "vendored"
    shutil.copytree(small.folder / "vendored", folder, copy_function=os.link)
    listed = json.loads((folder / manifest.NAME).read_text())
    deb = next(path for path in listed["locks"][f"debian-{TARGET}"]["debs"]["tool"] if "/hello_" in path)
    content = (folder / deb).read_bytes()
    (folder / deb).unlink()
    build = ("build", "--engine", "docker", "--offline", str(folder), "--rebuild", "base", "tool")
    done = small.strix(*build)
    assert done.returncode == 2
    assert f"error: {folder / deb}: this vendored file is missing; run 'strix-finetune vendor" in done.stderr
    (folder / deb).write_bytes(bytes([content[0] ^ 1]) + content[1:])
    done = small.strix(*build)
    assert done.returncode in (1, 2)
    assert f"{folder / deb}: this is not the file that vendor.json lists: its sha256 differs" in done.stderr
    done = small.strix("vendor", "--check", str(folder))
    assert done.returncode == 1
    assert str(folder / deb) in done.stderr
    small.good("vendor", str(folder))
    assert (folder / deb).read_bytes() == content
