"""A layer of a channel with an index of its own: its set of wheels is fetched, checked and installed by the real macro.

The image holds this host's own Python, and nothing else of the network than a small index on this host.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from strix_finetune import lockfile, names, netconf, wanted
from strix_finetune.engine.base import Engine
from strix_finetune.engine.select import connect
from strix_finetune.lockmodel import WheelLock, WheelSetLock
from strix_finetune.schema import Index, WheelSet
from tests.engine.test_stack import LOCK, Place
from tests.engine.test_stack import TARGET as STACK_TARGET

pytestmark = pytest.mark.engine
MACROS = Path(__file__).parents[2] / "images/macros.j2"
# of its own: tests of other files remove what they built when they end
TARGET = "wheeltest"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
URL = "https://index.invalid/whl"
ASKED = WheelSet(index="amd", requirements=["tinytorch==2.13.0+rocm10"], follow=["tiny*"])
BACKEND = """
import os, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    about = "tinyrocm-10.0.0.dist-info"
    with zipfile.ZipFile(os.path.join(folder, "tinyrocm-10.0.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("tinyrocm.py", "family = %r" % os.environ["ROCM_SDK_TARGET_FAMILY"])
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\\nName: tinyrocm\\nVersion: 10.0.0\\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{about}/RECORD", "")
    return "tinyrocm-10.0.0-py3-none-any.whl"
"""
PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "tinyrocm"
version = "10.0.0"
"""
CHANNEL = f"""\
name = "debian"
description = "test"
python = "{PYTHON}"
bootstrap = {{ source = "mmdebstrap" }}
apt = {{ suite = "sid" }}
[indexes.amd]
url = "{URL}"
absent = [403]
[layers.left.wheels.tiny]
index = "amd"
requirements = {ASKED.requirements}
follow = {ASKED.follow}
"""
TEMPLATE = """\
{% import "macros.j2" as m %}
FROM {{ parent }}
{% if has_wheels("tiny") %}
{{ m.wheels_install(
    "/venv",
    wheels("tiny"),
    before="uv venv --quiet --no-config --python PROGRAM /venv; export ROCM_SDK_TARGET_FAMILY=gfx1151;",
    after="[ ! -e /venv/lib/pythonVERSION/site-packages/tinytorch-2.13.0+rocm10.dist-info/uv_cache.json ];",
) }}
{% endif %}
{{ m.mount_points() -}}
CMD ["/venv/bin/python"]
"""
SMOKE = """\
cd "$STRIX_SMOKE/locked"
cat wheels-tiny.txt >&2
grep -q '"index": "https://index.invalid/whl"' wheels.json || exit 3
grep -q '"time": "2026-11-30T04:00:00Z"' wheels.json || exit 4
/venv/bin/python -c 'import tinyrocm, tinytorch; print(tinytorch.hip, tinyrocm.family)'
"""


def wheel(version: str, hip: str) -> bytes:
    """tinytorch, which needs what is nowhere."""
    files = {"tinytorch.py": f"hip = {hip!r}\n"}
    about = f"tinytorch-{version}.dist-info"
    files[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: tinytorch\nVersion: {version}\nRequires-Dist: nowhere\n"
    files[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for path, text in files.items()
    ]
    files[f"{about}/RECORD"] = "\n".join([*rows, f"{about}/RECORD,,", ""])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), text)
    return made.getvalue()


def source() -> bytes:
    """tinyrocm, which only has a source distribution."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        about = "Metadata-Version: 2.1\nName: tinyrocm\nVersion: 10.0.0\n"
        for path, text in {"pyproject.toml": PROJECT, "backend.py": BACKEND, "PKG-INFO": about}.items():
            info = tarfile.TarInfo(f"tinyrocm-10.0.0/{path}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return made.getvalue()


TORCH = "/whl/tinytorch/tinytorch-2.13.0+rocm10-py3-none-any.whl"
ROCM = "/whl/tinyrocm/tinyrocm-10.0.0.tar.gz"


@dataclass
class Served:
    """The index: decoded path → content. What is not there is answered by 403."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def index() -> Iterator[Served]:
    state = Served(files={TORCH: wheel("2.13.0+rocm10", "7.15"), ROCM: source()})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(self.path)
            state.asked.append(path)
            body = state.files.get(path)
            self.send_response(403 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_port}/whl"
        yield state
        server.shutdown()


def write_lock(place: Place, files: dict[str, bytes]) -> None:
    """Lock these files as those of the set, found on the channel's own index."""
    found = []
    for path, content in files.items():
        name, version = path.rsplit("/", 1)[1].removesuffix(".tar.gz").split("-")[:2]
        url = f"{URL}{path.removeprefix('/whl').replace('+', '%2B')}"
        # nobody recorded the size of one of them
        size = len(content) if name == "tinyrocm" else 0
        found.append(WheelLock(name, version, url, hashlib.sha256(content).hexdigest(), size))
    declared = wanted.declared_wheels_sha256(ASKED, Index(url=URL), TARGET, PYTHON)
    held = WheelSetLock(PYTHON, "amd", "2026-11-30T04:00:00Z", declared, tuple(sorted(found, key=lambda w: w.name)))
    for folder in (place.images / "locks", place.root / "data/strix-finetune/locks"):
        path = folder / f"debian-{TARGET}.toml"
        path.write_text(LOCK.replace(STACK_TARGET, TARGET))
        lockfile.save(replace(lockfile.read(path), wheels={"tiny": held}), folder)


@pytest.fixture(scope="session")
def python_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This host's Python, and dash, find and touch as Debian has them, with the libraries that these and uv need.

    busybox lacks options of theirs, and its shell would take its own for the others.
    """
    root = tmp_path_factory.mktemp("python")
    program = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    leave_out = ("__pycache__", "test", "tests", "site-packages", "dist-packages", "idlelib", "ensurepip", "config-*")
    shutil.copytree(library, root / library.relative_to("/"), ignore=shutil.ignore_patterns(*leave_out))
    tools = [Path(f"/usr/bin/{name}") for name in ("dash", "find", "touch")]
    for file in (program, netconf.uv_program(), *tools, *library.glob("lib-dynload/*.so")):
        listed = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
        for found in (word for word in listed.split() if word.startswith("/")):
            copied = root / found.lstrip("/")
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(found).resolve(), copied)
    target = root / program.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, target)
    (root / "bin").mkdir(exist_ok=True)
    for tool in (*tools, Path("/bin/busybox")):
        shutil.copy(tool, root / "bin")
    (root / "tmp").mkdir()
    (root / "tmp/.keep").touch()
    return root


@pytest.fixture(scope="module", params=["docker", "podman"])
def connection(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = connect(request.param, os.environ)
    yield engine
    for image in engine.images(f"{names.TARGET}={TARGET}"):
        for tag in image.tags:
            engine.untag(tag)
        engine.remove(image.id)
    engine.close()


@pytest.fixture
def place(tmp_path: Path, connection: Engine, python_tree: Path, index: Served) -> Place:
    """root → left, where `left` installs the set."""
    images = tmp_path / "images"
    for folder in (images / "channels", images / "locks", tmp_path / "data/strix-finetune/locks"):
        folder.mkdir(parents=True)
    (images / "macros.j2").write_bytes(MACROS.read_bytes())
    (images / "targets.toml").write_text(f'default = "{TARGET}"\n[target.{TARGET}]\nkind = "cpu"\nmemory = "host"\n')
    (images / "channels/debian.toml").write_text(CHANNEL)
    made = Place(tmp_path, connection.info.kind, {"STRIX_INDEX_AMD": index.url}, TARGET)
    write_lock(made, index.files)
    tools = ("cat", "date", "grep", "ln", "mkdir", "rm", "timeout")
    links = " ".join(f"&& /bin/busybox ln -s busybox /bin/{name}" for name in tools)
    made.layer(
        "root",
        "FROM scratch\nCOPY files/ /\nENV PATH=/bin LANG=C.UTF-8\n"
        f'RUN ["/bin/busybox", "sh", "-c", "/bin/busybox ln -s dash /bin/sh {links}"]\n',
        "context = { max_mb = 300 }",
    )
    shutil.copytree(python_tree, images / "root/files", dirs_exist_ok=True)
    program = str(Path(sys._base_executable).resolve())  # type: ignore[attr-defined]
    template = TEMPLATE.replace("PROGRAM", program).replace("VERSION", PYTHON)
    made.layer("left", template, 'parent = ["root"]\nfinal = true', smoke={"imports.sh": SMOKE})
    return made


def test_a_set_of_wheels_is_in_the_image_and_in_its_tests(place: Place, index: Served, connection: Engine) -> None:
    events = place.events("build")
    assert [event["detail"] for event in events if event["event"] == "smoke-result"] == ["7.15 gfx1151"], events
    said = [event["text"] for event in events if event["event"] == "step-output" and event["layer"] == "left"]
    assert "fetching tinytorch-2.13.0+rocm10-py3-none-any.whl (2 of 2)" in said
    assert sorted(index.asked) == [ROCM, TORCH]

    # the same again asks nobody; another address is no other layer, another file is
    done = place.strix("build")
    assert (done.returncode, len(index.asked)) == (0, 2), done.stderr
    place.env["STRIX_INDEX_AMD"] = "http://127.0.0.1:9/elsewhere"
    assert {event["action"] for event in place.events("plan")} == {"reuse"}
    place.env["STRIX_INDEX_AMD"] = index.url
    index.files[TORCH] = wheel("2.13.0+rocm10", "7.16")
    write_lock(place, index.files)
    reasons = {event["layer"]: event["reason"] for event in place.events("plan")}
    assert reasons["root"] == "up to date"
    assert reasons["left"].startswith("rebuild, tinytorch 2.13.0+rocm10 (")
    events = place.events("build")
    assert [event["detail"] for event in events if event["event"] == "smoke-result"] == ["7.16 gfx1151"], events
    assert index.asked[2:] == [TORCH]


def test_what_the_index_does_not_serve_or_serves_wrongly(place: Place, index: Served, connection: Engine) -> None:
    rocm = index.files.pop(ROCM)
    before = place.tags(connection)
    done = place.strix("build")
    assert done.returncode == 1
    assert "the index 'amd' does not serve tinyrocm-10.0.0.tar.gz; " in done.stderr
    index.files[ROCM] = rocm[:-1] + b"x"
    done = place.strix("build")
    assert done.returncode == 1
    assert "the index 'amd' has another file than the lock: tinyrocm-10.0.0.tar.gz is not the file that" in done.stderr
    assert not {tag for tag in place.tags(connection) - before if "/left:" in tag or tag.endswith(f"tune:{TARGET}")}
    kept = place.root / "cache/strix-finetune/archives"
    assert all(len(path.name) == 64 for path in kept.iterdir())


def test_a_stack_without_the_set_has_the_same_template(place: Place) -> None:
    (place.images / "channels/amd.toml").write_text(CHANNEL.replace('name = "debian"', 'name = "amd"'))
    (place.images / "channels/debian.toml").write_text(CHANNEL.split("[layers")[0])
    done = place.strix("render", "left")
    assert 'CMD ["/venv/bin/python"]' in done.stdout, done.stderr
    assert "uv pip install" not in done.stdout
