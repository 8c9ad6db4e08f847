"""Licences as SPDX expressions: from Debian's copyright files and from the metadata of Python distributions.

What no list knows becomes a LicenseRef, with the words that were found: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

# short names of Debian's copyright format, lower case, where they are not SPDX's own
_DEBIAN = {
    "apache": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "artistic": "Artistic-1.0-Perl",
    "artistic-2": "Artistic-2.0",
    "boost-1.0": "BSL-1.0",
    "bsd-2": "BSD-2-Clause",
    "bsd-3": "BSD-3-Clause",
    "expat": "MIT",
    "mpl-2": "MPL-2.0",
    "psf": "PSF-2.0",
    "psf-2": "PSF-2.0",
    "sleepycat": "Sleepycat",
    "zlib/libpng": "Zlib",
}
# exceptions, as both write them, lower case
_EXCEPTIONS = {
    "autoconf": "Autoconf-exception-2.0",
    "bison": "Bison-exception-2.2",
    "gcc-runtime-library": "GCC-exception-3.1",
    "gcc-runtime": "GCC-exception-3.1",
    "libtool": "Libtool-exception",
    "linux-syscall-note": "Linux-syscall-note",
    "llvm": "LLVM-exception",
    "classpath": "Classpath-exception-2.0",
    "openssl": "",  # everybody has wording of their own
}
_GNU = re.compile(r"(a?l?gpl|gfdl)(-niv)?[ -]?v?(\d(?:\.\d+)?)(\+)?", re.I)
# what classifiers say without leaving a question open; the others name a family
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "GNU Affero General Public License v3": "AGPL-3.0-only",
    "GNU Affero General Public License v3 or later (AGPLv3+)": "AGPL-3.0-or-later",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.0-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
}
# what people write into the old free field, lower case
_WORDS = {
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "mit license": "MIT",
    "the mit license": "MIT",
    "mpl 2.0": "MPL-2.0",
    "psf": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
}
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class Licence:
    """`expression`: SPDX's. `refs`: each LicenseRef in it → the words that it stands for."""

    expression: str
    refs: Mapping[str, str] = field(default_factory=dict)


def copyright_file(text: str) -> Licence | None:
    """The licences of all files that a machine-readable copyright file names, all of them at once; None for others.

    Paragraphs about the packaging alone do not count: what it makes is not part of it.
    """
    if not re.match(r"\s*Format(?:-Specification)?:\s*\S", text):
        return None
    found: list[Licence] = []
    for paragraph in _paragraphs(text):
        if "files" in paragraph and all(glob.startswith("debian/") for glob in paragraph["files"].split()):
            continue
        name = paragraph.get("license", "").strip().split("\n", 1)[0].strip()
        # a licence without files is the text of one that others name
        if name and ("files" in paragraph or "format" in paragraph):
            found.append(short_name(name))
    return all_of(found)


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Fields by name in lower case; a text goes on in lines that begin with a blank."""
    fields: dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t":
            if name:
                fields[name] += "\n" + line.strip()
        elif not line.startswith("#"):
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()


def short_name(text: str) -> Licence:
    """A License field of Debian's format: names joined by "or", "and" and commas, "and" before "or" before commas."""
    if "/" in text and "and/or" in text:
        return _other(text)
    groups = []
    for group in re.split(r"\s*,\s*(?:and\s+)?", text.strip()):
        choices = [
            all_of([_one(item) for item in re.split(r"\s+and\s+", choice, flags=re.I)])
            for choice in re.split(r"\s+or\s+", group, flags=re.I)
        ]
        groups.append(_joined([choice for choice in choices if choice], "OR"))
    return all_of(groups) or _other(text)


def _one(text: str) -> Licence:
    name, _, rest = (part.strip() for part in re.sub(r"\s+", " ", text).partition(" with "))
    known = _id(name)
    if known is None:
        return _other(text)
    if not rest:
        return Licence(known)
    words = re.sub(r"[ -]exceptions?$", "", rest, flags=re.I).strip()
    exception = _EXCEPTIONS.get(words.lower().replace(" ", "-"))
    return _valid(f"{known} WITH {exception}") or _other(text) if exception else _other(text)


def _id(name: str) -> str | None:
    """The SPDX identifier of one name, None where there is none."""
    gnu = _GNU.fullmatch(name)
    if gnu:
        version = gnu[3] if "." in gnu[3] else f"{gnu[3]}.0"
        if gnu[1].upper() == "GFDL":
            version = gnu[3] if "." in gnu[3] else f"{gnu[3]}.1"
        middle = "-no-invariants" if gnu[2] else ""
        found = _valid(f"{gnu[1].upper()}-{version}{middle}-{'or-later' if gnu[4] else 'only'}")
    else:
        found = _valid(_DEBIAN.get(name.lower(), name))
    return found.expression if found else None


def distribution(expression: str, classifiers: Iterable[str], free: str) -> Licence | None:
    """What the metadata of a Python distribution says: License-Expression, else classifiers, else the free text."""
    if expression.strip():
        return _valid(expression) or _other(expression)
    named = [text.rpartition(" :: ")[2].strip() for text in classifiers if text.startswith("License ::")]
    named = [text for text in named if text != "OSI Approved"]
    first = free.strip().split("\n", 1)[0].strip() if free.strip() else ""
    said = (_valid(_WORDS.get(first.lower().rstrip("."), first)) if len(first) <= _LONGEST else None) if first else None
    if named and all(text in _CLASSIFIERS for text in named):
        # several classifiers leave open whether both hold or one may be chosen; the free text may tell
        return said if said and len(named) > 1 else all_of([Licence(_CLASSIFIERS[text]) for text in named])
    if said:
        return said
    if named:
        return all_of([Licence(_CLASSIFIERS[text]) if text in _CLASSIFIERS else _other(text) for text in named])
    return _other(first[:_LONGEST]) if first and first.upper() != "UNKNOWN" else None


def all_of(licences: Iterable[Licence | None]) -> Licence | None:
    """Everything that these say holds at once; each is named once, in the order of their names."""
    return _joined([licence for licence in licences if licence], "AND")


def _joined(licences: list[Licence], word: str) -> Licence | None:
    refs = {name: text for licence in licences for name, text in licence.refs.items()}
    other = "OR" if word == "AND" else "AND"
    parts = {
        f"({licence.expression})" if len(licences) > 1 and f" {other} " in licence.expression else licence.expression
        for licence in licences
    }
    if word == "AND":
        # what one of them says already needs no second word
        parts = {part for whole in parts for part in (whole.split(" AND ") if "(" not in whole else [whole])}
    if not parts:
        return None
    return Licence(f" {word} ".join(sorted(parts, key=str.lower)), refs)


def _valid(text: str) -> Licence | None:
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        return Licence(canonicalize_license_expression(text))
    except (InvalidLicenseExpression, ValueError):
        return None


def _other(text: str) -> Licence:
    words = re.sub(r"\s+", " ", text).strip()
    name = "LicenseRef-" + (re.sub(r"[^A-Za-z0-9.-]+", "-", words).strip("-.")[:_LONGEST] or "unnamed")
    return Licence(name, {name: words})
