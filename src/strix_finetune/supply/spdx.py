"""A bill of materials as SPDX 2.3 JSON. The time that the format asks for is that of the archive in the lock."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from strix_finetune.supply.model import Bill, Component

_IMAGE = "SPDXRef-image"
_NONE = "NOASSERTION"


def document(bill: Bill, tool: str) -> dict[str, Any]:
    """The document; `tool` is this program's version."""
    name = f"strix-finetune/{bill.layer}:{bill.target}"
    packages = [_package(component) for component in bill.components]
    refs = {ref: text for item in bill.components if item.licence for ref, text in item.licence.refs.items()}
    affero = "; ".join(f"{name}: {', '.join(files) or 'whole'}" for name, files in sorted(bill.affero.items()))
    image: dict[str, Any] = {
        "SPDXID": _IMAGE,
        "name": name,
        "versionInfo": bill.key,
        "downloadLocation": _NONE,
        "filesAnalyzed": False,
        "licenseConcluded": _NONE,
        "licenseDeclared": _NONE,
        "copyrightText": _NONE,
        "primaryPackagePurpose": "CONTAINER",
        "comment": f"key {bill.key}, channel {bill.channel}, "
        f"{'compared' if bill.checked else 'not compared'} with its lock" + (f"; AGPL: {affero}" if affero else ""),
    }
    content = hashlib.sha256(json.dumps([image, packages], sort_keys=True).encode()).hexdigest()
    found: dict[str, Any] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://strix-finetune.invalid/spdx/{content}",
        "creationInfo": {"created": bill.date, "creators": [f"Tool: strix-finetune-{tool}"]},
        "documentDescribes": [_IMAGE],
        "packages": [image, *packages],
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": _IMAGE},
            *(
                {"spdxElementId": _IMAGE, "relationshipType": "CONTAINS", "relatedSpdxElement": package["SPDXID"]}
                for package in packages
            ),
        ],
    }
    if refs:
        found["hasExtractedLicensingInfos"] = [
            {"licenseId": ref, "name": text, "extractedText": f"named as '{text}'; the text is in the image"}
            for ref, text in sorted(refs.items())
        ]
    return found


def _package(item: Component) -> dict[str, Any]:
    declared = item.licence.expression if item.licence else _NONE
    comment = [f"{name}: {value}" for name, value in item.facts.items()]
    comment += [f"patch {patch.name} sha256:{patch.sha256}" for patch in item.patches]
    comment += [f"AGPL: /{path}" for path in item.affero]
    found: dict[str, Any] = {
        "SPDXID": f"SPDXRef-{re.sub(r'[^A-Za-z0-9.-]+', '-', item.name)}-{_short(item.ref)}",
        "name": item.name,
        "versionInfo": item.version,
        "downloadLocation": item.url or _NONE,
        "filesAnalyzed": False,
        "licenseConcluded": _NONE,
        "licenseDeclared": declared,
        "copyrightText": _NONE,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": item.purl}
        ],
    }
    if item.sha256:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": item.sha256}]
    if comment:
        found["comment"] = "; ".join(comment)
    return found


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
