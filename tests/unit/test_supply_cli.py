"""sbom, sign and verify as they are typed, on an image that an engine exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strix_finetune import cli, names, tested
from strix_finetune.events import SmokeResult
from strix_finetune.supply import keyring
from tests.conftest import Images
from tests.unit.supply_images import VENV, Store, base, metadata, top
from tests.unit.test_supply_verify import CHECKS, Site, site

__all__ = ["site"]


@pytest.fixture
def typed(site: Site, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that every command needs here; the engine is the site's."""
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "xdg" / name.lower()))
    monkeypatch.setattr("strix_finetune.engine.select.connect", lambda kind, env: site.store)
    record(site, tmp_path, "passed")
    return ["--target", "cpu", "--channel", "debian", "--images", str(images.path)]


def record(site: Site, tmp_path: Path, state: Any) -> None:
    stack, layer = site.known.workspace.stack, site.known.layer("finetune")
    results = [SmokeResult("finetune", "finetune/own.sh", "static", state, "")]
    results.append(SmokeResult("finetune", "finetune/gpu.sh", "device", "not-run", ""))
    tested.record(tmp_path / "xdg/state/strix-finetune", stack, layer, site.store.id, results)


@pytest.mark.parametrize("image", ["", "cpu", "localhost/strix-finetune:cpu"])
def test_sbom_prints_a_document_and_tells_of_the_agpl(
    image: str, typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sbom", *[image] * bool(image), *typed]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["bomFormat"] == "CycloneDX"
    assert err == (
        "2 Debian packages, 3 Python distributions; 2 name no licence\n"
        f"AGPL: 2 files of unsloth, such as /{VENV}/unsloth/fsdp2.py\n"
    )


def test_sbom_into_a_file(typed: list[str], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert cli.main(["sbom", *typed, "--format", "spdx", "-o", str(file)]) == 0
    assert json.loads(file.read_text())["spdxVersion"] == "SPDX-2.3"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_sbom_of_an_image_that_is_not_what_its_lock_says(
    site: Site, typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    site.store.layers = [base(), {**top(), f"{VENV}/evil-1.dist-info/METADATA": metadata("evil", "1")}]
    assert cli.main(["sbom", *typed]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err == (
        "error: the image localhost/strix-finetune:cpu is not what its lock says: the Python package evil 1 is in no "
        "lock; build it again with 'strix-finetune build --rebuild'\n"
    )


def test_sbom_of_an_image_of_other_definitions(
    site: Site, typed: list[str], images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    images.write("images/finetune/Dockerfile.j2", "FROM {{ parent }}\nRUN x\nCOPY {{ pip('app') }} /r.txt\n")
    assert cli.main(["sbom", *typed]) == 0
    out, err = capsys.readouterr()
    assert "is not compared with a lock: it was built from other definitions or another lock than those here" in err
    properties = {row["name"]: row["value"] for row in json.loads(out)["metadata"]["component"]["properties"]}
    assert properties["strix-finetune:compared-with-lock"] == "no"
    assert cli.main(["sign", *typed]) == 1
    assert "nothing can be said of how localhost/strix-finetune:cpu was made" in capsys.readouterr().err


def test_images_that_are_none_of_ours(site: Site, typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sbom", "localhost/other:1", *typed]) == 2
    assert "there is no image localhost/other:1; build it" in capsys.readouterr().err
    site.store.labels.pop(names.KEY)
    assert cli.main(["sbom", *typed]) == 2
    assert "is not one of this project: it has no label" in capsys.readouterr().err


def test_sign_and_verify(
    site: Site, typed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["verify", *typed]) == 1
    assert "nothing is signed about this image" in capsys.readouterr().out
    assert cli.main(["sign", *typed]) == 0
    folder = tmp_path / "xdg/state/strix-finetune/attestations"
    assert f"2 statements by key {key(tmp_path)}" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == [f"{site.store.id[7:]}.intoto.jsonl"]
    assert cli.main(["verify", *typed]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", name] for name in CHECKS]
    site.store.labels[names.CHANNEL] = "amd"
    # its id is another one now, so it is told what it is to be held against
    [file] = folder.iterdir()
    assert cli.main(["verify", *typed, "--statements", str(file), "--json"]) == 1
    out, err = capsys.readouterr()
    assert [row["check"] for row in json.loads(out)["checks"] if not row["holds"]] == ["digest", "key"]
    assert err == "error: localhost/strix-finetune:cpu does not hold: digest, key\n"


def test_sign_with_the_parents(
    site: Site, typed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["sign", *typed, "--parents"]) == 1
    parent = site.known.layer("base")
    ref = names.layer_ref("base", "cpu", parent.key)
    assert f"stands on {ref}, which is gone" in capsys.readouterr().err
    below = Store([base()], {**site.store.labels, names.LAYER: "base", names.KEY: parent.key})
    image, export = site.store.image, site.store.export
    monkeypatch.setattr(site.store, "image", lambda name: below.held if name == ref else image(name))
    monkeypatch.setattr(site.store, "export", lambda name: below.export(name) if name == below.id else export(name))
    tested.record(tmp_path / "xdg/state/strix-finetune", site.known.workspace.stack, parent, below.id, [])
    assert cli.main(["sign", *typed, "--parents"]) == 0
    files = {path.name for path in (tmp_path / "xdg/state/strix-finetune/attestations").iterdir()}
    assert files == {f"{site.store.id[7:]}.intoto.jsonl", f"{below.id[7:]}.intoto.jsonl"}
    assert cli.main(["sign", *typed, "--parents", "--output", str(tmp_path / "x")]) == 2


def test_verify_trusts_what_it_is_told_to(
    site: Site, typed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["sign", *typed, "--output", str(tmp_path / "s")]) == 0
    public = tmp_path / "xdg/config/strix-finetune" / keyring.OWN_PUBLIC
    verify = ["verify", *typed, "--statements", str(tmp_path / "s")]
    assert cli.main(verify) == 0
    other = tmp_path / "other"
    keyring.own(other)
    assert cli.main([*verify, "--key", str(other / keyring.OWN_PUBLIC)]) == 1
    assert "which is no key that is trusted here" in capsys.readouterr().out
    elsewhere = public.rename(tmp_path / "mine.pub")
    assert cli.main(verify) == 1
    trusted = public.parent / keyring.TRUSTED
    trusted.mkdir()
    (trusted / "friend.pub").write_bytes(elsewhere.read_bytes())
    assert cli.main(verify) == 0
    assert cli.main([*verify, "--key", str(tmp_path / "missing.pub")]) == 2


def test_an_image_whose_tests_failed_is_not_signed(
    site: Site, typed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(site, tmp_path, "failed")
    assert cli.main(["sign", *typed]) == 1
    assert "has not passed finetune/own.sh" in capsys.readouterr().err
    assert not (tmp_path / "xdg/state/strix-finetune/attestations").exists()


def test_scan_gives_the_bill_to_a_scanner(
    typed: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/grype"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n/bin/cat "${1#sbom:}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert cli.main(["scan", *typed]) == 0
    assert json.loads(capfd.readouterr().out)["bomFormat"] == "CycloneDX"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["scan", *typed]) == 2
    assert "no vulnerability scanner is installed; install grype" in capfd.readouterr().err


def key(tmp_path: Path) -> str:
    return keyring.own(tmp_path / "xdg/config/strix-finetune").public_key.keyid[:12]
