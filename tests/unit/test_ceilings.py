"""Debian's versions, read as the versions of what they package. What ceilings do with them: test_lock.py."""

from __future__ import annotations

import pytest

from strix_finetune.ceilings import upstream


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.14.1+debian-3", "2.14.1"),
        ("2.14.1+dfsg-1", "2.14.1"),
        ("2.14.1+dfsg1~bpo13+1-1", "2.14.1"),
        ("1:2.14.1-1", "2.14.1"),
        ("2.15.0~rc1-1", "2.15.0rc1"),
        ("2.15.0~rc1+dfsg-1~exp1", "2.15.0rc1"),
        ("3.14.8-1", "3.14.8"),
        ("0.3.34+ds-2", "0.3.34"),
        ("710+really668-1", "710"),
        ("7.2.4", "7.2.4"),
        ("1.9.17p2-9", "1.9.17"),
        ("2.13.0+rocm7.2-1", "2.13.0+rocm7.2"),
        ("2.0-1-2", "2.0.post1"),
    ],
)
def test_the_upstream_part_of_a_debian_version(version: str, expected: str) -> None:
    assert upstream(version) == expected
