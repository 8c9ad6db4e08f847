"""Versions of AMD's wheels: which ROCm, which is newer, which is a preview."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from strix_finetune.resolve import versions


@pytest.mark.parametrize(
    ("project", "version", "rocm"),
    [
        ("torch", "2.13.0+rocm10.0.0", "10.0.0"),
        ("torch", "2.11.0+rocm7.2", "7.2"),
        ("torch", "2.13.0a0+rocm7.14.0a20260612", "7.14.0a20260612"),
        ("torch", "2.9.1+rocm7.2.0.lw.git7e1940d4", "7.2.0"),
        ("triton", "3.8.0+git4cff872c.rocm10.0.0", "10.0.0"),
        ("rocm", "10.0.0", "10.0.0"),
        ("rocm-sdk-device-gfx1151", "10.1.0a20260823", "10.1.0a20260823"),
        ("rocm-profiler", "10.0.0", "10.0.0"),
        ("rocm-bootstrap", "0.1.0", None),
        ("torch", "2.13.0", None),
        ("torch", "2.13.0+cpu", None),
    ],
)
def test_the_rocm_that_a_file_is_for(project: str, version: str, rocm: str | None) -> None:
    assert versions.rocm_of(project, Version(version)) == (Version(rocm) if rocm else None)


def test_the_order_of_versions() -> None:
    oldest_first = [
        "2.12.0+rocm10.1.0",
        "2.13.0a0+rocm10.1.0",
        "2.13.0",
        "2.13.0+cpu",
        "2.13.0+rocm7.0",
        "2.13.0+rocm7.14.0",
        "2.13.0+rocm10.0",
        "2.13.0+rocm10.1.0a20260823",
        "2.13.0+rocm10.1.0a20260901",
        "2.13.0+rocm10.1.0rc1",
        "2.13.0+rocm10.1.0",
        "2.13.0+rocm10.1.0.lw.git9",
        "2.13.0+rocm10.1.0.lw.git10",
        "2.13.1+rocm7.0",
    ]
    mixed = random.Random(1).sample(oldest_first, len(oldest_first))
    assert sorted(mixed, key=lambda text: versions.order(Version(text))) == oldest_first


_rocm = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 9))


@given(_rocm, _rocm, st.sampled_from(["2.13.0+rocm{}", "3.8.0+git4cff872c.rocm{}"]))
def test_a_newer_rocm_is_newer(first: tuple[int, ...], second: tuple[int, ...], form: str) -> None:
    def made(numbers: tuple[int, ...]) -> versions.Order:
        return versions.order(Version(form.format(".".join(map(str, numbers)))))

    assert (made(first) < made(second)) == (first < second)


_local = st.from_regex(r"[a-z0-9]{1,8}(\.[a-z0-9]{1,8}){0,3}", fullmatch=True)


@given(st.lists(_local, min_size=2, max_size=6))
def test_every_local_version_has_a_place(locals_: list[str]) -> None:
    keys = [versions.order(Version(f"1.0+{local}")) for local in locals_]
    assert sorted(keys, reverse=True) == sorted(keys)[::-1]
    assert all(key > versions.order(Version("1.0")) for key in keys)


def test_previews() -> None:
    assert versions.is_preview("torch", Version("2.13.0+rocm10.1.0a20260823"))
    assert versions.is_preview("torch", Version("2.13.0a0+rocm10.0.0"))
    assert versions.is_preview("rocm", Version("10.1.0rc1"))
    assert not versions.is_preview("torch", Version("2.13.0+rocm10.0.0"))
    assert versions.wants_previews("torch", SpecifierSet("==2.13.0+rocm10.1.0a20260823"))
    assert versions.wants_previews("rocm", SpecifierSet(">=10.1.0a0"))
    assert not versions.wants_previews("torch", SpecifierSet(">=2.11,!=2.12.*,===odd"))


def test_the_date_of_a_nightly() -> None:
    assert versions.nightly(Version("10.1.0a20260823")) == "20260823"
    assert versions.nightly(Version("2.13.0a0+rocm7.14.0a20260612")) == "20260612"
    assert versions.nightly(Version("10.1.0.dev20260823")) == "20260823"
    assert versions.nightly(Version("2.13.0+rocm10.0.0")) == ""


def test_pins() -> None:
    assert versions.is_pinned(SpecifierSet("==2.13.0+rocm10.0.0"))
    assert versions.is_pinned(SpecifierSet("===2.13.0"))
    assert not versions.is_pinned(SpecifierSet("==2.13.*,>=2"))
    assert not versions.is_pinned(SpecifierSet(""))
