"""Filling a folder: what is there is not fetched, what was interrupted goes on, what is gone is asked for anew."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from strix_finetune import graph, lockfile
from strix_finetune.errors import FetchFailed, InputError, LockError
from strix_finetune.lockmodel import AptLock, AptPackage, Lock, PipLock, Release
from strix_finetune.netconf import NetSettings
from strix_finetune.registry.faults import Missing
from strix_finetune.vendor import collect, manifest, plan, steps
from strix_finetune.vendor.manifest import Entry, LockEntry
from strix_finetune.wanted import declared_sha256
from strix_finetune.workspace import Workspace
from tests.conftest import Images
from tests.unit.registry_double import ANYBODY, double

BODIES = {f"/{name}.whl": name.encode() * 1000 for name in ("a", "b", "c")} | {"/source.tar.gz": b"s" * 500}
SIGNED = {"apt/sid-1/dists/sid/InRelease": b"signed"}


@dataclass
class Server:
    """Serves BODIES. `cut`: path → bytes after which the connection ends; `gone`: what it has no more."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    cut: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    on_get: Callable[[str], None] = lambda path: None


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
            state.asked.append(self.path + (f"@{begin}" if begin else ""))
            state.on_get(self.path)
            body = BODIES[self.path]
            self.send_response(404 if self.path in state.gone else 206 if begin else 200)
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - begin))
            self.end_headers()
            if self.path not in state.gone:
                self.wfile.write(body[begin : state.cut.get(self.path)])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        state.url = f"http://127.0.0.1:{httpd.server_port}"
        yield state
        httpd.shutdown()


class Bench:
    """A workspace with a lock, and a plan that asks nobody: `files` is what the archive and the index would say."""

    def __init__(self, images: Images, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images, self.server = images, server
        self.folder = images.root / "vendored"
        self.said: list[str] = []
        self.planned = 0
        self.files: dict[str, str] = {
            "wheels/python/a/a-1-py3-none-any.whl": "/a.whl",
            "wheels/python/b/b-1-py3-none-any.whl": "/b.whl",
            "archives/x/source.tar.gz": "/source.tar.gz",
        }
        self.lock()
        monkeypatch.setattr(plan, "make", self._make)

    def lock(self, version: str = "1.0-1", target: str = "gfx1151") -> None:
        stack = self.images.stack(target)
        packages = {name: AptPackage(version, 1, "a" * 64) for name in ("bash", "python3-torch")}
        release = Release("2026-01-01T00:00:00Z", "b" * 64)
        declared = declared_sha256(stack.node("app").layer.spec.pip["app"], "3.14")
        pip = {"app": PipLock("3.14", f"peft==1.0 --hash=sha256:{'c' * 64}\n", declared)}
        lockfile.save(
            Lock("debian", target, AptLock("sid", {"sid": release}, packages), pip=pip), self.images.path / "locks"
        )

    def workspace(self, target: str = "gfx1151") -> Workspace:
        project = self.images.load()
        return Workspace(self.images.folders, project, graph.stack(project, target, "debian"))

    def entry(self, path: str, served: str) -> Entry:
        body = BODIES[served]
        return Entry(path, hashlib.sha256(body).hexdigest(), len(body), f"{self.server.url}{served}")

    def _make(self, workspace: Workspace, lock: Lock, layers: Any, *rest: object) -> plan.Needed:
        self.planned += 1
        files = tuple(self.entry(path, served) for path, served in self.files.items())
        asks = steps.digest(workspace.stack, steps.read_steps(workspace.stack, layers))
        paths = tuple(sorted([*self.files, *SIGNED]))
        return plan.Needed(LockEntry(plan.lock_digest(lock), asks, "apt/sid-1", {}, paths), files, SIGNED)

    def vendor(self, target: str = "gfx1151", **options: bool) -> tuple[int, int]:
        """Vendor; returns how many files the lock needs and how many were fetched."""
        workspace = self.workspace(target)
        done = collect.vendor(workspace, NetSettings(), self.folder, self.said.append, **options)
        return done.files, done.fetched_files

    def there(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def bench(chain: Images, server: Server, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(chain, server, monkeypatch)


PAGES = {"wheels/python/index.html", "wheels/python/a/index.html", "wheels/python/b/index.html"}


def test_the_second_time_nothing_is_fetched(bench: Bench) -> None:
    assert bench.vendor() == (4, 3)
    assert bench.there() == {*bench.files, *SIGNED, *PAGES, "vendor.json"}
    assert bench.said[0] == "4 files, 0 MB; to be fetched: 3 files, 0 MB"
    text = (bench.folder / "vendor.json").read_text()
    listed = json.loads(text)
    assert listed["locks"]["debian-gfx1151"]["complete"] is True
    assert all(row["time"] for row in listed["files"].values())
    assert listed["files"]["wheels/python/a/a-1-py3-none-any.whl"]["from"] == f"{bench.server.url}/a.whl"
    asked = len(bench.server.asked)
    assert bench.vendor() == (4, 0)
    assert len(bench.server.asked) == asked
    assert bench.planned == 1
    assert (bench.folder / "vendor.json").read_text() == text


def test_what_is_lost_or_harmed_is_fetched_again(bench: Bench) -> None:
    bench.vendor()
    (bench.folder / "wheels/python/a/a-1-py3-none-any.whl").write_bytes(b"x" * 1000)
    (bench.folder / "archives/x/source.tar.gz").unlink()
    (bench.folder / "wheels/python/index.html").unlink()
    assert bench.vendor() == (4, 2)
    assert bench.planned == 1
    assert (bench.folder / "wheels/python/a/a-1-py3-none-any.whl").read_bytes() == BODIES["/a.whl"]
    assert (bench.folder / "wheels/python/index.html").is_file()


def test_parts_of_a_registry_image_come_from_its_registry(bench: Bench) -> None:
    body = BODIES["/c.whl"]
    digest = hashlib.sha256(body).hexdigest()
    with double() as registry:
        registry.login = ANYBODY
        registry.blobs[f"sha256:{digest}"] = body
        registry.links.add(("library/debian", f"sha256:{digest}"))
        path = f"images/{registry.address.removeprefix('http://')}/library/debian/blobs/sha256/{digest}"
        bench.files[path] = "/c.whl"
        registry.answer_cuts = [400]
        assert bench.vendor() == (5, 4)
        assert (bench.folder / path).read_bytes() == body
        (bench.folder / path).write_bytes(b"x" * len(body))
        assert bench.vendor() == (5, 1)
        assert (bench.folder / path).read_bytes() == body
        (bench.folder / path).unlink()
        registry.links.clear()
        words = "have it pushed again, or name another image"
        with pytest.raises(Missing, match=rf"the registry has no 127.*/library/debian@sha256:{digest}; {words}"):
            bench.vendor()
        # perhaps there was something newer that fits the lock
        assert bench.planned == 2
        del bench.files[path]
        assert bench.vendor() == (4, 0)
        assert bench.planned == 3
        assert path not in bench.there()


def test_a_lost_signed_list_is_asked_for_anew(bench: Bench) -> None:
    bench.vendor()
    (bench.folder / "apt/sid-1/dists/sid/InRelease").unlink()
    assert bench.vendor() == (4, 0)
    assert bench.planned == 2


def test_an_interrupted_run_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.server.cut["/b.whl"] = 400

    def interrupt(path: str) -> None:
        if path == "/b.whl" and bench.server.asked.count("/b.whl@400"):
            bench.server.gone.add("/b.whl")

    # the server vanishes while b comes: the run fails, and keeps what came
    bench.server.on_get = interrupt
    with pytest.raises(FetchFailed):
        bench.vendor()
    assert (bench.folder / "wheels/python/b/b-1-py3-none-any.whl.part").stat().st_size == 400
    listed = manifest.read(bench.folder)
    assert not listed.locks["debian-gfx1151"].complete
    bench.server.gone.clear()
    bench.server.cut.clear()
    bench.server.on_get = lambda path: None
    planned = bench.planned
    bench.server.asked.clear()
    assert bench.vendor()[0] == 4
    assert bench.planned == planned
    assert "/b.whl@400" in bench.server.asked
    assert "wheels/python/b/b-1-py3-none-any.whl.part" not in bench.there()
    assert manifest.read(bench.folder).locks["debian-gfx1151"].complete


def test_what_is_gone_is_asked_for_anew_once(bench: Bench) -> None:
    bench.server.gone.add("/b.whl")
    with pytest.raises(FetchFailed, match="HTTP 404"):
        bench.vendor()
    assert bench.planned == 1
    # today's index has another file for it
    bench.files = {
        name: served for name, served in bench.files.items() if name != "wheels/python/b/b-1-py3-none-any.whl"
    }
    bench.files["wheels/python/b/b-1-py2-none-any.whl"] = "/c.whl"
    assert bench.vendor()[0] == 4
    assert bench.planned == 2
    assert "wheels/python/b/b-1-py3-none-any.whl" not in bench.there()


def test_another_lock_takes_the_place_of_the_first(bench: Bench) -> None:
    bench.vendor()
    bench.lock("1.0-2")
    bench.files = {"wheels/python/a/a-1-py3-none-any.whl": "/a.whl", "wheels/python/c/c-1-py3-none-any.whl": "/c.whl"}
    assert bench.vendor() == (3, 1)
    pages = {"wheels/python/index.html", "wheels/python/a/index.html", "wheels/python/c/index.html"}
    assert bench.there() == {*bench.files, *SIGNED, *pages, "vendor.json"}


def test_two_targets_share_a_folder(bench: Bench) -> None:
    bench.vendor()
    bench.lock(target="cpu")
    bench.files = {"wheels/python/a/a-1-py3-none-any.whl": "/a.whl", "wheels/python/c/c-1-py3-none-any.whl": "/c.whl"}
    assert bench.vendor("cpu") == (3, 1)
    assert {"wheels/python/b/b-1-py3-none-any.whl", "wheels/python/c/c-1-py3-none-any.whl"} <= bench.there()
    assert b">c<" in (bench.folder / "wheels/python/index.html").read_bytes()
    assert bench.vendor() == (4, 0)


def test_what_the_driver_fetched_before_is_linked(bench: Bench) -> None:
    body = BODIES["/source.tar.gz"]
    cached = bench.images.write(f"cache/archives/{hashlib.sha256(body).hexdigest()}", body)
    bench.vendor()
    assert "/source.tar.gz" not in bench.server.asked
    assert (bench.folder / "archives/x/source.tar.gz").samefile(cached)


def test_renew_asks_anew(bench: Bench) -> None:
    bench.vendor()
    assert bench.vendor(renew=True) == (4, 0)
    assert bench.planned == 2


def test_renew_keeps_the_other_targets(bench: Bench) -> None:
    bench.vendor()
    bench.lock(target="cpu")
    bench.vendor("cpu")
    bench.vendor(renew=True)
    assert set(manifest.read(bench.folder).locks) == {"debian-gfx1151", "debian-cpu"}


def test_a_manifest_that_cannot_be_read_is_made_anew_when_asked(bench: Bench) -> None:
    bench.vendor()
    (bench.folder / "vendor.json").write_text("{")
    with pytest.raises(InputError, match=r"with 'strix-finetune vendor .* --renew'"):
        bench.vendor()
    assert bench.vendor(renew=True) == (4, 0)


def test_what_a_killed_run_left_is_removed(bench: Bench) -> None:
    manifest.write(bench.folder, "wheels/python/old/old.whl.part", b"half")
    manifest.write(bench.folder, "archives/x/.source.tar.gz.7f.99999999.part", b"half")
    bench.vendor()
    assert bench.there() == {*bench.files, *SIGNED, *PAGES, "vendor.json"}


def test_without_a_whole_lock_nothing_begins(bench: Bench) -> None:
    (bench.images.path / "locks/debian-gfx1151.toml").unlink()
    with pytest.raises(LockError, match="there is no lock of debian for gfx1151; run 'strix-finetune lock'"):
        bench.vendor()
    bench.lock()
    bench.images.layer("more", 'parent = ["app"]\npackages = { more = ["gcc"] }\n', "FROM {{ parent }}\n")
    with pytest.raises(LockError, match="lacks the Debian package gcc"):
        bench.vendor()
    assert not bench.folder.exists()
