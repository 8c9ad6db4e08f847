"""A bill of materials as CycloneDX 1.6 JSON: the same bytes for the same image, so no time and no random number."""

from __future__ import annotations

import json
import uuid
from typing import Any

from strix_finetune.supply.licences import Licence
from strix_finetune.supply.model import Bill, Component

_SPACE = uuid.UUID("7b1d0e5a-3c52-5f0e-9b39-6f2f6a1f0c55")
_TYPES = {"deb": "library", "pypi": "library", "source": "library", "own": "application"}
_PREFIX = "strix-finetune"


def document(bill: Bill, tool: str) -> dict[str, Any]:
    """The document; `tool` is this program's version."""
    subject: dict[str, Any] = {
        "type": "container",
        "bom-ref": f"image:{bill.key}",
        "name": f"strix-finetune/{bill.layer}:{bill.target}",
        "version": bill.key,
        "properties": _properties(
            {
                "key": bill.key,
                "layer": bill.layer,
                "target": bill.target,
                "channel": bill.channel,
                "compared-with-lock": "yes" if bill.checked else "no",
                **{f"agpl:{name}": ", ".join(files) or "whole" for name, files in sorted(bill.affero.items())},
            }
        ),
    }
    found: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "strix-finetune", "version": tool}]},
            "component": subject,
        },
        "components": [*_system(bill), *(_component(component) for component in bill.components)],
        "dependencies": [{"ref": subject["bom-ref"], "dependsOn": sorted(item.ref for item in bill.components)}],
    }
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    return {"serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, text)}", **found}


def _system(bill: Bill) -> list[dict[str, Any]]:
    """The distribution: scanners choose by it whose list of faults they read."""
    name, version = bill.system
    return [{"type": "operating-system", "bom-ref": "system", "name": name, "version": version}] if name else []


def _component(item: Component) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": _TYPES[item.kind],
        "bom-ref": item.ref,
        "name": item.name,
        "version": item.version,
        "purl": item.purl,
    }
    if item.licence:
        found["licenses"] = [_licence(item.licence)]
    if item.sha256:
        found["hashes"] = [{"alg": "SHA-256", "content": item.sha256}]
    if item.url:
        found["externalReferences"] = [{"type": "distribution", "url": item.url}]
    if item.patches:
        found["pedigree"] = {
            "patches": [{"type": "unofficial", "diff": {"url": f"#{patch.name}"}} for patch in item.patches],
            "notes": "patches of this project: "
            + ", ".join(f"{patch.name} sha256:{patch.sha256}" for patch in item.patches),
        }
    if item.affero:
        found["evidence"] = {
            "licenses": [{"license": {_known(text): text}} for text in sorted(set(item.affero.values()))],
            "occurrences": [{"location": f"/{path}"} for path in item.affero],
        }
    if item.facts:
        found["properties"] = _properties(dict(item.facts))
    return found


def _known(text: str) -> str:
    return "id" if text in ("AGPL-3.0-only", "AGPL-3.0-or-later") else "name"


def _licence(licence: Licence) -> dict[str, Any]:
    if licence.expression in licence.refs:
        return {"license": {"name": licence.refs[licence.expression]}}
    return {"expression": licence.expression}


def _properties(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": f"{_PREFIX}:{name}", "value": value} for name, value in values.items()]
