"""Licences: Debian's short names and copyright files, the metadata of Python distributions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression

from strix_finetune.supply.licences import all_of, copyright_file, distribution, short_name
from tests.unit.supply_images import COPYRIGHT


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("GPL-2+", "GPL-2.0-or-later"),
        ("GPL-2", "GPL-2.0-only"),
        ("GPLv3+", "GPL-3.0-or-later"),
        ("LGPL-2.1+", "LGPL-2.1-or-later"),
        ("AGPL-3", "AGPL-3.0-only"),
        ("GFDL-NIV-1.3+", "GFDL-1.3-no-invariants-or-later"),
        ("Expat", "MIT"),
        ("BSD-3-clause", "BSD-3-Clause"),
        ("GPL-1+ or Artistic", "Artistic-1.0-Perl OR GPL-1.0-or-later"),
        ("GPL-2+ or Artistic, and BSD-2-clause", "(Artistic-1.0-Perl OR GPL-2.0-or-later) AND BSD-2-Clause"),
        ("BSD-2-clause and Expat or GPL-2", "(BSD-2-Clause AND MIT) OR GPL-2.0-only"),
        ("GPL-3+ with Bison exception", "GPL-3.0-or-later WITH Bison-exception-2.2"),
        ("GPL-2 with Linux-syscall-note exception", "GPL-2.0-only WITH Linux-syscall-note"),
    ],
)
def test_short_names_of_debian(name: str, expression: str) -> None:
    assert short_name(name).expression == expression
    assert canonicalize_license_expression(expression) == expression


@pytest.mark.parametrize("name", ["public-domain", "GPL", "GPL-2+ with OpenSSL exception", "GPL and/or LGPL", "LGPL-9"])
def test_what_is_not_known_is_not_guessed(name: str) -> None:
    found = short_name(name)
    assert found.refs == {found.expression: name}
    canonicalize_license_expression(found.expression)


def test_a_copyright_file_names_what_is_shipped() -> None:
    found = copyright_file(COPYRIGHT)
    assert found
    # the packaging's own AGPL is not in the package
    assert found.expression == ("(BSD-3-Clause OR GPL-2.0-or-later WITH Bison-exception-2.2) AND GPL-3.0-or-later")
    assert copyright_file("This package was debianized by somebody.\nLicense: GPL-2\n") is None
    assert copyright_file("Format: x\n\nFiles: debian/*\nLicense: MIT\n") is None
    assert copyright_file("Format: x\nLicense: MIT\n\n# a comment\nFiles: *\nCopyright: me\n") == short_name("MIT")


@pytest.mark.parametrize(
    ("expression", "classifiers", "free", "found"),
    [
        ("mit", ["License :: OSI Approved :: BSD License"], "GPL", "MIT"),
        ("", ["License :: OSI Approved :: Apache Software License"], "", "Apache-2.0"),
        ("", ["License :: OSI Approved", "License :: OSI Approved :: MIT License"], "", "MIT"),
        ("", [], "Apache License 2.0", "Apache-2.0"),
        ("", ["License :: OSI Approved :: BSD License"], "BSD-3-Clause", "BSD-3-Clause"),
        ("", ["License :: OSI Approved :: BSD License"], "", "LicenseRef-BSD-License"),
        (
            "",
            ["License :: OSI Approved :: MIT License", "License :: OSI Approved :: Apache Software License"],
            "MIT OR Apache-2.0",
            "MIT OR Apache-2.0",
        ),
        ("", [], "Whatever it may be", "LicenseRef-Whatever-it-may-be"),
        ("not an expression", [], "", "LicenseRef-not-an-expression"),
    ],
)
def test_python_metadata(expression: str, classifiers: list[str], free: str, found: str) -> None:
    licence = distribution(expression, classifiers, free)
    assert licence
    assert licence.expression == found


def test_no_licence_is_none() -> None:
    assert distribution("", ["Programming Language :: Python"], "UNKNOWN") is None
    assert distribution("", [], "") is None
    assert all_of([None]) is None


@given(st.text(max_size=80))
def test_any_text_gives_a_valid_expression(text: str) -> None:
    for found in (short_name(text), distribution(text, [], ""), distribution("", [], text)):
        if found:
            canonicalize_license_expression(found.expression)
