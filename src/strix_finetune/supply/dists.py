"""The Python distributions of an image: by their metadata as it is installed, those of Debian's packages included."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.parser import HeaderParser

from strix_finetune.lockmodel import normalize
from strix_finetune.supply.licences import distribution
from strix_finetune.supply.model import Component, purl
from strix_finetune.supply.tree import Tree

_FOLDER = re.compile(r"^(?P<place>.*/(?P<by>site|dist)-packages)/(?P<about>[^/]+)(?:/[^/]+)?$")
_AFFERO = re.compile(r"\bAGPL\b", re.I)


def components(tree: Tree, hashes: Mapping[str, str], urls: Mapping[str, str]) -> Iterator[Component]:
    """Every distribution, in whatever folder. `hashes`, `urls`: of the files that were locked, by name, where known."""
    affero = affero_files(tree)
    for path, content in sorted(tree.files.items()):
        found = _FOLDER.match(path)
        if not found or not found["about"].endswith((".dist-info", ".egg-info")):
            continue
        fields = HeaderParser().parsestr(content.decode("utf-8", "replace"))
        name, version = str(fields.get("Name", "")), str(fields.get("Version", ""))
        if not name:
            continue
        licence = distribution(
            str(fields.get("License-Expression", "")),
            [str(text) for text in fields.get_all("Classifier", [])],
            str(fields.get("License", "")),
        )
        by_dpkg = found["by"] == "dist"
        plain = normalize(name)
        folder = path.removesuffix("/METADATA")
        tops = tree.tops.get(f"{folder}/RECORD", frozenset()) if not by_dpkg else frozenset()
        place = found["place"]
        yield Component(
            "pypi",
            plain,
            version,
            purl("pypi", plain, version),
            licence,
            sha256="" if by_dpkg else hashes.get(plain, ""),
            url="" if by_dpkg else urls.get(plain, ""),
            affero={
                file: tree.licences[file]
                for file in affero
                if file.startswith(f"{place}/") and file.removeprefix(f"{place}/").partition("/")[0] in tops
            },
            facts={"place": f"/{place}", "installed by": "dpkg" if by_dpkg else "uv"},
        )


def affero_files(tree: Tree) -> list[str]:
    """Python files whose first lines name the AGPL, wherever they are, sorted."""
    return sorted(path for path, expression in tree.licences.items() if _AFFERO.search(expression))
