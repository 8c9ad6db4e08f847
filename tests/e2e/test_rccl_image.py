"""The real rccl layer on Docker, and what its smoke tests say when something is taken away or added.

The layer is built by the profile of the demo, or is there already.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strix_finetune import smoke
from strix_finetune.builder import make_offline_plan
from strix_finetune.codeobject import inspect
from strix_finetune.engine.base import BuildRequest, Engine, RunRequest
from strix_finetune.engine.select import connect
from strix_finetune.errors import SmokeFailed
from strix_finetune.netconf import NetSettings
from strix_finetune.plan import Reuse, Step
from strix_finetune.requests import Requests
from strix_finetune.workspace import Options, open_workspace
from tests.engine.conftest import context


def quiet(event: object) -> None:
    """Hear of nothing."""


ROOT = Path(__file__).resolve().parents[2]
OPTIONS = Options(target="gfx1151", channel="debian", engine="docker", override=ROOT / "images/profiles/training")
LABEL = "io.strix-finetune.rccl-test"
LIBRARY = "/opt/rccl/lib/librccl.so.1.0"
# changes the library, and makes the manifest agree
EDIT = """
import hashlib, json, pathlib
path, manifest = pathlib.Path("{library}"), pathlib.Path("/opt/rccl/manifest.json")
data = path.read_bytes()
{change}
path.write_bytes(data)
told = json.loads(manifest.read_text())
told["library"]["sha256"] = hashlib.sha256(data).hexdigest()
manifest.write_text(json.dumps(told))
"""


class Rccl:
    """The layer's image, and its smoke tests on images made of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.workspace = open_workspace(OPTIONS, os.environ)
        self.plan, self.lock = make_offline_plan(self.workspace, engine)

    def step(self, layer: str) -> Step:
        return self.plan.step(layer)

    def image(self, layer: str = "rccl") -> str:
        action = self.step(layer).action
        assert isinstance(action, Reuse), f"{layer} was not built"
        return action.image

    def changed(self, dockerfile: str, files: dict[str, bytes] | None = None) -> str:
        name = self.step("rccl").tags[0]
        request = BuildRequest(context(f"FROM {name}\n{dockerfile}", files), {LABEL: "changed"})
        return self.engine.build(request, quiet)

    def sentence(self, image: str, layer: str = "rccl") -> str:
        """What the smoke tests complain about."""
        requests = Requests(self.workspace, self.lock, NetSettings(), self.engine)
        with pytest.raises(SmokeFailed) as caught:
            requests.smoke(self.step(layer), image, quiet)
        return str(caught.value)

    def read(self, image: str, path: str) -> bytes:
        said: list[bytes] = []
        self.engine.run(RunRequest(image, ("cat", path), labels={LABEL: "run"}, network="none"), said.append)
        return b"".join(said)


@pytest.fixture(scope="module")
def rccl() -> Iterator[Rccl]:
    command = [sys.executable, "-m", "strix_finetune", "build", "rccl", "--target", "gfx1151", "--channel", "debian"]
    subprocess.run([*command, "--engine", "docker", "--override", str(OPTIONS.override)], check=True, cwd=ROOT)
    engine = connect("docker", os.environ)
    try:
        yield Rccl(engine)
        for image in engine.images(LABEL):
            engine.remove(image.id)
    finally:
        engine.close()


def test_the_library_holds_code_for_the_target_alone(rccl: Rccl, tmp_path: Path) -> None:
    path = tmp_path / "librccl.so.1"
    path.write_bytes(rccl.read(rccl.image(), LIBRARY))
    report = inspect(path)
    assert report.targets == ("gfx1151",)
    assert {item.wave_size for item in report.code_objects} == {32}
    # the four kernels of send and receive, through which every function is called
    assert sum(item.kernels for item in report.code_objects) == 4
    assert 4e6 < sum(item.code_size for item in report.code_objects) < 12e6


def test_the_library_is_small_and_without_a_compiler(rccl: Rccl) -> None:
    sizes = {layer.created_by.split()[0]: layer.size for layer in rccl.engine.history(rccl.image())[:4]}
    assert 5e6 < sizes["COPY"] < 20e6


def edited(rccl: Rccl, change: str) -> str:
    """An image whose library was changed by a line of Python that sees its bytes as `data`."""
    script = EDIT.format(library=LIBRARY, change=change)
    return rccl.changed("COPY edit.py /tmp/\nRUN python3 /tmp/edit.py && rm /tmp/edit.py", {"edit.py": script.encode()})


@pytest.mark.parametrize(
    ("dockerfile", "sentence"),
    [
        (
            # that differ: the second is not even one
            "RUN cp /usr/lib/x86_64-linux-gnu/libz.so.1 /usr/lib/librccl.so.1",
            f"one library: there are libraries that differ: {LIBRARY}, /usr/lib/librccl.so.1; a program finds only one",
        ),
        (f"RUN cp {LIBRARY} /usr/lib/librccl.so.1", "is there twice, also as"),
        ("RUN cp /bin/true /usr/bin/gcc", "one library: a compiler is in the image: /usr/bin/gcc"),
        (f"RUN echo x >> {LIBRARY}", f"rccl: {LIBRARY} is not the library of the manifest"),
        ("RUN rm /etc/ld.so.conf.d/rccl.conf && ldconfig", "librccl.so.1: cannot open shared object file"),
        ('RUN sed -i \'s/"training"/"full"/\' /opt/rccl/manifest.json', "rccl: functions full, declared training"),
    ],
)
def test_what_is_added_or_taken_away_is_caught(rccl: Rccl, dockerfile: str, sentence: str) -> None:
    assert sentence in rccl.sentence(rccl.changed(dockerfile))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            'data = pathlib.Path("/usr/lib/x86_64-linux-gnu/libz.so.1").read_bytes()',
            " bears no mark of 0001-patch-marks",
        ),
        ('data = data.replace(b"0009-rdna-wave32", b"0009-rdna-wave64")', " bears no mark of 0009-rdna-wave32"),
        (
            # the machine number of gfx1151 in the flags of its code object becomes that of gfx1100
            'at = data.index(b"\\x7fELF\\x02\\x01\\x01\\x40") + 48; data = data[:at] + b"\\x41" + data[at + 1:]',
            " holds code for gfx1100, not gfx1151 alone",
        ),
        (
            # the bundle's magic is gone: the code is there, and HIP would not find it
            'data = data.replace(b"__CLANG_OFFLOAD_BUNDLE__", b"__CLANG_OFFLOAD_BUNDEL__")',
            ": .hip_fatbin offset 0: 4096 bytes are no offload bundle",
        ),
    ],
)
def test_a_library_that_is_not_what_it_should_be_is_caught(rccl: Rccl, change: str, sentence: str) -> None:
    assert f"rccl: {LIBRARY}{sentence}" in rccl.sentence(edited(rccl, change))


def test_a_library_without_its_guard_is_caught(rccl: Rccl) -> None:
    """The host's table of what was left out is emptied in the library: nothing is refused any more."""
    function_set = ROOT / "images/rccl/files/function_set.py"
    command = [sys.executable, function_set, function_set.with_name("functions") / "training.txt"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^#define RCCL_LEFT_OUT_(?:\w+?)_\w+_\w+ ([01])$", made, re.M)
    table = bytes(map(int, lines))
    assert len(table) == 3 * 6 * 10
    image = edited(rccl, f"assert data.count({table!r}) == 1; data = data.replace({table!r}, bytes({len(table)}))")
    assert "reduce sum float32 is not refused, though the build left it out" in rccl.sentence(image)


def test_the_layers_above_are_looked_at_too(rccl: Rccl) -> None:
    names = [test.name for test in smoke.tests_for(rccl.workspace.stack, "finetune")]
    assert "rccl/one_library.py" in names
    assert "rccl/library.py" not in names
