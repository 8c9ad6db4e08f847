"""Reading what apt says."""

from __future__ import annotations

from pathlib import Path

import pytest

from strix_finetune import debian
from strix_finetune.errors import FetchFailed, InputError
from strix_finetune.lockmodel import AptPackage
from strix_finetune.resolve.apt import explain, iso_date, parse_policy, parse_show, release_fields
from strix_finetune.schema import Apt

SID = Apt(suite="sid", extra_suites=["experimental"])
MIRROR = "http://mirror.example/debian"

POLICY = """\
python3-torch:
  Installed: (none)
  Candidate: 2.14.1+dfsg-1
  Version table:
     2.15.0~rc1-1~exp1 1
          1 http://mirror.example/debian experimental/main amd64 Packages
     2.14.1+dfsg-1 500
        500 http://mirror.example/debian sid/main amd64 Packages
awk:
  Installed: (none)
  Candidate: (none)
  Version table:
libstdc++6:
  Installed: (none)
  Candidate: 16.2.0-1
"""

SHOW = """\
Package: python3-torch
Source: pytorch
Version: 2.15.0~rc1-1~exp1
Installed-Size: 53000
Filename: pool/main/p/pytorch/python3-torch_2.15.0~rc1-1~exp1_amd64.deb
Size: 13100000
Description-md5: 00000000000000000000000000000000
SHA256: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa

Package: python3-torch
Version: 2.14.1+dfsg-1
Size: 13013888
SHA256: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
Description: Tensors
 Version: not this
 Size: nor this

Package: incomplete
Version: 1

"""


def test_the_candidate_is_the_one_that_pins_choose() -> None:
    assert parse_policy(POLICY) == {"python3-torch": "2.14.1+dfsg-1", "libstdc++6": "16.2.0-1"}
    assert parse_policy("") == {}


def test_every_version_is_read() -> None:
    assert parse_show(SHOW) == {
        "python3-torch": {
            "2.15.0~rc1-1~exp1": AptPackage("2.15.0~rc1-1~exp1", 13100000, "a" * 64),
            "2.14.1+dfsg-1": AptPackage("2.14.1+dfsg-1", 13013888, "b" * 64),
        }
    }


def test_the_head_of_a_signed_release_file(tmp_path: Path) -> None:
    path = tmp_path / "InRelease"
    path.write_text(
        "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: Debian\nSuite: unstable\nCodename: sid\n"
        "Date: Fri, 30 Oct 2026 08:08:01 UTC\nMD5Sum:\n 58bc 1 contrib/Contents\nSuite: of a list\n"
    )
    fields = release_fields(path)
    assert fields["Suite"] == "unstable"
    assert fields["Codename"] == "sid"
    assert iso_date(fields["Date"]) == "2026-10-30T08:08:01Z"


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("Fri, 30 Oct 2026 08:08:01 +0000", "2026-10-30T08:08:01Z"),
        ("Fri, 30 Oct 2026 10:08:01 +0200", "2026-10-30T08:08:01Z"),
        ("Sat, 1 Aug 2026  2:03:04 GMT", "2026-08-01T02:03:04Z"),
    ],
)
def test_dates_are_utc(text: str, date: str) -> None:
    assert iso_date(text) == date


def test_a_date_that_is_none() -> None:
    with pytest.raises(FetchFailed, match="a Date that is none: 'yesterday'"):
        iso_date("yesterday")


@pytest.mark.parametrize(
    ("stderr", "says"),
    [
        (
            (
                f"W: GPG error: {MIRROR} sid InRelease: The following signatures couldn't be verified because the"
                " public key is not available: NO_PUBKEY 6ED0E7B82643E131\n"
                f"E: The repository '{MIRROR} sid InRelease' is not signed.\n"
            ),
            (
                "the signature of Debian's suite 'sid' cannot be verified with the keys of this host; install a newer"
                " debian-archive-keyring, or use a mirror that is Debian's"
            ),
        ),
        (
            (
                f"E: Release file for {MIRROR}/dists/experimental/InRelease is expired (invalid since 23d 17h 17min"
                " 53s). Updates for this repository will not be applied.\n"
            ),
            (
                f"{MIRROR} has a Release file of 'experimental' that is expired (invalid since 23d 17h 17min 53s);"
                " check this host's clock, or use a mirror that is up to date"
            ),
        ),
        (
            (
                f"E: Release file for {MIRROR}/dists/sid/InRelease is not valid yet (invalid for another 2h 3min 4s)."
                " Updates for this repository will not be applied.\n"
            ),
            "the Release file of 'sid' is not valid yet (invalid for another 2h 3min 4s); set this host's clock",
        ),
        (
            f"E: The repository '{MIRROR} sid Release' does not have a Release file.\n",
            (
                f"{MIRROR} does not serve the suite 'sid'; correct [apt] in the channel, or name another mirror in"
                " STRIX_DEBIAN_MIRROR"
            ),
        ),
        (
            (
                "E: Failed to fetch http://me:pw@mirror.example/debian/dists/sid/InRelease  Could not resolve"
                " 'mirror.example'\nE: Some index files failed to download.\n"
            ),
            f"{MIRROR} cannot be reached (Could not resolve 'mirror.example'); check the network and the proxy",
        ),
        ("E: Write error - write (28: No space left on device)\n", "the disk of the cache folder is full; make room"),
        (
            "E: The method driver /usr/lib/apt/methods/tor could not be found.\n",
            "apt cannot read the indexes of 'sid': The method driver /usr/lib/apt/methods/tor could not be found",
        ),
    ],
)
def test_what_apt_complains_about_in_one_sentence(stderr: str, says: str) -> None:
    fault = str(explain(stderr, SID, MIRROR))
    assert fault.startswith(says)
    assert "\n" not in fault
    assert "pw" not in fault


def test_the_keys_of_the_archive(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="install the package debian-archive-keyring"):
        debian.keyring(tmp_path)
    (tmp_path / "debian-archive-keyring.pgp").touch()
    assert debian.keyring(tmp_path).name == "debian-archive-keyring.pgp"
