"""Run example notebooks inside the image, in the current folder: settings after the cell tagged "parameters".

    python notebooks_inside.py [--tiny FAMILY] [--set KEY=VALUE]… NAME…

What the cells show is printed as it is in the notebooks. `--tiny` makes a random model in models/demo first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from strix_train.environment import settle

NOTEBOOKS = Path("/opt/strix-finetune/notebooks")
TESTS = Path(__file__).resolve().parents[1]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("names", nargs="+")
    wished = parser.parse_args(arguments)
    settle()
    if wished.tiny:
        sys.path.insert(0, str(TESTS / "train"))
        from tiny_models import make

        make(wished.tiny, Path("models/demo"))
    for name in wished.names:
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        [parameters] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
        parameters.source += f"\nSETTINGS = {wished.settings!r}\n"
        NotebookClient(notebook, timeout=900, kernel_name="python3").execute(cwd=str(Path.cwd()))
        for cell in notebook.cells:
            for output in cell.get("outputs", ()):
                shown = output.get("data", {})
                print(output.get("text", "") or shown.get("text/plain", ""), f"[{', '.join(shown)}]" if shown else "")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
