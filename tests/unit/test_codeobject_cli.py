"""strix-finetune inspect: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strix_finetune.cli import main as run
from tests.unit.codeobject_forge import DATA, blob

LIBRARY = str(DATA / "two-zstd.so")


def test_says_what_is_in_a_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", LIBRARY]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{LIBRARY}: code for 5 targets (ccob v3 zstd)"
    assert [line.split()[0] for line in out[1:]] == ["gfx90a", "gfx942", "gfx1100", "gfx1151", "gfx1201"]
    assert out[4].split(None, 1)[1] == "8.8 kB in 2 objects, 1.3 kB machine code, 3 kernels, wave 32"


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "--json", LIBRARY, str(DATA / "rdc.o")]) == 0
    library, unlinked = json.loads(capsys.readouterr().out)["files"]
    assert library["targets"] == ["gfx90a", "gfx942", "gfx1100", "gfx1151", "gfx1201"]
    assert library["summaries"][3]["wave_sizes"] == [32]
    assert library["containers"][1]["offset"] == 4096
    assert unlinked["targets"] == []


def test_a_file_without_device_code_is_an_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["inspect", "/proc/self/exe", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["/proc/self/exe: no AMD GPU code", f"{tmp_path}: no AMD GPU code"]


def test_faults_are_told_after_what_could_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(blob("plain.so")[:-100])
    assert run(["inspect", str(tmp_path / "none"), str(broken), LIBRARY]) == 2
    out, err = capsys.readouterr()
    assert out.startswith(f"{LIBRARY}: code for 5 targets")
    first, second = err.splitlines()
    assert first == f"error: {tmp_path}/none: cannot be read: No such file or directory"
    assert second.startswith(f"error: {broken}: ")


def test_a_target_can_be_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", LIBRARY, "--require", "gfx1151", "--require", "gfx942"]) == 0
    assert run(["inspect", LIBRARY, "--require", "gfx1150"]) == 1
    assert capsys.readouterr().err == (
        f"error: no code for gfx1150 in {LIBRARY}; there is code for gfx90a, gfx942, gfx1100, gfx1151, gfx1201\n"
    )
    assert run(["inspect", str(DATA / "rdc.o"), "--require", "gfx1151"]) == 1, "bitcode does not run"


def test_no_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect"]) == 2
    assert "missing argument" in capsys.readouterr().err
