"""Two clean builds of one lock on each engine: are the layers the same, and what does pushing the second one move?

`base` and `pytorch` of the target `cpu` are built twice with `--rebuild`, each time with an empty cache of the driver,
so that the root file system is made anew, too. Each build is pushed twice, to a registry each: the engine's own layers
by the engine's own program (`docker push`, `buildah push`), and this project's layers by its registry client, which is
what `strix-finetune push` sends them with. The bytes that each registry then stores are counted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import PYTHON, run

if TYPE_CHECKING:
    from strix_finetune.engine.base import Engine
    from strix_finetune.oci.layout import Layout

LAYERS = ("base", "pytorch")
TARGET, CHANNEL = "cpu", "debian"
# one of them alone, where the other is not to be touched: STRIX_BENCH_ENGINES=podman
VARIABLE = "STRIX_BENCH_ENGINES"


def main() -> None:
    digests: dict[str, list[tuple[str, ...]]] = {}
    rows = []
    for kind in os.environ.get(VARIABLE, "docker podman").split():
        with tempfile.TemporaryDirectory(prefix="strix-rebuild-") as folder:
            found, made = _twice(kind, Path(folder))
            digests[kind] = found
            rows += made
    width = max(len(row[0]) for row in rows)
    print(f"{'':{width}}  {'first push':>14} {'second push':>14}  layers that moved")
    for name, first, second, moved, count in rows:
        print(f"{name:{width}}  {first / 1e6:11,.1f} MB {second / 1e6:11,.3f} MB  {moved} of {count}")
    for kind, (one, other) in digests.items():
        print(f"{kind}: the layers of both builds are {'the same bytes' if one == other else 'OTHER BYTES'}")
    if len(digests) > 1:
        same = len({tuple(found) for found in digests.values()}) == 1
        print(f"both engines: the layers are {'the same bytes' if same else 'OTHER BYTES'}")


def _twice(kind: str, folder: Path) -> tuple[list[tuple[str, ...]], list[tuple[str, int, int, int, int]]]:
    """(digests of our layers of each build, rows of the table)."""
    from strix_finetune import names
    from strix_finetune.engine.select import connect

    theirs = "docker push" if kind == "docker" else "buildah push"
    stored: dict[str, list[int]] = {theirs: [], "ours": []}
    engine_layers: list[tuple[str, ...]] = []
    our_layers: list[tuple[str, ...]] = []
    with registry(folder / "theirs") as one, registry(folder / "ours") as other:
        for number in (1, 2):
            env = {**_environment(kind), "XDG_CACHE_HOME": str(folder / f"cache{number}")}
            command = [PYTHON, "-m", "strix_finetune", "build", *LAYERS, "--rebuild", "--engine", kind]
            seconds = run([*command, "--target", TARGET, "--channel", CHANNEL], env=env)
            print(f"{kind}: build {number} took {seconds:.0f} s")
            engine = connect(kind, {**os.environ, **_environment(kind)})  # type: ignore[arg-type]
            try:
                ref = names.moving_ref(LAYERS[-1], TARGET)
                said = engine.configuration(ref)
                assert said is not None
                engine_layers.append(tuple(said["rootfs"]["diff_ids"]))
                _their_push(engine, kind, ref, f"{one.address}/bench:{number}")
                stored[theirs].append(one.stored())
                began = time.monotonic()
                layout = _export(engine, ref, folder / f"layout{number}")
                seconds = time.monotonic() - began
                _our_push(layout, ref, other.address, str(number))
                stored["ours"].append(other.stored())
                our_layers.append(tuple(layer.diff_id for layer in layout.layers[ref]))
                print(f"{kind}: our layers of build {number} took {seconds:.0f} s to write")
            finally:
                engine.close()
    rows = []
    for name, layers in ((theirs, engine_layers), ("ours", our_layers)):
        first, both = stored[name]
        moved = len(set(layers[1]) - set(layers[0]))
        rows.append((f"{kind}, {name}", first, both - first, moved, len(layers[1])))
    return our_layers, rows


def _environment(kind: str) -> dict[str, str]:
    """An address of Docker is none of Podman."""
    return {"DOCKER_HOST": ""} if kind == "podman" else {}


def _export(engine: Engine, ref: str, folder: Path) -> Layout:
    from strix_finetune.oci import layout
    from strix_finetune.oci.lineage import parents
    from strix_finetune.workspace import Options, open_workspace

    workspace = open_workspace(Options(TARGET, CHANNEL), os.environ)
    lock = workspace.read_lock()
    assert lock is not None
    epoch = layout.lock_epoch(lock)
    return layout.export(
        engine, ref, parents(engine, ref), folder, epoch=epoch, groups=layout.groups_of(workspace.stack)
    )


def _their_push(engine: Engine, kind: str, ref: str, remote: str) -> None:
    if kind == "podman":
        run(["buildah", "push", "--quiet", "--tls-verify=false", ref, f"docker://{remote}"])
        return
    engine.tag(ref, remote)
    try:
        run(["docker", "push", "--quiet", remote])
    finally:
        engine.untag(remote)


def _our_push(layout: Layout, ref: str, address: str, tag: str) -> None:
    from strix_finetune.netconf import NetSettings
    from strix_finetune.registry.client import connect
    from strix_finetune.registry.repository import parse

    to = connect(parse(f"{address}/bench"), NetSettings(), {})
    packed = layout.packed[ref]
    for blob in packed.blobs:
        to.upload(blob, lambda done: None)
    to.put_manifest(tag, packed.manifest, packed.media_type)


@dataclass(frozen=True, slots=True)
class Running:
    """A registry on the loopback, and where it stores its blobs."""

    address: str
    folder: Path

    def stored(self) -> int:
        """Bytes of all blobs, manifests included."""
        return sum(path.stat().st_size for path in self.folder.rglob("blobs/**/data"))


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[Running]:
    """Debian's docker-registry with an empty store."""
    program = shutil.which("docker-registry")
    if program is None:
        raise SystemExit("install the package docker-registry for this measurement")
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "config.yml"
    config.write_text(
        f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {folder}/store\nhttp:\n  addr: 127.0.0.1:{port}\n"
    )
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            raise SystemExit(f"docker-registry does not start:\n{(folder / 'log').read_text()[-2000:]}")
        yield Running(f"localhost:{port}", folder / "store")
    finally:
        server.terminate()
        server.wait()
