"""A build from a vendored folder: what its steps are lent, and what stops it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from strix_finetune import builder, debian, graph, lockfile
from strix_finetune.builder import BuildOptions, Planned
from strix_finetune.errors import InputError, LockError, StrixError
from strix_finetune.lockmodel import AptLock, AptPackage, ArchiveLock, Lock, PipLock, Release
from strix_finetune.requests import Requests
from strix_finetune.vendor import images, manifest, plan, steps
from strix_finetune.vendor.manifest import LockEntry, Manifest
from strix_finetune.wanted import declared_sha256
from strix_finetune.workspace import Workspace
from tests.conftest import Images
from tests.fakes import FakeEngine

WHEEL, SOURCE = b"a wheel", b"a source archive"
MIRROR = "apt/sid-20260101T000000Z-0a0b0c0d"
SIGNED = f"{MIRROR}/dists/sid/InRelease"
DEBS = {
    "base": (f"{MIRROR}/pool/b/bash_5_amd64.deb",),
    "torch": (f"{MIRROR}/pool/l/libtorch_1_amd64.deb", f"{MIRROR}/pool/p/python3-torch_1_amd64.deb"),
}
# a registry image of one layer
LAYER, CONFIG = b"a layer", b"{}"
MANIFEST = json.dumps(
    {
        "config": {"digest": f"sha256:{hashlib.sha256(CONFIG).hexdigest()}", "size": len(CONFIG)},
        "layers": [{"digest": f"sha256:{hashlib.sha256(LAYER).hexdigest()}", "size": len(LAYER)}],
    }
).encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
IMAGES = {"registry.example/debian:13": DIGEST}
LAYOUT = {
    f"images/registry.example/debian/blobs/sha256/{hashlib.sha256(content).hexdigest()}": content
    for content in (LAYER, CONFIG, MANIFEST)
}
PEFT = "wheels/python/peft/peft-1.0-py3-none-any.whl"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Bench:
    """A folder with everything that the small chain needs, and its workspace."""

    def __init__(self, definitions: Images) -> None:
        definitions.layer(
            "app",
            'parent = ["torch"]\nfinal = true\npip = { app = { requirements = ["peft==1.0"] } }\n'
            '[archives.source]\nurl = "apt-source:demo=1/demo.tar.gz"\n'
            f'sha256 = "{sha256(SOURCE)}"\nsize = {len(SOURCE)}\n',
            "FROM {{ parent }}\nCOPY {{ pip('app') }} {{ archive('source') }} /\n",
        )
        self.images, self.folder = definitions, definitions.root / "vendored"
        project = definitions.load()
        self.workspace = Workspace(definitions.folders, project, graph.stack(project, "gfx1151", "debian"))
        self.lock()
        self.fill()

    def lock(self, version: str = "1.0-1") -> None:
        declared = declared_sha256(self.workspace.stack.node("app").layer.spec.pip["app"], "3.14")
        self.locked = Lock(
            "debian",
            "gfx1151",
            AptLock(
                "sid",
                {"sid": Release("2026-01-01T00:00:00Z", "b" * 64)},
                {name: AptPackage(version, 1, "a" * 64) for name in ("bash", "python3-torch")},
            ),
            pip={"app": PipLock("3.14", f"peft==1.0 --hash=sha256:{sha256(WHEEL)}\n", declared)},
            images=IMAGES if self.workspace.stack.channel.spec.bootstrap.source == "image" else {},
            archives={"source": ArchiveLock("apt-source:demo=1/demo.tar.gz", sha256(SOURCE), len(SOURCE))},
        )
        lockfile.save(self.locked, self.images.path / "locks")

    def fill(self) -> None:
        contents = {
            SIGNED: b"signed",
            PEFT: WHEEL,
            f"archives/{sha256(SOURCE)}/demo.tar.gz": SOURCE,
            **{path: path.encode() for paths in DEBS.values() for path in paths},
            **(LAYOUT if self.locked.images else {}),
        }
        layers = list(self.workspace.render(self.locked))
        asks = steps.digest(self.workspace.stack, steps.read_steps(self.workspace.stack, layers))
        entry = LockEntry(plan.lock_digest(self.locked), asks, MIRROR, DEBS, tuple(sorted(contents)), True, "now")
        listed = Manifest().with_lock("debian-gfx1151", entry, [manifest.made(*item) for item in contents.items()])
        for path, content in contents.items():
            manifest.write(self.folder, path, content)
        manifest.save(self.folder, listed)

    def planned(self) -> Planned:
        return builder.make_vendored_plan(self.workspace, FakeEngine(), BuildOptions(), self.folder)

    def requests(self) -> Requests:
        made = self.planned()
        return Requests(self.workspace, made.lock, made.settings, FakeEngine(), made.vendored)

    def lent(self, layer: str) -> dict[str, bytes | Path]:
        made = self.requests()
        keyed = next(step.layer for step in self.planned().plan.steps if step.name == layer)
        return {
            file.path.removeprefix(".strix-net/"): file.source
            for file in made._network_files(keyed)
            if not file.path.endswith("/uv")
        }

    def sentence(self) -> str:
        with pytest.raises(StrixError) as caught:
            self.planned()
        assert "\n" not in str(caught.value)
        return str(caught.value).replace(str(self.folder), "DIR")


@pytest.fixture
def bench(chain: Images) -> Bench:
    return Bench(chain)


CURE = "; run 'strix-finetune vendor DIR' on a machine with a network"


def text(lent: dict[str, bytes | Path], name: str) -> str:
    content = lent[name]
    assert isinstance(content, bytes)
    return content.decode()


def test_a_step_sees_its_own_part_of_the_archive_and_no_network(bench: Bench) -> None:
    lent = bench.lent("torch")
    assert {name for name in lent if name.startswith("apt/")} == {
        "apt/dists/sid/InRelease",
        "apt/pool/l/libtorch_1_amd64.deb",
        "apt/pool/p/python3-torch_1_amd64.deb",
    }
    assert lent["apt/dists/sid/InRelease"] == bench.folder / SIGNED
    [source] = text(lent, "sources.list").splitlines()
    assert source.startswith("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no")
    assert source.endswith("] file:/mnt/apt sid main")
    assert 'Dir::Etc::sourcelist "/mnt/sources.list";' in text(lent, "apt.conf")
    assert "UV_OFFLINE=1" in text(lent, "env")
    assert "wheels" not in text(lent, "env")


def test_a_step_with_wheels_sees_them(bench: Bench) -> None:
    lent = bench.lent("app")
    assert lent["wheels/peft-1.0-py3-none-any.whl"] == bench.folder / PEFT
    assert not any(name.startswith("apt/") for name in lent)
    assert "UV_FIND_LINKS=/mnt/wheels" in text(lent, "env")
    assert "UV_OFFLINE=1" in text(lent, "env")
    assert "sources.list" not in lent


def test_steps_have_no_network_and_archives_come_from_the_folder(bench: Bench) -> None:
    made = bench.requests()
    step = bench.planned().plan.step("app")
    request = made.build(step, lambda event: None)
    assert request.network == "none"
    assert not request.build_args
    assert b"a source archive" in b"".join(request.context())


def test_the_root_file_system_has_a_mirror_of_its_own_part(bench: Bench) -> None:
    vendored = bench.planned().vendored
    assert vendored
    keyed = next(step.layer for step in bench.planned().plan.steps if step.name == "base")
    (bench.folder / DEBS["base"][0]).chmod(0o600)
    with vendored.mirror(keyed, bench.images.root / "new/cache") as settings:
        root = Path(settings.debian_mirror.removeprefix("copy://"))
        files = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        assert set(files) == {"dists/sid/InRelease", "pool/b/bash_5_amd64.deb"}
        # whoever mmdebstrap is in its user namespace must read them
        assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o644}
        assert {path.stat().st_mode & 0o777 for path in (root, *root.rglob("*/"))} == {0o755}
        assert settings.apt_options == (("APT::Sandbox::User", "root"),)
    assert not root.exists()


def test_mmdebstrap_has_a_folder_of_its_own_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For a user who is not root both are in the same folder."""
    monkeypatch.setattr(debian, "mode", lambda: "unshare")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    vendored = bench.planned().vendored
    assert vendored
    keyed = next(step.layer for step in bench.planned().plan.steps if step.name == "base")
    with vendored.mirror(keyed, tmp_path), debian.work_folder(tmp_path) as work:
        assert len([path for path in tmp_path.iterdir() if path.name.startswith(".strix-")]) == 2
        assert not list(work.iterdir())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".strix-")]


def test_a_file_that_is_missing_stops_the_plan(bench: Bench) -> None:
    (bench.folder / DEBS["torch"][1]).unlink()
    assert bench.sentence() == f"DIR/{DEBS['torch'][1]}: this vendored file is missing{CURE}"


def test_a_file_that_is_cut_off_stops_the_plan(bench: Bench) -> None:
    (bench.folder / PEFT).write_bytes(b"a")
    assert bench.sentence() == f"DIR/{PEFT}: this file has 1 bytes, and vendor.json lists 7{CURE}"


@pytest.mark.parametrize(("layer", "path"), [("torch", DEBS["torch"][0]), ("torch", SIGNED), ("app", PEFT)])
def test_a_file_that_was_changed_stops_its_step(bench: Bench, layer: str, path: str) -> None:
    file = bench.folder / path
    file.write_bytes(bytes(reversed(file.read_bytes())))
    with pytest.raises(InputError, match=f"{file}: this is not the file that vendor.json lists: its sha256 differs"):
        bench.lent(layer)


def test_a_changed_list_does_not_pass_a_changed_archive(bench: Bench) -> None:
    """The manifest is no authority: who changes a file can change the list, too."""
    path = f"archives/{sha256(SOURCE)}/demo.tar.gz"
    evil = bytes(reversed(SOURCE))
    (bench.folder / path).write_bytes(evil)
    listed = bench.folder / manifest.NAME
    listed.write_text(listed.read_text().replace(f'"sha256": "{sha256(SOURCE)}"', f'"sha256": "{sha256(evil)}"'))
    made = bench.requests()
    with pytest.raises(InputError, match="is not the file"):
        made.build(bench.planned().plan.step("app"), lambda event: None)


def test_another_lock_stops_the_plan(bench: Bench) -> None:
    bench.lock("1.0-2")
    said = "DIR was vendored for another lock of debian-gfx1151 than the one in force"
    assert bench.sentence() == f"{said}{CURE}"


def test_another_target_stops_the_plan(bench: Bench) -> None:
    listed = json.loads((bench.folder / manifest.NAME).read_text())
    listed["locks"]["debian-cpu"] = listed["locks"].pop("debian-gfx1151")
    (bench.folder / manifest.NAME).write_text(json.dumps(listed))
    assert bench.sentence() == f"DIR holds the inputs of debian-cpu, and not of debian-gfx1151{CURE}"


def test_other_packages_in_a_step_stop_the_plan(bench: Bench) -> None:
    text = (bench.images.path / "torch/Dockerfile.j2").read_text()
    bench.images.write("images/torch/Dockerfile.j2", text.replace("FROM {{ parent }}", "FROM scratch"))
    bench.workspace = replace(bench.workspace, project=bench.images.load())
    assert bench.sentence() == f"the layers ask apt for other packages than DIR was vendored for{CURE}"


def test_an_unfinished_folder_stops_the_plan(bench: Bench) -> None:
    path = bench.folder / manifest.NAME
    path.write_text(path.read_text().replace('"complete": true', '"complete": false'))
    said = "DIR does not hold all that debian-gfx1151 needs: vendoring was interrupted"
    assert bench.sentence() == f"{said}{CURE}"


def test_a_wheel_that_was_not_vendored_stops_the_plan(bench: Bench) -> None:
    path = bench.folder / manifest.NAME
    text = path.read_text().replace(sha256(WHEEL), "f" * 64)
    path.write_text(text)
    assert bench.sentence() == f"DIR/wheels/python/peft: the vendored folder lacks peft 1.0{CURE}"


def test_no_folder_and_no_lock(bench: Bench) -> None:
    with pytest.raises(InputError, match="is no folder of vendored inputs"):
        builder.make_vendored_plan(bench.workspace, FakeEngine(), BuildOptions(), bench.images.root / "other")
    (bench.images.path / "locks/debian-gfx1151.toml").unlink()
    with pytest.raises(LockError, match="there is no lock of debian for gfx1151"):
        bench.planned()


def test_what_is_up_to_date_needs_nothing_of_the_folder(bench: Bench) -> None:
    engine = FakeEngine()
    for step in bench.planned().plan.steps:
        engine.add({"io.strix-finetune.key": step.layer.key}, *step.tags)
    (bench.folder / PEFT).unlink()
    made = builder.make_vendored_plan(bench.workspace, engine, BuildOptions(), bench.folder)
    assert not list(made.plan.builds)


def test_a_registry_image_is_loaded_once_and_called_by_its_local_name(chain: Images) -> None:
    toml = (chain.path / "channels/debian.toml").read_text()
    beginning = 'bootstrap = { source = "image", image = "registry.example/debian:13" }'
    chain.write("images/channels/debian.toml", toml.replace('bootstrap = { source = "mmdebstrap" }', beginning))
    chain.layer("base", 'packages = { rootfs = ["bash"] }\n', "FROM {{ base_image }}\nRUN x {{ apt('rootfs') }}\n")
    bench = Bench(chain)
    made, engine = bench.requests(), FakeEngine()
    made = replace(made, engine=engine)
    step = bench.planned().plan.step("base")
    sent = b"".join(made.build(step, lambda event: None).context())
    local = images.local_name(DIGEST)
    assert f"FROM {local}\n".encode() in sent
    assert b"registry.example" not in sent
    assert [call[0] for call in engine.calls] == ["load"]
    engine.add({}, local)
    made.build(step, lambda event: None)
    assert len(engine.calls) == 1
    # the key is that of the layer as it is declared
    assert "registry.example/debian@sha256:" in step.layer.layer.dockerfile
    (bench.folder / f"images/registry.example/debian/blobs/sha256/{sha256(LAYER)}").write_bytes(b"x" * len(LAYER))
    with pytest.raises(InputError, match="its sha256 differs"):
        replace(made, engine=FakeEngine()).build(step, lambda event: None)
