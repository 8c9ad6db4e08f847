"""What follows when a run has ended: the exports that its recipe wants, and its page."""

from __future__ import annotations

import subprocess
import sys
import traceback

from strix_train.console import Console
from strix_train.errors import TrainError
from strix_train.recipe.schema import Export
from strix_train.runfolder import RunFolder


def export(console: Console, folder: RunFolder, wish: Export | None) -> None:
    """Export in processes of their own, since this one's libraries are patched. Raises TrainError."""
    if wish is None:
        return
    for kind in wish.to:
        console.progress(f"exporting as {kind} …")
        words = ["export", str(folder.path), "--as", kind, "--quant", wish.quantization]
        command = [sys.executable, "-m", "strix_train", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            console.fact("export", line)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("train: ")
            raise TrainError(
                f"the run is done, and its export as {kind} failed: {said}", cure=f"train {' '.join(words)}"
            )


def page(folder: RunFolder) -> None:
    """Write the page about the run; a fault of it is no fault of the run."""
    try:
        from strix_train.report.page import write

        write(folder.path)
    except Exception:  # noqa: BLE001 - `train report` tells what is wrong
        traceback.print_exc()
