"""Debian's mirror among a host's sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strix_finetune.hostmirror import host_mirror

SOURCES = {
    "security": "http://security.mirror.example/debian-security/",
    "tools": "https://tools.example/apt/",
    "main": "http://mirror.example/debian/",
    "second": "http://second.example/debian/",
}


def ask(root: Path, sources: dict[str, str] | None = None) -> str:
    """Ask with a stand-in for apt that has these sources (prefix of the lists → URL)."""

    def run(command: Sequence[str]) -> str:
        assert command[:3] == ("apt-get", "indextargets", "--no-release-info")
        lines = [
            f"{url}|main/binary-{arch}/Packages|/nonexistent/{prefix}_main_binary-{arch}_Packages"
            for prefix, url in (SOURCES if sources is None else sources).items()
            for arch in ("amd64", "all")
        ]
        return "\n".join(lines)

    return host_mirror(run, root)


def release(root: Path, prefix: str, origin: str, label: str = "", name: str = "InRelease") -> None:
    folder = root / "var/lib/apt/lists"
    folder.mkdir(parents=True, exist_ok=True)
    head = f"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: {origin}\nLabel: {label or origin}\n"
    (folder / f"{prefix}_{name}").write_text(f"{head}Date: x\nMD5Sum:\n 0 0 x\nOrigin: Debian\nLabel: Debian\n")


def os_release(root: Path, name: str) -> None:
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/os-release").write_text(f'PRETTY_NAME="x"\nID={name}\n')


def test_the_first_source_that_is_debian_itself(tmp_path: Path) -> None:
    release(tmp_path, "security", "Debian", "Debian-Security")
    release(tmp_path, "tools", "Example")
    release(tmp_path, "main", "Debian", name="Release")
    release(tmp_path, "second", "Debian")
    assert ask(tmp_path) == "http://mirror.example/debian/"


def test_what_others_sign_is_not_debian(tmp_path: Path) -> None:
    os_release(tmp_path, "ubuntu")
    release(tmp_path, "main", "Ubuntu")
    assert ask(tmp_path) == ""
    os_release(tmp_path, "debian")
    assert ask(tmp_path) == ""


def test_a_debian_that_has_fetched_no_lists_yet(tmp_path: Path) -> None:
    assert ask(tmp_path) == ""
    os_release(tmp_path, "debian")
    assert ask(tmp_path) == "http://mirror.example/debian/"
    assert ask(tmp_path, {"security": SOURCES["security"], "tools": SOURCES["tools"]}) == ""


def test_a_source_that_no_build_step_reaches(tmp_path: Path) -> None:
    release(tmp_path, "main", "Debian")
    for url in ("cdrom://[Debian]/", "file:///srv/debian/", "tor+http://x.onion/debian/", "mirror+file:/nowhere"):
        assert ask(tmp_path, {"main": url}) == ""


def test_a_list_of_mirrors_is_followed(tmp_path: Path) -> None:
    release(tmp_path, "main", "Debian")
    mirrors = tmp_path / "mirrors.list"
    mirrors.write_text("# ours\nhttps://near.example/debian/\tpriority:1\nhttps://far.example/debian/\n")
    assert ask(tmp_path, {"main": f"mirror+file:{mirrors}/"}) == "https://near.example/debian/"


def test_a_host_without_apt(tmp_path: Path) -> None:
    assert host_mirror(lambda command: "", tmp_path) == ""
