"""Which mirror of Debian this host's own apt uses: its sources, and what their Release files say they are.

apt is asked for its sources alone, which takes 0.03 s; asked about its indexes as well it reads them all first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

Run = Callable[[Sequence[str]], str]

_NO_LISTS = "/nonexistent"
_COMMAND = (
    "apt-get",
    "indextargets",
    "--no-release-info",
    "--format",
    "$(REPO_URI)|$(METAKEY)|$(FILENAME)",
    "-o",
    f"Dir::State::lists={_NO_LISTS}",
    "Created-By: Packages",
)


def host_mirror(run: Run, root: Path = Path("/")) -> str:
    """The URL (it ends before /dists) of the first source that is Debian itself, or an empty string.

    `run` runs a program and returns what it prints; `root` is where /etc and /var lie.
    """
    sources = list(_sources(run(_COMMAND)))
    lists = root / "var/lib/apt/lists"
    releases = [(url, lists / f"{prefix}{name}") for url, prefix in sources for name in ("InRelease", "Release")]
    for url, release in releases:
        if _is_debian(release) and (found := _reachable(url)):
            return found
    if any(release.is_file() for _, release in releases) or not _is_debian_host(root):
        return ""
    # a Debian that has fetched no lists yet: what its sources call themselves must do
    return next((found for url, _ in sources if url.rstrip("/").endswith("/debian") and (found := _reachable(url))), "")


def _sources(text: str) -> Iterator[tuple[str, str]]:
    """(URL of the repository, how the names of its lists begin) of each source, in order."""
    seen = set()
    for line in text.splitlines():
        url, key, name = (*line.split("|"), "", "")[:3]
        prefix = name.rsplit("/", 1)[-1].removesuffix(key.replace("/", "_"))
        if prefix and (url, prefix) not in seen:
            seen.add((url, prefix))
            yield url, prefix


def _is_debian(release: Path) -> bool:
    """Whether a Release file is that of Debian's main archive, and not of its security one or of somebody else's."""
    found = set()
    try:
        with release.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if line.startswith(("MD5Sum:", "SHA256:")):
                    break
                found.add(line.strip())
    except OSError:
        return False
    return {"Origin: Debian", "Label: Debian"} <= found


def _is_debian_host(root: Path) -> bool:
    try:
        return "ID=debian" in (root / "etc/os-release").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False


def _reachable(url: str) -> str:
    """The URL if a build step can use it; of a list of mirrors the first one."""
    if url.startswith("mirror+file:"):
        url = _first_of_list(Path(urlsplit(url).path.rstrip("/")))
    return url if url.startswith(("http://", "https://")) else ""


def _first_of_list(path: Path) -> str:
    """The first mirror of a list file of apt's `mirror+file` method: the URL, then perhaps a tab and options."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    words = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    return next((word for word in words if word.startswith(("http://", "https://"))), "")
