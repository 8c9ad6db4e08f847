"""Check an image against what was signed about it: each thing by itself, so that it shows which one does not hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strix_finetune import names
from strix_finetune.engine.base import Engine
from strix_finetune.key import tells_of
from strix_finetune.supply import bill, cyclonedx, envelope, provenance, statement
from strix_finetune.supply.attest import PASSABLE
from strix_finetune.supply.envelope import Signed
from strix_finetune.supply.keyring import Trusted
from strix_finetune.supply.provenance import Said
from strix_finetune.supply.subject import Subject

_SHOWN = 5
# what the image is known as in the store, and what else it is known as
Digests = tuple[set[str], set[str]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked: whether it holds, and in one sentence what was found."""

    name: str
    holds: bool
    said: str


def verify(
    engine: Engine, subject: Subject, lines: Sequence[bytes], keys: Sequence[Trusted], digests: Sequence[str] = ()
) -> tuple[Check, ...]:
    """All checks, whatever the first ones give. `digests`: what else the image is known as, beside its id."""
    every, faults = _read(lines, keys)
    read = bill.make(engine, subject.image, subject.expected) if every else None
    # the id of an image is its configuration's digest, unless the engine keeps images in a way of its own
    known_as = {subject.image.id, *([read.config] if read else [])}
    here = (known_as, set(digests))
    chosen = _chosen(every, here, keys)
    found = every if chosen is None else chosen
    bills = [one for one in found if one.statement.kind == statement.BILL]
    made = [one for one in found if one.statement.kind == statement.PROVENANCE]
    said, unreadable = _said(made)
    return (
        _signature(found, faults if chosen is None else [], keys, len(lines) - len(found)),
        _digest(found, subject, here),
        _key(subject, said, unreadable),
        _contents(subject, read, bills),
        _provenance(subject, said, unreadable),
        _smoke(subject, said, unreadable),
    )


def _chosen(every: list[Signed], here: Digests, keys: Sequence[Trusted]) -> list[Signed] | None:
    """What one trusted key says of this image, its last word on how it was made; None where there is no such key.

    Whoever may write to a registry may attach more to an image: what nobody trusted has signed makes nothing worse.
    """
    # else what a trusted key says of another image, so that the check of the digest can tell
    for counts in ([one for one in every if _about(one, here)], every):
        for key in keys:
            mine = [one for one in counts if key in one.by]
            bills = [one for one in mine if one.statement.kind == statement.BILL]
            made = [one for one in mine if one.statement.kind == statement.PROVENANCE]
            if bills and made:
                return [*bills, max(made, key=lambda one: provenance.finished(one.statement.predicate))]
    return None


def _read(lines: Sequence[bytes], keys: Sequence[Trusted]) -> tuple[list[Signed], list[str]]:
    found: list[Signed] = []
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(envelope.read(line, keys))
        except ValueError as error:
            faults.append(f"envelope {number}: {error}")
    return found, faults


def _said(made: Sequence[Signed]) -> tuple[Said | None, str]:
    """The one provenance, or why there is none."""
    if len(made) != 1:
        return None, "there is no provenance" if not made else "there is more than one provenance"
    try:
        return provenance.read(made[0].statement.predicate), ""
    except ValueError as error:
        return None, str(error)


def _signature(found: Sequence[Signed], faults: Sequence[str], keys: Sequence[Trusted], more: int) -> Check:
    name = "signature"
    if faults:
        return Check(name, False, "; ".join(faults))
    if not found:
        return Check(name, False, "nothing is signed about this image")
    if {statement.BILL, statement.PROVENANCE} - {one.statement.kind for one in found}:
        return Check(name, False, "a bill of materials or a provenance is missing")
    bad = [one for one in found if not one.by]
    if bad:
        ids = {keyid for one in bad for keyid in one.keyids}
        known = {key.key.keyid for key in keys}
        if ids & known:
            return Check(name, False, "what is signed was changed afterwards")
        shown = ", ".join(sorted(keyid[:12] for keyid in ids)) or "nobody"
        return Check(name, False, f"signed by {shown}, which is no key that is trusted here")
    common = set.intersection(*({key.shown for key in one.by} for one in found))
    if not common:
        return Check(name, False, "the statements are signed by different keys")
    rest = f"; {more} more that do not count" if more else ""
    return Check(name, True, f"{len(found)} statements by key {', '.join(sorted(common))}{rest}")


def _about(one: Signed, here: Digests) -> bool:
    """Whether a statement speaks of this image, by any of the names of what is in the store, and by all others."""
    spoken = set(one.statement.subjects.values())
    in_store, elsewhere = here
    return bool(spoken & in_store) and elsewhere <= spoken


def _digest(found: Sequence[Signed], subject: Subject, here: Digests) -> Check:
    name, image = "digest", subject.image.id
    if not found:
        return Check(name, False, f"no statement is about {image[:19]}")
    for one in found:
        if not _about(one, here):
            shown = ", ".join(sorted(digest[:19] for digest in one.statement.subjects.values())) or "nothing"
            return Check(name, False, f"{image[:19]} is in the store, and what was signed is about {shown}")
    return Check(name, True, f"{image[:19]} is what was signed")


def _key(subject: Subject, said: Said | None, unreadable: str) -> Check:
    name, labels = "key", subject.image.labels
    if said is None:
        return Check(name, False, unreadable)
    try:
        keys = provenance.keys(said.layers)
        fits = tells_of(said.layers.get(said.layer, ""), _parts(labels))
    except ValueError as error:
        return Check(name, False, str(error))
    key = labels.get(names.KEY, "")
    if keys[said.layer] != key or said.key != key:
        return Check(name, False, f"the label says {key[:12]}, and the recorded parts make {keys[said.layer][:12]}")
    wrong = [
        f"{what} {value}"
        for what, label, value in (
            ("layer", names.LAYER, said.layer),
            ("target", names.TARGET, said.target),
            ("channel", names.CHANNEL, said.channel),
        )
        if labels.get(label) != value
    ]
    if wrong:
        return Check(name, False, f"the labels are others than what was signed: {', '.join(wrong)}")
    if not fits:
        return Check(name, False, f"the label {names.PARTS} does not tell what the key is made of")
    return Check(name, True, f"{key[:12]} follows from the recorded parts of {len(keys)} layers")


def _parts(labels: Mapping[str, str]) -> Mapping[str, str]:
    try:
        held = json.loads(labels.get(names.PARTS, "{}"))
    except (ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}


def _contents(subject: Subject, found: bill.Found | None, bills: Sequence[Signed]) -> Check:
    name = "contents"
    if not bills or found is None:
        return Check(name, False, "there is no bill of materials")
    if found.differences:
        return Check(name, False, _some(found.differences))
    whole = subject.known is not None
    here = dict(_comparable(cyclonedx.document(found.bill, ""), whole=whole))
    faults: list[str] = []
    for one in bills:
        signed = dict(_comparable(one.statement.predicate, whole=whole))
        faults = [f"{ref} is not in the image" for ref in signed.keys() - here.keys()]
        faults += [f"{ref} is not in the bill" for ref in here.keys() - signed.keys()]
        faults += [f"{ref} is another" for ref in signed.keys() & here.keys() if signed[ref] != here[ref]]
        if not faults:
            break
    if faults:
        return Check(name, False, _some(sorted(faults)))
    compared = "" if found.bill.checked else "; not compared with a lock, since " + subject.unknown
    return Check(name, True, f"{len(here)} components are those of the bill{compared}")


def _comparable(document: Mapping[str, Any], *, whole: bool) -> Iterator[tuple[str, object]]:
    """Reference → what must be the same. Licences are left out: another version of this program may know more of them.

    Without the lock (`whole` is false) archives cannot be seen in an image, nor the hashes of the files that things
    came from; what was compiled is told by its own manifest.
    """
    for item in document.get("components") or ():
        properties = {row.get("name"): row.get("value") for row in item.get("properties") or ()}
        ref = str(item.get("bom-ref"))
        places = sorted(row.get("location", "") for row in item.get("evidence", {}).get("occurrences") or ())
        said: list[object] = [item.get("name"), item.get("version"), item.get("purl"), places]
        if whole:
            yield ref, [*said, properties, item.get("hashes"), item.get("pedigree")]
        elif "checksum=" not in ref:
            yield ref, [*said, properties]
        elif "strix-finetune:library sha256" in properties:
            yield ref, [*said, properties["strix-finetune:library sha256"]]


def _provenance(subject: Subject, said: Said | None, unreadable: str) -> Check:
    name = "provenance"
    if said is None:
        return Check(name, False, unreadable)
    if subject.known is None:
        return Check(name, True, f"lock {said.lock[:12]}, which is not here: {subject.unknown}")
    here = list(provenance.dependencies(subject.known))
    held = here[0]["digest"]["sha256"]
    if held != said.lock:
        # the key is the same, so what differs is nothing that the image is made of
        return Check(name, True, f"lock {said.lock[:12]}; the one here is {held[:12]}, and gives the same key")
    if here != list(said.dependencies):
        return Check(name, False, f"it names other inputs than the lock {held[:12]} has")
    return Check(name, True, f"lock {held[:12]} is the one here, with {len(here) - 1} inputs")


def _smoke(subject: Subject, said: Said | None, unreadable: str) -> Check:
    name = "smoke"
    if said is None:
        return Check(name, False, unreadable)
    try:
        label = json.loads(subject.image.labels.get(names.TESTS, "{}"))
    except (ValueError, RecursionError):
        label = None
    if not isinstance(label, dict):
        return Check(name, False, f"the label {names.TESTS} cannot be read")
    missing = sorted(label.keys() - said.smoke.keys())
    if missing:
        return Check(name, False, f"no result of {_some(missing)}")
    bad = [f"{test} {state}" for test, (_, state) in said.smoke.items() if state not in PASSABLE]
    if bad:
        return Check(name, False, _some(sorted(bad)))
    waiting = [kind for kind, state in said.smoke.values() if state != "passed"]
    device = waiting.count("device")
    rest = f", {device} need a GPU and were not run" if device else ""
    rest += f", {len(waiting) - device} could not show anything" if len(waiting) > device else ""
    return Check(name, True, f"{len(said.smoke) - len(waiting)} passed{rest}")


def _some(rows: Sequence[str]) -> str:
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return "; ".join(rows[:_SHOWN]) + more
