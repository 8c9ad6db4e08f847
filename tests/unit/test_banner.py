"""The banner of the image: what it says on which machine, to whom, and that it leaves nothing behind."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

BANNER = Path(__file__).parents[2] / "images/finetune/files/etc/profile.d/strix-finetune-banner.sh"


def shown(root: Path, shell: str = "bash", flags: str = "-i", *, terminal: bool = True) -> str:
    """What an interactive shell prints that reads the banner on a machine whose files lie below `root`."""
    text = BANNER.read_text()
    for folder in ("/sys/", "/opt/", "/usr/lib/", "/dev/kfd"):
        text = text.replace(f" {folder}", f" {root}{folder}")
    script = root / "banner.sh"
    script.write_text(text)
    command = [shell, *(["--norc", "--noprofile"] if shell == "bash" else []), flags, "-c"]
    command.append(f". {script}; set | grep ^strix_; true")
    ours, theirs = pty.openpty()
    out = theirs if terminal else subprocess.PIPE
    done = subprocess.run(
        command, stdin=theirs, stdout=out, stderr=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]}, timeout=60
    )
    os.close(theirs)
    assert done.returncode == 0
    if not terminal:
        return str(done.stdout.decode())
    said = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        said += piece
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def gpu(root: Path, *versions: int) -> None:
    for number, version in enumerate((0, *versions)):
        node = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\nvendor_id 4098\n")
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kfd").touch()


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_gpus_versions_and_next_steps(tmp_path: Path, shell: str) -> None:
    gpu(tmp_path, 110501, 90010)
    site = tmp_path / "opt/venv/lib/python3.14/site-packages"
    for name in ("torch-2.13.0+rocm10.0.dist-info", "torchvision-0.1.dist-info", "rocm_sdk_core-10.0.0.dist-info"):
        (site / name).mkdir(parents=True)
    (tmp_path / "usr/lib/python3/dist-packages/transformers-5.0.dist-info").mkdir(parents=True)
    assert shown(tmp_path, shell) == (
        "GPU: gfx1151\nGPU: gfx90a\n"
        "versions: rocm_sdk_core 10.0.0, torch 2.13.0+rocm10.0, transformers 5.0\n"
        "next: train recipes; train check RECIPE; train RECIPE\n"
    )


def test_a_machine_without_a_gpu(tmp_path: Path) -> None:
    said = shown(tmp_path)
    assert said.startswith("GPU: the kernel shows no AMD GPU for computing")
    assert "versions" not in said


def test_a_gpu_that_is_not_for_this_user(tmp_path: Path) -> None:
    gpu(tmp_path, 110501)
    (tmp_path / "dev/kfd").unlink()
    assert f"GPU: gfx1151\nGPU: you may not open {tmp_path}/dev/kfd; 'strix-finetune doctor'" in shown(tmp_path)


def test_nothing_is_said_to_scripts(tmp_path: Path) -> None:
    gpu(tmp_path, 110501)
    assert shown(tmp_path, terminal=False) == ""
    assert shown(tmp_path, flags="-h") == ""
