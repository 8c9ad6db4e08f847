"""Parts of the documentation that say what the code says. `python -m strix_finetune.doctor.docs FOLDER` writes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from strix_finetune.doctor.known import KernelEntry, table
from strix_finetune.doctor.registry import CHECKS

_FLAVOURS = {
    "mainline": "kernel.org's numbers (Fedora, Arch, Debian)",
    "ubuntu": "Ubuntu {}",
    "ubuntu-oem": "Ubuntu {}, OEM",
}
_RELEASES = {"noble": "24.04", "resolute": "26.04"}


def parts() -> Mapping[str, Mapping[str, str]]:
    """File → name of the part → its text."""
    return {
        "host.md": {"kernels": _kernels(), "firmware": _firmware(), "sizes": _sizes()},
        "troubleshooting.md": {"checks": _checks()},
    }


def with_parts(text: str, found: Mapping[str, str]) -> str:
    """A document with its parts in their places, which are marked `<!-- NAME: … -->` and `<!-- end NAME -->`."""
    for name, part in found.items():
        text, count = re.subn(
            rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- end {name} -->)",
            lambda match, part=part: f"{match[1]}\n{part}\n{match[2]}",  # type: ignore[misc]
            text,
            flags=re.S,
        )
        if count != 1:
            raise ValueError(f"there must be one place for '{name}', not {count}")
    return text


def _kernels() -> str:
    rows = [
        (
            ", ".join(entry.targets),
            _whose(entry),
            _versions(entry),
            entry.verdict,
            entry.says,
            _link(entry.link, entry.date),
        )
        for entry in table().kernels
    ]
    return _table(("GPU", "kernel", "versions", "verdict", "because it", "source"), rows)


def _firmware() -> str:
    rows = [
        (
            ", ".join(entry.targets),
            ", ".join(f"0x{version:02x}" for version in entry.mes),
            ", ".join(entry.dates),
            entry.verdict,
            entry.says,
            _link(entry.link, entry.date),
        )
        for entry in table().firmware
    ]
    return _table(("GPU", "MES firmware", "packages of", "verdict", "because it", "source"), rows)


def _sizes() -> str:
    sizes = table().sizes
    rows = [(name, f"{peak} GB") for name, peak in sorted(sizes.peak_gb.items(), key=lambda item: item[1])]
    return f"{_table(('what', 'most in use'), rows)}\nSource: {sizes.link}, {sizes.date}.\n"


def _checks() -> str:
    rows = [(f"`{check.name}`", check.why, ", ".join(check.verdicts), check.source) for check in CHECKS]
    return _table(("check", "why", "verdicts", "source"), rows)


def _whose(entry: KernelEntry) -> str:
    return _FLAVOURS[entry.flavour].format(_RELEASES.get(entry.codename, entry.codename)).strip()


def _versions(entry: KernelEntry) -> str:
    if entry.since and entry.below:
        return f"{entry.since} to below {entry.below}"
    return f"{entry.since} and later" if entry.since else f"before {entry.below}"


def _link(address: str, date: str) -> str:
    site = re.sub(r"^https://(?:www\.)?([^/]+)/.*$", r"\1", address)
    return f"[{site}]({address}), {date}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows)]
    return "".join(lines)


def write(folder: Path) -> None:
    for name, found in parts().items():
        path = folder / name
        path.write_text(with_parts(path.read_text("utf-8"), found), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
