"""The run folder of rank 0: the newest unfinished one on the head, and a copy of it here when the head is elsewhere."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from strix_finetune.cluster.reach import Reached
from strix_finetune.errors import InputError, Problem, WorkError

# $1: the folder of runs, $2: the recipe's name; prints the newest run of it that is not done
_UNFINISHED = """
cd "$1" 2>/dev/null || exit 0
for run in $(ls -1dt "$2"-[0-9]* 2>/dev/null); do
  grep -qs '"state": "done"' "$run/status.json" || { echo "$run"; exit; }
done
"""
# $1: the run folder; checkpoints are for going on, which is done there
_PACK = 'cd "$1" && exec tar -cf - --exclude=./checkpoints .'


def unfinished(head: Reached, runs: str, recipe: str) -> str:
    """The name of the run to go on with. Raises InputError where there is none."""
    found = head.run(["sh", "-c", _UNFINISHED, "sh", runs, recipe]).strip()
    if not found:
        message = f"no unfinished run of '{recipe}' in {runs} on {head.node.name}"
        raise InputError(Problem(message, cure="leave --resume out to begin one"))
    return found


def fetch(head: Reached, run: str, target: Path) -> bool:
    """Copy a run folder of the head, without its checkpoints, into `target`; say whether there was anything in it.

    Raises WorkError.
    """
    aside = target.with_name(f".{target.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        with head.popen(["sh", "-c", _PACK, "sh", run]) as process:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            process.stdin.close()
            try:
                with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
                    for member in tar:
                        tar.extract(member, aside, filter="data")
            except (tarfile.TarError, OSError) as error:
                process.kill()
                words = process.stderr.read().decode("utf-8", "replace").strip().splitlines() or [str(error)]
                message = f"the run folder {run} of {head.node.name} could not be copied: {words[-1][:200]}"
                raise WorkError(Problem(message, cure=f"it is whole there; copy it to {target}")) from None
        if not any(aside.iterdir()):
            return False
        shutil.rmtree(target, ignore_errors=True)
        aside.replace(target)
        return True
    finally:
        shutil.rmtree(aside, ignore_errors=True)
