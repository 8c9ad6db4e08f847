"""What differs between two images, by package, file and setting; times, logs and caches are counted, not named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strix_finetune.cli.diff import diff
from strix_finetune.errors import EngineError
from strix_finetune.oci import layout, owners, whole
from strix_finetune.oci.descriptor import INDEX, MANIFEST, Descriptor, canonical
from strix_finetune.oci.difference import Difference, compare
from strix_finetune.registry import client
from strix_finetune.registry.faults import RegistryError
from strix_finetune.registry.repository import parse
from tests.unit.oci_images import ImageEngine, layer_tar

SITE = "opt/venv/lib/python3.14/site-packages"
DIST = "usr/lib/python3/dist-packages"


def status(**versions: str) -> str:
    return "".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: {version}\nDescription: x\n y: z\n\n"
        for name, version in versions.items()
    )


def files(torch: str = "2.14", unsloth: str = "1.0", **more: Any) -> dict[str, Any]:
    """A small image: a Debian package with a module and its metadata, and a wheel with byte code and a program."""
    return {
        "var/lib/dpkg/status": status(torch=torch, bash="5"),
        "var/lib/dpkg/info/torch:amd64.list": f"/.\n/usr\n/{DIST}/torch.py\n/{DIST}/torch-{torch}.dist-info/RECORD\n",
        "var/lib/dpkg/info/bash.list": "/.\n/bin/bash\n",
        "usr/bin/bash": "shell",
        f"{DIST}/torch.py": f"version {torch}",
        f"{DIST}/torch-{torch}.dist-info/RECORD": "torch.py,,\n",
        f"{SITE}/unsloth/a.py": unsloth * 10,
        f"{SITE}/unsloth/__pycache__/a.cpython-314.pyc": unsloth,
        "opt/venv/bin/unsloth": "program",
        f"{SITE}/unsloth-{unsloth}.dist-info/RECORD": "unsloth/a.py,,\n../../../bin/unsloth,,\n",
    } | more


def engine(**images: dict[str, Any]) -> ImageEngine:
    made = ImageEngine()
    for number, (name, content) in enumerate(images.items()):
        config = content.pop("config", {})
        made.hold(f"localhost/{name}:1", [layer_tar(content, mtime=1_900_000_000 + number)], **config)
        made.refs[f"localhost/{name}:1"] = f"sha256:{number}"
        made.store[f"sha256:{number}"] = {}
    return made


def compared(**images: dict[str, Any]) -> Difference:
    made = engine(**images)
    one, other = (whole.local(made, f"localhost/{name}:1") for name in images)
    return compare(one, other)


def test_the_same_content_is_the_same_whenever_it_was_built() -> None:
    found = compared(a=files() | {"var/log/dpkg.log": "monday"}, b=files() | {"var/log/dpkg.log": "tuesday"})
    assert found.same
    assert (found.packages, found.files, found.noise, found.times) == ((), (), 1, len(files()))
    assert (found.layers_shared, found.layers) == (0, 1)


def test_packages_have_their_versions_and_sizes() -> None:
    found = compared(a=files(), b=files(torch="2.15", unsloth="1.1.0"))
    rows = {(row.kind, row.name): (row.what, row.before, row.after) for row in found.packages}
    assert rows == {
        ("deb", "torch"): ("changed", "2.14", "2.15"),
        ("pip", "unsloth"): ("changed", "1.0", "1.1.0"),
    }
    grown = next(row for row in found.packages if row.name == "unsloth")
    assert grown.size_after - grown.size_before == 2 * 10 + 2
    assert not found.same


def test_files_say_what_of_them_is_other_and_whose_they_are() -> None:
    changed = files() | {"usr/bin/bash": "SHELL", "srv/new/deep/er/x": "1", "opt/venv/bin/unsloth": ("link", "/bin/x")}
    del changed[f"{SITE}/unsloth/__pycache__/a.cpython-314.pyc"]
    found = {row.path: row for row in compared(a=files(), b=changed).files}
    bash, new = found["usr/bin/bash"], found["srv/new/deep/er/x"]
    assert (bash.what, bash.how, bash.package) == ("changed", ("content",), "deb bash")
    assert (new.what, new.before, new.after, new.package) == ("added", None, 1, "/srv/new/deep")
    assert "kind" in found["opt/venv/bin/unsloth"].how
    gone = found[f"{SITE}/unsloth/__pycache__/a.cpython-314.pyc"]
    assert (gone.what, gone.package) == ("removed", "pip unsloth")


def test_settings_are_compared_and_what_the_builder_adds_is_not() -> None:
    one = files() | {"config": {"Env": ["A=1", "B=2"], "Cmd": ["sh"], "Labels": {"io.buildah.version": "1"}}}
    other = files() | {"config": {"Env": ["A=1", "B=3"], "WorkingDir": "/", "Labels": {"x": "y"}}}
    found = compared(a=one, b=other)
    rows = {row.name: (row.before, row.after) for row in found.settings}
    assert rows == {"cmd": ("sh", None), "env B": ("2", "3"), "label x": (None, "y")}


def test_a_file_of_a_debian_module_is_dpkgs_and_not_a_wheels() -> None:
    made = whole.local(engine(a=files()), "localhost/a:1")
    assert ("pip", "torch") not in owners.packages(made)
    assert str(owners.owners(made)[f"{DIST}/torch.py"]) == "deb torch"


def test_what_a_later_layer_removed_is_not_there() -> None:
    made = ImageEngine()
    made.hold("a", [layer_tar(files()), layer_tar({"var/lib/dpkg/info/bash.list": None, f"{SITE}/unsloth": None})])
    found = whole.local(made, "a")
    assert "var/lib/dpkg/info/bash.list" not in found.texts
    assert f"{SITE}/unsloth/a.py" not in found.tree


class Served:
    """A registry that has an exported image, as one of an index of several."""

    def __init__(self, made: layout.Layout, ref: str, **platform: str) -> None:
        self.repository = parse("registry.example/x")
        packed = made.packed[ref]
        self.blobs = {blob.descriptor.digest: b"".join(blob.read(0)) for blob in packed.blobs}
        other = Descriptor.of(MANIFEST, b"{}", platform={"os": "unknown", "architecture": "unknown"})
        own = Descriptor.of(MANIFEST, packed.manifest, platform=platform)
        index = canonical({"manifests": [other.as_json(), own.as_json()]})
        self.manifests = {"cpu": client.Served(INDEX, index), own.digest: client.Served(MANIFEST, packed.manifest)}

    def manifest(self, reference: str) -> client.Served | None:
        return self.manifests.get(reference)

    def small(self, wanted: Descriptor) -> bytes:
        return self.blobs[wanted.digest]

    def download(self, wanted: Descriptor, path: Path, progress: Any) -> None:
        path.write_bytes(self.blobs[wanted.digest])


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_an_image_in_a_registry_is_the_one_that_was_pushed(compression: Any, tmp_path: Path) -> None:
    made = engine(a=files())
    exported = layout.export(made, "localhost/a:1", (), tmp_path, epoch=10**9, compression=compression)
    served: Any = Served(exported, "localhost/a:1", os="linux", architecture="amd64")
    found = compare(whole.local(made, "localhost/a:1"), pushed := whole.pushed(served, "cpu"))
    assert found.same
    assert found.times == len(files())
    assert pushed.name == "registry.example/x:cpu"
    assert pushed.stored == sum(len(blob) for blob in served.blobs.values())
    with pytest.raises(RegistryError, match=r"the registry has no registry\.example/x:gone"):
        whole.pushed(served, "gone")
    other: Any = Served(exported, "localhost/a:1", os="linux", architecture="arm64")
    with pytest.raises(RegistryError, match="has no image for linux/amd64"):
        whole.pushed(other, "cpu")
    served.blobs = dict.fromkeys(served.blobs, b"{}")
    with pytest.raises(EngineError, match=r"is no image that can be read|is not whole"):
        whole.pushed(served, "cpu")


def test_the_command_explains_and_tells_by_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(a=files(), b=files(unsloth="1.1"))
    monkeypatch.setattr("strix_finetune.engine.select.connect", lambda name, env: made)
    done = CliRunner().invoke(diff, ["localhost/a:1", "localhost/b:1"], standalone_mode=False)
    assert done.return_value == 0
    assert "~ pip unsloth  1.0 -> 1.1  same size" in done.output
    done = CliRunner().invoke(diff, ["localhost/a:1", "localhost/b:1", "--exit-code", "--json"], standalone_mode=False)
    assert done.return_value == 1
    assert [row["name"] for row in json.loads(done.output)["packages"]] == ["unsloth"]
    done = CliRunner().invoke(diff, ["localhost/a:1", "localhost/c:1"], standalone_mode=False)
    assert "there is no image localhost/c:1 here" in str(done.exception)
