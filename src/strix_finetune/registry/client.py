"""A repository of a registry, by the OCI distribution API: https://github.com/opencontainers/distribution-spec."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

from strix_finetune.errors import Problem
from strix_finetune.netconf import NetSettings
from strix_finetune.oci import descriptor
from strix_finetune.oci.descriptor import Content, Descriptor, digest_of
from strix_finetune.registry import downloads, login, uploads
from strix_finetune.registry.faults import RegistryError, Untrusted
from strix_finetune.registry.http import Http
from strix_finetune.registry.repository import Repository

ACCEPT = ", ".join(descriptor.MANIFESTS)
_LARGEST = 8 << 20
_PAGES = 1000

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Served:
    """A manifest or index as the registry has it. Its digest is computed from the bytes that came."""

    media_type: str
    content: bytes

    @property
    def digest(self) -> str:
        return digest_of(self.content)

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor.of(self.media_type, self.content)


class Registry:
    """One repository. Every method raises RegistryError (or a subtype) with one sentence."""

    def __init__(self, http: Http) -> None:
        self.http = http
        self.repository = http.repository

    def manifest(self, reference: str) -> Served | None:
        """What a tag or digest names, or None. Raises Untrusted for other bytes than those of the digest."""
        doing = f"read {self.repository.at(reference)}"
        answer = self.http.ask(
            "GET",
            self.repository.url(f"manifests/{reference}"),
            doing=doing,
            ok=(200, 404),
            headers={"Accept": ACCEPT},
            stream=True,
        )
        with answer:
            if answer.status_code == 404:
                return None
            body = downloads.whole(answer, doing, _LARGEST)
        told = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        served = Served(descriptor.manifest_type(body, told), body)
        digest = answer.headers.get("Docker-Content-Digest") or served.digest
        wanted = reference if descriptor.is_digest(reference) else digest
        if served.digest != wanted:
            raise Untrusted(
                Problem(
                    f"{self.repository.at(reference)} is not what its digest says",
                    cure="do not use this registry before somebody has found out why",
                )
            )
        return served

    def put_manifest(self, reference: str, content: bytes, media_type: str) -> Descriptor:
        """Point a tag (or digest) at a manifest and read it back. Raises RegistryError where another one is served."""
        name = self.repository.at(reference)
        url = self.repository.url(f"manifests/{reference}")
        self.http.ask(
            "PUT",
            url,
            doing=f"push {name}",
            ok=(200, 201, 202),
            headers={"Content-Type": media_type},
            body=content,
            write=True,
        ).close()
        served = self.manifest(reference)
        wanted = digest_of(content)
        if served is None or served.digest != wanted:
            found = served.digest if served else "nothing"
            raise RegistryError(
                Problem(
                    f"{name} was pushed as {wanted}, but the registry serves {found}",
                    cure="someone else pushed the same name; push again",
                )
            )
        return Descriptor(media_type, wanted, len(content))

    def has(self, digest: str) -> bool:
        """Whether the registry holds a blob."""
        answer = self.http.ask(
            "HEAD",
            self.repository.url(f"blobs/{digest}"),
            doing=f"push to {self.repository}",
            ok=(200, 404),
            write=True,
        )
        answer.close()
        return answer.status_code == 200

    def upload(self, content: Content, progress: Progress, *, mount_from: str = "") -> uploads.How:
        """Make sure that a blob is there, and say how it came. `mount_from`: the path of a repository that has it."""
        if self.has(content.descriptor.digest):
            return "present"
        return uploads.Upload(self.http, content, progress).run(mount_from)

    def download(self, wanted: Descriptor, path: Path, progress: Progress) -> None:
        """Fetch a blob into a file, which exists only once it is whole and right; a cut one is gone on with.

        Who wants a file that another process or thread is fetching waits for that. Raises WorkError beside the usual
        for what the disk refuses.
        """
        downloads.Download(self.http, wanted, path, progress).run()

    def small(self, wanted: Descriptor) -> bytes:
        """A small blob, such as a configuration, checked."""
        doing = f"read from {self.repository}"
        url = self.repository.url(f"blobs/{wanted.digest}")
        if wanted.size > _LARGEST:
            raise Untrusted(f"{self.repository.at(wanted.digest)} is too large for what it is")
        with self.http.ask("GET", url, doing=doing, stream=True) as answer:
            body = downloads.whole(answer, doing, _LARGEST)
        if digest_of(body) != wanted.digest:
            raise Untrusted(f"{self.repository.at(wanted.digest)} is not what its digest says")
        return body

    def tags(self) -> Iterator[str]:
        """Every tag of the repository; none where it does not exist."""
        url = self.repository.url("tags/list?n=1000")
        for _ in range(_PAGES):
            with self.http.ask("GET", url, doing=f"list the tags of {self.repository}", ok=(200, 404)) as answer:
                if answer.status_code == 404:
                    return
                try:
                    listed = answer.json().get("tags") or []
                except (ValueError, AttributeError, RecursionError):
                    raise RegistryError(f"the tags of {self.repository} cannot be read") from None
                yield from (str(tag) for tag in listed)
                following = answer.links.get("next", {}).get("url")
            if not following:
                return
            url = urljoin(url, following)

    def delete(self, digest: str) -> bool:
        """Remove a manifest; False where there was none. Raises RegistryError where the registry does not delete."""
        url = self.repository.url(f"manifests/{digest}")
        doing = f"remove {self.repository.at(digest)}"
        answer = self.http.ask("DELETE", url, doing=doing, ok=(200, 202, 404), write=True, scopes=(self._removal,))
        answer.close()
        return answer.status_code != 404

    @property
    def _removal(self) -> str:
        return f"repository:{self.repository.path}:delete"


def connect(
    repository: Repository,
    settings: NetSettings,
    env: Mapping[str, str],
    *,
    say: Callable[[str], None] = lambda text: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Registry:
    """A repository with the login that the engines' own files hold; nothing is asked yet."""
    return Registry(Http(repository, settings, login.find(repository, env), sleep=sleep, say=say))
