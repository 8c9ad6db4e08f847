"""Libraries that others published: `strix-finetune inspect` names the targets that are really in them.

Downloads 43 MB from the package index and 369 MB from Debian's archive; skipped where these are not served.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strix_finetune import debian, programs

pytestmark = pytest.mark.e2e

RDNA3 = ("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153")
CDNA = ("gfx908", "gfx90a", "gfx942")
RDNA4 = ("gfx1200", "gfx1201")
RDNA1_AND_2 = ("gfx1010", "gfx1011", "gfx1012", *(f"gfx103{last}" for last in range(7)))
BITSANDBYTES = {
    "rocm64": (*CDNA, "gfx1030", *RDNA3, *RDNA4),
    "rocm70": (*CDNA, "gfx950", "gfx1030", *RDNA3, *RDNA4),
    "rocm71": (*CDNA, "gfx950", "gfx1030", *RDNA3, *RDNA4),
    "rocm72": (*CDNA, "gfx950", "gfx1030", *RDNA3, *RDNA4),
    "rocm714": (*CDNA, "gfx950", *RDNA1_AND_2, *RDNA3, *RDNA4, "gfx1250"),
    "rocm715": (*CDNA, "gfx950", *RDNA1_AND_2, *RDNA3, *RDNA4, "gfx1250"),
}
# Target → kernels and bytes of machine code, from llvm-readelf-22 on what was extracted by other means.
RCCL_TARGETS = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1200", "gfx1201")
RCCL_GFX908 = (126, 71125032, (64,))

MEASURE = """
import json, sys, time
from strix_finetune.codeobject import inspect
start = time.monotonic()
report = inspect(sys.argv[1]).to_json()
peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
json.dump({"seconds": time.monotonic() - start, "peak": peak * 1024, "report": report}, sys.stdout)
"""


def test_bitsandbytes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]
    command += [str(tmp_path), "--platform", "manylinux_2_24_x86_64", "bitsandbytes==0.50.2"]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("the package index does not serve bitsandbytes 0.50.2")
    (wheel,) = tmp_path.glob("*.whl")
    program = [sys.executable, "-m", "strix_finetune", "inspect", "--json", str(wheel)]
    files = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)["files"]
    found = {Path(file["path"]).stem.removeprefix("libbitsandbytes_"): tuple(file["targets"]) for file in files}
    assert found == BITSANDBYTES
    for file in files:
        waves = {row["target_id"]: row["wave_sizes"] for row in file["summaries"]}
        assert all(wave == ([64] if target in (*CDNA, "gfx950") else [32]) for target, wave in waves.items())
        assert {row["kernels"] for row in file["summaries"]} == {175}
        assert file["warnings"] == []


def test_debians_rccl(tmp_path: Path) -> None:
    """One compressed bundle of 376 MB that holds 1198 MB: in seconds, and in less memory than its code takes."""
    (library,) = _debian_library(tmp_path, "librccl1=7.2.4-1~exp3", "librccl.so.1.0")
    program = [sys.executable, "-c", MEASURE, str(library)]
    found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    report = found["report"]
    assert tuple(report["targets"]) == RCCL_TARGETS
    assert "gfx1151" not in report["targets"]
    (container,) = report["containers"]
    assert (container["encoding"], container["raw_size"]) == ("ccob v3 zstd", 1198137312)
    rows = {row["target_id"]: row for row in report["summaries"]}
    first = rows["gfx908"]
    assert (first["kernels"], first["code_size"], tuple(first["wave_sizes"])) == RCCL_GFX908
    assert all(row["wave_sizes"] == ([32] if target.startswith("gfx1") else [64]) for target, row in rows.items())
    assert found["peak"] < 300e6
    assert found["seconds"] < 60


def _debian_library(folder: Path, package: str, name: str) -> list[Path]:
    """The file of that name out of a package of Debian's experimental suite, by an apt with a state of its own."""
    missing = [program for program in ("apt-get", "dpkg-deb", "tar") if not shutil.which(program)]
    if missing:
        pytest.skip(f"this host has no {', '.join(missing)}")
    state = folder / "apt"
    for part in ("lists/partial", "archives/partial"):
        (state / part).mkdir(parents=True)
    (state / "status").touch()
    source = f"deb [signed-by={debian.keyring()} arch=amd64] {programs.HOST.mirror('')} experimental main\n"
    (state / "sources.list").write_text(source)
    settings = {
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": "-",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "--quiet=2", *(f"-o{key}={value}" for key, value in settings.items())]
    for command in ([*apt, "update"], [*apt, "download", package]):
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        if done.returncode:
            pytest.skip(f"Debian's archive does not serve {package}: {done.stderr.strip().splitlines()[-1:]}")
    (deb,) = folder.glob("*.deb")
    unpack = f"dpkg-deb --fsys-tarfile {deb.name} | tar -x --wildcards '*/{name}'"
    subprocess.run(["sh", "-c", unpack], cwd=folder, check=True)
    deb.unlink()
    return [path for path in folder.rglob(name) if not path.is_symlink()]
