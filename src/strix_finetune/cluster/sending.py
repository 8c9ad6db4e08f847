"""Parcels to a node: what it lacks goes there once, is compared with its digests, and only then gets its name."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from contextlib import suppress

from strix_finetune.cluster import parcels
from strix_finetune.cluster.parcels import Parcel
from strix_finetune.cluster.reach import Reached
from strix_finetune.errors import Problem, WorkError

SENT = "sent"
# $1: the folder of parcels, the rest: digests; prints those that are there
_HAVE = 'cd "$1" || exit; shift; for name; do [ -d "$name" ] && echo "$name"; done; :'
# $1: the folder of parcels, $2: the digest, $3: a name until all is there, $4: what the manifest's names are below
_TAKE = """
set -e
cd "$1"
# of days ago: the power went, and no shell was left to remove it
find . -maxdepth 1 -name '.partial-*' -mmin +2880 -exec chmod -R u+w {} + -exec rm -rf {} + || :
trap 'rm -rf "$3"' EXIT
mkdir "$3"
tar -xf - -C "$3"
(cd "$3/$4" && sha256sum --check --status -) <"$3/.manifest" || { echo "it arrived damaged" >&2; exit 1; }
chmod -R a+rX "$3"
# not from folders: their owner may remove them
find "$3" -type f -exec chmod a-w {} +
mv -T "$3" "$2" 2>/dev/null || [ -d "$2" ]
"""
# $1: a folder of models; the manifest comes by standard input
_SAME = 'cd "$1" 2>/dev/null && sha256sum --check --status - 2>/dev/null'


def deliver(reached: Reached, wanted: Sequence[Parcel], folder: str) -> list[Parcel]:
    """Have all parcels in `folder`/sent on the node; returns those that had to be sent. Raises WorkError."""
    place = f"{folder}/{SENT}"
    there = reached.run(["sh", "-c", _HAVE, "sh", place, *(parcel.digest for parcel in wanted)]).split()
    missing = [parcel for parcel in wanted if parcel.digest not in there]
    for parcel in missing:
        _send(reached, parcel, place)
    return missing


def has_same(reached: Reached, parcel: Parcel, folder: str) -> bool:
    """Whether the node has those very files in a folder of its own already."""
    # a disk gives a gigabyte in a few seconds
    seconds = 60 + parcel.size / 50e6
    done = reached.try_run(["sh", "-c", _SAME, "sh", folder], stdin=parcel.manifest.encode(), seconds=seconds)
    return done.code == 0


def _send(reached: Reached, parcel: Parcel, place: str) -> None:
    partial = f".partial-{uuid.uuid4().hex}"
    names = parcel.path.name if parcel.folder else "."
    with reached.popen(["sh", "-c", _TAKE, "sh", place, parcel.digest, partial, names]) as process:
        assert process.stdin
        assert process.stderr
        try:
            # it says why it ended; the broken pipe only says that it did
            with suppress(BrokenPipeError):
                parcels.stream(parcel, process.stdin.write)
            with suppress(BrokenPipeError):
                process.stdin.close()
            words = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    if code:
        why = next(iter(words), f"exit code {code}")[:300]
        node = reached.node
        message = f"node {node.name}: {parcel.path} did not get there: {why}"
        raise WorkError(Problem(message, node.place, f"see what `df -h {shlex.quote(place)}` says there"))
