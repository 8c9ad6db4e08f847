"""Debian's programs out of an image: who runs what, out of which image, and as whom."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from strix_finetune import borrowed, debian, names, programs
from strix_finetune.borrowed import Borrowed
from strix_finetune.engine.base import BuildEvent, BuildRequest, EngineInfo, Image, RunRequest, RunResult
from strix_finetune.errors import BuildFailed, EngineError, InputError, LockError
from strix_finetune.netconf import NetSettings
from strix_finetune.programs import Host, Programs
from tests.conftest import Images
from tests.fakes import FakeEngine

HELPER = "registry.example/debian:sid"
DIGEST = f"sha256:{'d' * 64}"


@dataclass
class Engine(FakeEngine):
    """Builds what has no layer's labels, pulls, and runs commands as they come."""

    kind: Any = "docker"
    rootless: bool = False
    pulled: list[str] = field(default_factory=list)
    built: list[bytes] = field(default_factory=list)
    fails: BuildFailed | None = None
    refuses: EngineError | None = None
    served: tuple[str, ...] = ()

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(self.kind, "20.10", "1.41", "unix:///fake", rootless=self.rootless)

    def images(self, label: str) -> list[Image]:
        name, _, value = label.partition("=")
        return [image for image in super().images(name) if not value or image.labels[name] == value]

    def build(self, request: BuildRequest, on_event: Callable[[BuildEvent], None]) -> str:
        self.built.append(b"".join(request.context()))
        if self.fails:
            raise self.fails
        return self.add(request.labels)

    def pull(self, ref: str, on_status: Callable[[str], None]) -> Image:
        self.pulled.append(ref)
        if self.refuses:
            raise self.refuses
        found = self.image(self.add({}))
        assert found
        return replace(found, digests=self.served)


@pytest.fixture
def site(chain: Images) -> Images:
    toml = (chain.path / "channels/debian.toml").read_text()
    bootstrap = f'bootstrap = {{ source = "mmdebstrap", helper = "{HELPER}" }}'
    chain.write("images/channels/debian.toml", toml.replace('bootstrap = { source = "mmdebstrap" }', bootstrap))
    return chain


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def digest(name: str, settings: NetSettings, say: Callable[[str], None]) -> str:
        asked.append(name)
        return DIGEST

    monkeypatch.setattr("strix_finetune.resolve.image.digest", digest)
    return asked


def borrow(site: Images, engine: Engine, settings: NetSettings | None = None, **options: Any) -> Borrowed:
    said: list[str] = options.pop("said", [])
    return Borrowed(
        lambda: engine, site.stack(), settings or NetSettings(), options.pop("pinned", {}), said.append, **options
    )


# whose programs


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes PATH hold just the named programs, and Debian's keys be there or not."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(*programs: str, keys: bool = True) -> None:
        for name in programs:
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setattr(debian, "has_keyring", lambda: keys)

    return make


def chosen() -> tuple[bool, bool]:
    """Whether apt and mmdebstrap are the host's own."""
    other = Host()
    found = programs.choose(lambda: other)
    return found.apt is not other, found.mmdebstrap is not other


def test_a_host_runs_what_it_has(path: Callable[..., None]) -> None:
    path("apt-get", "apt-cache", "mmdebstrap")

    def never() -> Host:
        pytest.fail("nothing is lacking")

    assert programs.choose(never) is programs.HOST


@pytest.mark.parametrize(
    ("has", "keys", "own"),
    [
        (("apt-get", "apt-cache"), True, (True, False)),
        (("apt-get", "mmdebstrap"), True, (False, False)),
        (("apt-get", "apt-cache", "mmdebstrap"), False, (False, False)),
        (("mmdebstrap",), True, (False, False)),
        ((), False, (False, False)),
    ],
)
def test_and_borrows_what_it_lacks(
    path: Callable[..., None], has: tuple[str, ...], keys: bool, own: tuple[bool, bool]
) -> None:
    path(*has, keys=keys)
    assert chosen() == own


def test_nothing_is_opened_before_something_is_borrowed(path: Callable[..., None], site: Images) -> None:
    path()

    def never() -> Engine:
        pytest.fail("nothing was run yet")

    settings = borrowed.lend(NetSettings(), site.stack(), {}, never, print)
    assert isinstance(programs.of(settings).apt, Borrowed)
    assert borrowed.looked_up(settings) == {}
    assert programs.of(NetSettings()) == Programs(programs.HOST.apt, programs.HOST.mmdebstrap)


# out of which image


def test_the_channels_own_root_layer_lends(site: Images, looked_up: list[str]) -> None:
    engine = Engine()
    base = site.render()["base"]
    labels = {names.KEY: base.key, names.LAYER: "base", names.CHANNEL: "debian", names.TARGET: "cpu"}
    engine.add({**labels, names.CHANNEL: "other"}, "localhost/strix-finetune/base:gfx1151")
    engine.add({**labels, names.LAYER: "torch"}, "localhost/strix-finetune/torch:cpu")
    image = engine.add(labels, "localhost/strix-finetune/base:cpu")
    said: list[str] = []
    name = borrow(site, engine, said=said).image()
    assert name.startswith("localhost/strix-finetune/tools:")
    assert said == [f"making an image of Debian's tools out of {image[:60]}"]
    assert engine.pulled == looked_up == []
    # the name that it was built from is gone again, and it is none of the layers
    assert [ref for ref in engine.refs if "/tools:" in ref] == [name]
    assert b"COPY --from=debian / /" in engine.built[0]
    assert ("tag", f"localhost/strix-finetune/tools:from-{name[-12:]}") in engine.calls
    assert engine.store[engine.refs[name]] == {"io.strix-finetune.tools": "debian"}
    # and the next process finds it made
    assert borrow(site, engine).image() == name
    assert len(engine.built) == 1


def test_of_several_images_of_the_layer_one_that_was_used_before_lends(site: Images) -> None:
    engine = Engine()
    labels = {names.KEY: "a" * 64, names.LAYER: "base", names.CHANNEL: "debian"}
    first = engine.add(labels, "localhost/strix-finetune/base:cpu")
    name = borrow(site, engine).image()
    newer = engine.add(labels, "localhost/strix-finetune/base:gfx1151")
    assert borrow(site, engine).image() == name
    engine.untag("localhost/strix-finetune/base:cpu")
    assert first not in engine.store
    other = borrow(site, engine)
    assert other.image() != name
    assert ("tag", f"localhost/strix-finetune/tools:from-{other.image()[-12:]}") in engine.calls
    assert newer in engine.store
    # this target's own newest one comes first
    engine.add(labels, "localhost/strix-finetune/base:gfx906")
    engine.untag(other.image())
    assert borrow(site, engine).image() == other.image()


def test_a_locked_build_makes_no_new_image_where_there_is_one(site: Images, looked_up: list[str]) -> None:
    engine = Engine()
    name = borrow(site, engine).image()
    engine.add(
        {names.KEY: "a" * 64, names.LAYER: "base", names.CHANNEL: "debian"}, "localhost/strix-finetune/base:gfx1151"
    )
    assert borrow(site, engine, locked=True).image() == name
    assert len(engine.built) == 1
    assert borrow(site, engine).image() != name


def test_the_helper_is_pulled_by_the_digest_of_the_lock(site: Images, looked_up: list[str]) -> None:
    engine = Engine()
    runner = borrow(site, engine, pinned={HELPER: f"sha256:{'e' * 64}"}, locked=True)
    name = runner.image()
    assert engine.pulled == [f"registry.example/debian@sha256:{'e' * 64}"]
    assert looked_up == []
    assert runner.looked_up == {}
    assert borrow(site, engine, pinned={HELPER: f"sha256:{'e' * 64}"}).image() == name
    assert len(engine.pulled) == 1


def test_a_digest_that_the_lock_lacks_is_looked_up_once_and_told(site: Images, looked_up: list[str]) -> None:
    engine = Engine()
    runner = borrow(site, engine)
    settings = NetSettings(programs=Programs(runner, Host()))
    runner.image()
    runner.image()
    assert looked_up == [HELPER]
    assert engine.pulled == [f"registry.example/debian@{DIGEST}"]
    assert borrowed.looked_up(settings) == {HELPER: DIGEST}
    with pytest.raises(LockError, match=r"the lock lacks the image registry.*, which this host needs"):
        borrow(site, Engine(), locked=True).image()


SHORT = "debian:sid"


@pytest.fixture
def short(site: Images) -> Images:
    """The channel's helper says no registry."""
    toml = (site.path / "channels/debian.toml").read_text()
    site.write("images/channels/debian.toml", toml.replace(HELPER, SHORT))
    return site


def test_a_helper_without_a_registry_is_the_engines_to_find(short: Images, looked_up: list[str]) -> None:
    """Its digest is that by which the engine says that it is served; with a lock nothing is asked by name."""
    engine = Engine(served=(DIGEST, f"sha256:{'f' * 64}"))
    runner = borrow(short, engine)
    name = runner.image()
    assert engine.pulled == [SHORT, f"debian@{DIGEST}"]
    assert looked_up == [], "no registry is asked by the driver"
    assert borrowed.looked_up(NetSettings(programs=Programs(runner, Host()))) == {SHORT: DIGEST}
    locked = Engine()
    assert borrow(short, locked, pinned={SHORT: DIGEST}, locked=True).image() == name
    assert locked.pulled == [f"debian@{DIGEST}"]
    with pytest.raises(LockError, match="the lock lacks the image debian:sid"):
        borrow(short, Engine(), locked=True).image()


def test_an_engine_that_finds_no_registry_for_it(short: Images) -> None:
    engine = Engine(refuses=EngineError("could not pull debian:sid: short-name did not resolve"))
    with pytest.raises(EngineError, match=r"did not resolve; install apt, mmdebstrap and debian-archive-keyring, or"):
        borrow(short, engine).image()
    with pytest.raises(EngineError, match="docker does not say by which digest debian:sid is served"):
        borrow(short, Engine()).image()


def test_names_by_digest() -> None:
    for name, repository in (
        ("debian:sid", "debian"),
        ("debian", "debian"),
        ("localhost:5000/a/debian", "localhost:5000/a/debian"),
        ("localhost:5000/a/debian:sid", "localhost:5000/a/debian"),
    ):
        assert borrowed._by_digest(name, DIGEST) == f"{repository}@{DIGEST}"


def test_another_source_takes_the_place_of_the_one_before(site: Images, looked_up: list[str]) -> None:
    engine = Engine()
    first = borrow(site, engine).image()
    engine.add({borrowed.LABEL: "other"}, "localhost/strix-finetune/tools:other")
    second = borrow(site, engine, pinned={HELPER: f"sha256:{'e' * 64}"}).image()
    assert first != second
    assert {ref for ref in engine.refs if "/tools:" in ref} == {second, "localhost/strix-finetune/tools:other"}


def test_a_channel_that_names_no_helper(chain: Images) -> None:
    with pytest.raises(
        InputError, match=r"this host lacks apt, .*; install apt, mmdebstrap and debian-archive-keyring"
    ):
        borrow(chain, Engine()).image()


def test_an_image_that_has_no_apt(site: Images, looked_up: list[str]) -> None:
    tail = ("Err: 404", "E: Unable to locate package mmdebstrap.", "exit")
    engine = Engine(fails=BuildFailed("the step failed", log_tail=tail))
    with pytest.raises(BuildFailed) as caught:
        borrow(site, engine).image()
    assert str(caught.value) == (
        f"Debian's tools cannot be had out of {HELPER}: Unable to locate package mmdebstrap; check the network"
    )
    assert caught.value.log_tail == tail
    assert not [ref for ref in engine.refs if "/tools:" in ref]


# how it is run


@dataclass
class Ran:
    engine: Engine
    runner: Borrowed

    @property
    def request(self) -> RunRequest:
        return self.engine.runs[-1]


@pytest.fixture
def ran(site: Images, looked_up: list[str], tmp_path: Path) -> Callable[..., Ran]:
    def make(settings: NetSettings | None = None, **engine: Any) -> Ran:
        made = Engine(**engine)

        def run(request: RunRequest, on_output: Callable[[bytes], None]) -> RunResult:
            if request.command[0] == "sh" and "out" in request.command[2]:
                (Path(request.command[4]) / "out").write_text("printed\n")
                (Path(request.command[4]) / "err").write_bytes(b"complained \xff\n")
                return RunResult(3)
            on_output(b"one\ntwo\nthr")
            on_output(b"ee")
            return RunResult(0)

        made.on_run = run
        return Ran(made, borrow(site, made, settings))

    return make


def test_what_a_program_prints_and_how_it_ends(ran: Callable[..., Ran], tmp_path: Path) -> None:
    it = ran()
    done = it.runner.run(("apt-cache", "show", "x"), {"APT_CONFIG": "/c"}, shared=(tmp_path,), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "printed\n", "complained \ufffd\n")
    assert it.request.command[5:] == ("apt-cache", "show", "x")
    assert it.request.workdir == str(tmp_path)
    assert [(mount.source, mount.target, mount.read_only) for mount in it.request.mounts] == [
        (str(tmp_path), str(tmp_path), False)
    ]
    assert dict(it.request.env) == {"LC_ALL": "C.UTF-8", "APT_CONFIG": "/c"}
    assert list(tmp_path.glob(".strix*")) == []


@pytest.mark.parametrize(
    ("engine", "user", "keep_id"),
    [
        ({"kind": "docker"}, f"{os.getuid()}:{os.getgid()}", False),
        ({"kind": "docker", "rootless": True}, "", False),
        ({"kind": "podman"}, f"{os.getuid()}:{os.getgid()}", False),
        ({"kind": "podman", "rootless": True}, f"{os.getuid()}:{os.getgid()}", True),
    ],
)
def test_apt_runs_as_the_user(
    ran: Callable[..., Ran], tmp_path: Path, engine: dict[str, Any], user: str, keep_id: bool
) -> None:
    it = ran(**engine)
    it.runner.run(("apt-get", "update"), {}, shared=(tmp_path,))
    assert (it.request.user, it.request.keep_id) == (user, keep_id)


@pytest.mark.parametrize(
    ("engine", "handed_over"),
    [({"kind": "docker"}, True), ({"kind": "podman"}, True), ({"kind": "podman", "rootless": True}, False)],
)
def test_mmdebstrap_runs_as_root_and_hands_its_file_over(
    ran: Callable[..., Ran], tmp_path: Path, engine: dict[str, Any], handed_over: bool
) -> None:
    it, lines = ran(**engine), []
    made = tmp_path / "x.tar"
    code = it.runner.stream(("mmdebstrap", "sid"), {}, lines.append, shared=(tmp_path,), made=made, as_root=True)
    assert code == 0
    assert lines == ["one", "two", "three"]
    assert (it.request.user, it.request.keep_id) == ("", False)
    before = ("sh", "-c", borrowed._HAND_OVER, "sh", str(made), f"{os.getuid()}:{os.getgid()}")
    assert it.request.command == ((*before, "mmdebstrap", "sid") if handed_over else ("mmdebstrap", "sid"))


def test_the_hosts_network_settings_go_along(ran: Callable[..., Ran], tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("")
    settings = NetSettings(proxies={"http_proxy": "http://127.0.0.1:3128"}, ca_bundle=authority)
    it = ran(settings)
    it.runner.run(("apt-get", "update"), {}, shared=(tmp_path,))
    assert it.request.network == "host"
    assert it.request.env["http_proxy"] == "http://127.0.0.1:3128"
    assert (str(authority), True) in [(mount.source, mount.read_only) for mount in it.request.mounts]


def test_where_debian_is_is_asked_once(ran: Callable[..., Ran]) -> None:
    it = ran()

    def run(request: RunRequest, on_output: Callable[[bytes], None]) -> RunResult:
        on_output(b"deb http://default.example/debian sid main\n")
        return RunResult(25)

    it.engine.on_run = run
    who = Programs(it.runner, it.runner)
    assert who.mirror("") == who.mirror("") == "http://default.example/debian"
    assert who.mirror("http://mine.example") == "http://mine.example"
    assert len(it.engine.runs) == 1
    assert it.request.command[:2] == ("mmdebstrap", "--mode=root")
