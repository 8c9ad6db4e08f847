"""Where images lie in a registry: its host, the path of the repository, and the addresses below it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strix_finetune import names
from strix_finetune.errors import InputError
from strix_finetune.netconf import is_loopback

# what a registry without a path gets
DEFAULT_PATH = "strix-finetune"
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_IMAGE = re.compile(rf"({_HOST.pattern})/({_PATH.pattern})(?::({_TAG.pattern}))?")


@dataclass(frozen=True, slots=True)
class Repository:
    """`host` with its port; `path` without slashes at its ends; `plain`: not encrypted, as somebody said."""

    host: str
    path: str
    plain: bool = False

    @property
    def loopback(self) -> bool:
        """Whether it lies on this machine: only there is plain HTTP spoken unasked, as the engines do."""
        return is_loopback(self.host)

    @property
    def root(self) -> str:
        """The address of the API itself."""
        # the registry of docker.io answers under another name
        host = "registry-1.docker.io" if self.host in ("docker.io", "index.docker.io") else self.host
        return f"{'http' if self.loopback or self.plain else 'https'}://{host}"

    def url(self, rest: str) -> str:
        """The address of something in this repository."""
        return f"{self.root}/v2/{self.path}/{rest}"

    def at(self, reference: str) -> str:
        """The full name of a tag or digest in it."""
        return f"{self}{'@' if reference.startswith('sha256:') else ':'}{reference}"

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"


def parse(text: str) -> Repository:
    """`HOST[:PORT][/PATH]`, or the same behind `http://` for a registry of one's own network that has no certificate.

    Raises InputError for a name without a host, with a tag, or that no registry allows.
    """
    plain = text.startswith("http://")
    host, _, path = re.sub(r"^(oci|https?)://", "", text).rstrip("/").partition("/")
    if not _HOST.fullmatch(host) or not names.is_host(host):
        raise InputError(f"'{text}' does not begin with the host of a registry", cure="write HOST/NAME or HOST:PORT")
    path = path or DEFAULT_PATH
    if not _PATH.fullmatch(path):
        tagged = ":" in path or "@" in path
        cure = "leave the tag out: it follows from target and key" if tagged else "use small letters, digits and . _ -"
        raise InputError(f"'{text}' is not the name of a repository", cure=cure)
    return Repository(host, path, plain)


def of_image(name: str) -> tuple[Repository, str]:
    """The repository and the tag of an image, which is "latest" where its name has none.

    Raises InputError for a short name: which registry it means depends on the host.
    """
    found = _IMAGE.fullmatch(name)
    if found is None or not names.is_host(found[1]):
        raise InputError(f"'{name}' is not a full image name", cure="write it as host/name:tag")
    return Repository(found[1], found[2]), found[3] or "latest"
