"""What the signed lists of an archive say of its indexes, and what apt complains about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strix_finetune.download import Gone
from strix_finetune.errors import FetchFailed, StrixError
from strix_finetune.schema import Apt
from strix_finetune.vendor import aptmirror
from strix_finetune.vendor.manifest import Entry
from strix_finetune.vendor.solve import Deb

RELEASE = """\
-----BEGIN PGP SIGNED MESSAGE-----
Hash: SHA256

Origin: Debian
Suite: unstable
Codename: sid
Date: Fri, 30 Oct 2026 08:08:01 UTC
Acquire-By-Hash: yes
No-Support-for-Architecture-all: Packages
Architectures: all amd64 arm64
MD5Sum:
 0123456789abcdef0123456789abcdef 10 main/binary-amd64/Packages.xz
SHA256:
 {a} 30 main/binary-all/Packages.xz
 {a} 50 main/binary-amd64/Packages
 {b} 20 main/binary-amd64/Packages.gz
 {c} 10 main/binary-amd64/Packages.xz
 {a}  7 main/source/Sources.xz
-----BEGIN PGP SIGNATURE-----
""".format(a="a" * 64, b="b" * 64, c="c" * 64)
APT = Apt(suite="sid")


def suites(folder: Path, text: str = RELEASE, apt: Apt = APT) -> tuple[aptmirror.Suite, ...]:
    path = folder / "mirror.example_debian_dists_sid_InRelease"
    path.write_text(text)
    state: Any = SimpleNamespace(release_files=lambda suite: (path,))
    return aptmirror.read_suites(state, apt)


def test_the_smallest_index_of_each_component_by_the_name_that_it_keeps(tmp_path: Path) -> None:
    [suite] = suites(tmp_path)
    digest = "c" * 64
    steady = f"main/binary-amd64/by-hash/SHA256/{digest}"
    assert suite.indexes == (("main/binary-amd64/Packages.xz", digest, 10, steady),)
    assert suite.signed == {"InRelease": RELEASE.encode()}
    assert suite.date == "2026-10-30T08:08:01Z"


def test_without_such_names_and_with_packages_of_no_architecture(tmp_path: Path) -> None:
    text = RELEASE.replace("Acquire-By-Hash: yes\n", "").replace("No-Support-for-Architecture-all: Packages\n", "")
    [suite] = suites(tmp_path, text)
    assert [(path, steady) for path, _, _, steady in suite.indexes] == [
        ("main/binary-amd64/Packages.xz", "main/binary-amd64/Packages.xz"),
        ("main/binary-all/Packages.xz", "main/binary-all/Packages.xz"),
    ]


def test_a_component_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="Debian's suite 'sid' lists no contrib/binary-amd64/Packages"):
        suites(tmp_path, apt=Apt(suite="sid", components=["contrib"]))


def test_each_state_of_the_archive_has_a_folder_of_its_own(tmp_path: Path) -> None:
    first = suites(tmp_path)
    name = aptmirror.folder_name(first)
    assert name.startswith("apt/sid-20261030T080801Z-")
    assert aptmirror.folder_name(suites(tmp_path)) == name
    assert aptmirror.folder_name([replace(first[0], signed={"InRelease": b"other"})]) != name


def test_entries_say_where_the_archive_has_them(tmp_path: Path) -> None:
    deb = Deb("bash", "5", "amd64", "pool/main/b/bash/bash_5_amd64.deb", 9, "d" * 64)
    index, package = aptmirror.entries("http://mirror.example/debian", "apt/sid-1", suites(tmp_path), [deb])
    assert index.path == "apt/sid-1/dists/sid/main/binary-amd64/Packages.xz"
    assert index.source.startswith("http://mirror.example/debian/dists/sid/main/binary-amd64/by-hash/SHA256/cc")
    assert package == Entry(
        "apt/sid-1/pool/main/b/bash/bash_5_amd64.deb",
        "d" * 64,
        9,
        "http://mirror.example/debian/pool/main/b/bash/bash_5_amd64.deb",
    )


@pytest.mark.parametrize(
    ("said", "kind", "sentence"),
    [
        ("E: Failed to fetch http://m/x.deb  404  Not Found [IP: 1.2.3.4 80]", Gone, "m no longer serves a.deb"),
        ("E: Failed to fetch http://m/x.deb  Hash Sum mismatch", Gone, "m serves another a.deb than its signed index"),
        ("E: Failed to fetch  Could not resolve 'm'", FetchFailed, "could not be downloaded (Could not resolve 'm')"),
        ("E: Write error - write (28: No space left on device)", StrixError, "the disk is full, a.deb does not fit"),
        ("apt-helper ended with 100", FetchFailed, "a.deb could not be downloaded (apt-helper ended with 100)"),
    ],
)
def test_what_apt_says_is_one_sentence(said: str, kind: type[StrixError], sentence: str) -> None:
    error = aptmirror._explain(f"Get:1 x\n{said}\n", [Entry("apt/sid-1/pool/a.deb", "", 1)], "m")
    assert isinstance(error, kind)
    assert sentence in str(error)
    assert "\n" not in str(error)
