"""The Debian packages of an image, by dpkg's own list of them, with the licences that their copyright files name."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.errors import WorkError
from strix_finetune.supply.licences import Licence, copyright_file
from strix_finetune.supply.model import Component, purl
from strix_finetune.supply.tree import OS_RELEASE, STATUS, Tree

# packages that a layer of this project builds for itself
_OWN = "strix-finetune-"


def components(tree: Tree) -> Iterator[Component]:
    """Every package that is installed. Raises WorkError where the image has no list of them."""
    status = tree.files.get(STATUS)
    if status is None:
        raise WorkError(f"the image has no /{STATUS}, so its Debian packages are not known")
    distribution, number = system(tree)
    suite = f"{distribution}-{number}" if number.isdecimal() else number
    for fields in installed(status.decode("utf-8", "replace")):
        name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
        source, _, rest = fields.get("Source", name).partition(" ")
        facts = {"source": source, "source version": rest.strip("()") or version}
        if name.startswith(_OWN):
            address = purl("generic", name, version)
            yield Component("own", name, version, address, Licence("Apache-2.0"), facts={"installed by": "dpkg"})
            continue
        address = purl("deb/debian", name, version, arch=architecture, distro=suite)
        text = tree.follow(f"usr/share/doc/{name}/copyright")
        licence = copyright_file(text.decode("utf-8", "replace")) if text else None
        yield Component("deb", name, version, address, licence, facts=facts)


def installed(status: str) -> Iterator[dict[str, str]]:
    """The paragraphs of dpkg's list that are of installed packages: one-line fields by name."""
    for paragraph in status.split("\n\n"):
        fields: dict[str, str] = {}
        for line in paragraph.splitlines():
            if line[:1] not in (" ", "\t"):
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields.get("Status", "").split()[-1:] == ["installed"] and fields.get("Package"):
            yield {"Version": "", "Architecture": "", **fields}


def system(tree: Tree) -> tuple[str, str]:
    """Id and version of the distribution, as far as the image says them: unstable has a name and no number."""
    text = (tree.files.get(OS_RELEASE) or b"").decode("utf-8", "replace")
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    version = fields.get("VERSION_ID") or fields.get("VERSION_CODENAME") or ""
    return fields.get("ID", "").strip('"'), version.strip('"')
