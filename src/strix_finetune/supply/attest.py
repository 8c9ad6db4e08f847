"""Statements about an image, signed: made, kept in the user's state folder, and found again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from strix_finetune import leftovers, paths, tested
from strix_finetune.engine.base import Engine
from strix_finetune.errors import InputError, Place, Problem, WorkError
from strix_finetune.supply import bill, cyclonedx, keyring, provenance, statement, tool
from strix_finetune.supply.envelope import Signer, sign
from strix_finetune.supply.statement import Statement
from strix_finetune.supply.subject import Subject

# results with which an image may be passed on: a test that cannot show anything here says so, and is told as that
PASSABLE = ("passed", "not-run")


def signer(env: Mapping[str, str], cosign_key: Path | None) -> Signer:
    """cosign where it is installed and has a key here or is given one, the user's own key otherwise."""
    from strix_finetune.supply import cosign

    folder = paths.config(env)
    key = cosign_key or folder / keyring.COSIGN
    if cosign_key is None and not (key.is_file() and cosign.program()):
        return keyring.own(folder)
    if not key.is_file():
        raise InputError(Problem("there is no such key", Place(key)))
    public = key.with_suffix(".pub")
    if not public.is_file():
        raise InputError(Problem("the public key of this key is missing", Place(public), "lay it beside the key"))
    return cosign.CosignSigner(key, keyring.public(public.read_text("ascii", "replace"), public))


def statements(engine: Engine, subject: Subject, subjects: Mapping[str, str]) -> tuple[Statement, Statement]:
    """The bill of an image and its provenance. `subjects`: name → digest of what is spoken of.

    Raises WorkError where the image is not what its lock says, where it is not known how it was made, or where its
    smoke tests did not pass.
    """
    known = subject.known
    if known is None:
        raise WorkError(
            f"nothing can be said of how {subject.ref} was made: {subject.unknown}",
            cure="sign it where it was built",
        )
    workspace = known.workspace
    record = tested.last(workspace.folders.state, workspace.stack, known.layer(subject.layer), subject.image.id)
    if record is None:
        raise WorkError(
            f"the results of the smoke tests of {subject.ref} are not known here",
            cure=f"run 'strix-finetune smoke {subject.layer}'",
        )
    bad = [name for name, (_, state, _) in record.results.items() if state not in PASSABLE]
    if bad:
        raise WorkError(f"{subject.ref} has not passed {', '.join(bad)}", cure="build it again")
    found = bill.refuse(bill.make(engine, subject.image, subject.expected), subject.ref)
    version = tool.version()
    made = provenance.predicate(known, subject.layer, record, version)
    return (
        Statement(subjects, statement.BILL, cyclonedx.document(found, version)),
        Statement(subjects, statement.PROVENANCE, made),
    )


def local(subject: Subject) -> dict[str, str]:
    """What an image in an engine's store is called in a statement: its id is the digest of its configuration."""
    return {subject.ref.partition("@")[0]: subject.image.id}


def envelopes(made: tuple[Statement, ...], by: Signer) -> list[bytes]:
    return [sign(one, by) for one in made]


def path(state: Path, image: str) -> Path:
    return state / "attestations" / f"{image.removeprefix('sha256:')}.intoto.jsonl"


def save(lines: list[bytes], file: Path) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    leftovers.write(file, b"".join(line + b"\n" for line in lines))


def load(file: Path) -> list[bytes]:
    """The envelopes in a file, none where there is no such file."""
    try:
        return [line for line in file.read_bytes().splitlines() if line.strip()]
    except FileNotFoundError:
        return []
