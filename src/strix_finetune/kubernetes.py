"""A training job for Kubernetes: a TrainJob of Kubeflow Trainer 2, or a JobSet. Pure but for its template and files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from strix_finetune.caches import CACHES, ENVIRONMENT, TOKEN
from strix_finetune.emit import IMAGE, MARK, Emitted, rendered, signed
from strix_finetune.errors import InputError, Problem
from strix_finetune.jobs import PORT, Work

KINDS = ("trainjob", "jobset")
# inside the image: what the job brings along, and what it leaves behind
JOB = "/job"
WORKSPACE = "/workspace"
# the API server takes objects of 1 MiB; some of that is names
_MOST_BYTES = 1_000_000
# the controllers make "NAME-node-0-123-abcde" of it, which is a label and a host's name of at most 63 letters
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"[1-9]\d*(?:Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")
_LABEL = re.compile(
    r"(?:[a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?=(?:[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?)?"
)
_RESOURCE = re.compile(r"[a-z0-9][a-z0-9.-]*/[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?")
# what a literal block of YAML can hold, and is read back as it is
_LITERAL = re.compile(
    r"(?=[^ \n])[\t\n\x20-\x7e\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*[^\n]\n"
)


@dataclass(frozen=True, slots=True)
class File:
    """A file that goes along, as the ConfigMap has it. `path`: below /job; `field`: data or binaryData; `literal`: the
    text as a block, indented by nothing, or empty where it must be a string."""

    key: str
    path: str
    field: str
    text: str
    literal: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """`processes`: of a node, one a GPU. `project`: what lies in it goes along when the recipe names it. `groups`: that
    own the device files on the nodes. `claim`: an existing one, else one of `storage` is made. `secret`: holds the
    hub's token. `labels`: LABEL=VALUE that a node must have. `adapter`: the resource of an RDMA device, empty for TCP.
    `shm`: GiB. Raises InputError for what no cluster could run.
    """

    image: str
    work: Work
    project: Path
    kind: str = "trainjob"
    name: str = "strix-finetune"
    gpu: bool = True
    nodes: int = 1
    processes: int = 1
    user: str = "1000:1000"
    groups: tuple[int, ...] = ()
    shm: int = 8
    claim: str = ""
    storage: str = "100Gi"
    storage_class: str = ""
    secret: str = ""
    labels: tuple[str, ...] = ()
    adapter: str = ""
    restarts: int = 3
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not IMAGE.fullmatch(self.image):
            raise InputError(f"'{self.image}' is no name of an image", cure="write registry/name:tag")
        if self.image.startswith("localhost/"):
            raise InputError(
                f"no cluster can pull {self.image}",
                cure="'strix-finetune push --to HOST/NAME' it, and say --image HOST/NAME:TAG",
            )
        for said, word, allowed, cure in self._words():
            if word and not allowed.fullmatch(word):
                raise InputError(f"'{word}' is no {said}", cure=cure)
        if self.gpu and not self.groups:
            raise InputError(
                "the groups that may use the GPU on the nodes are not known here",
                cure="give --group for each of 'stat -c %g /dev/kfd /dev/dri/renderD128' there",
            )
        if not self.work.trains:
            raise InputError("a cluster runs a recipe and nothing else", cure="write -- train recipe.yaml")

    def _words(self) -> Iterator[tuple[str, str, re.Pattern[str], str]]:
        name = "take at most 40 lower-case letters, digits and -, the first a letter"
        yield "name of a job", self.name or "-", _NAME, name
        yield "name of a claim", self.claim, _SUBDOMAIN, "take lower-case letters, digits, - and ."
        yield "name of a secret", self.secret, _SUBDOMAIN, "take lower-case letters, digits, - and ."
        yield "storage class", self.storage_class, _SUBDOMAIN, "'kubectl get storageclass' lists them"
        yield "size", self.storage, _QUANTITY, "write it like 100Gi"
        yield "user", self.user, re.compile(r"\d+:\d+"), "give numbers, UID:GID"
        yield "resource", self.adapter, _RESOURCE, "write it as the nodes have it, like rdma/hca_shared"
        for label in self.labels:
            yield "label of a node", label, _LABEL, "write LABEL=VALUE, as 'kubectl get nodes --show-labels' has it"


def render(job: Job, folder: Path) -> Emitted:
    """The definition, from the template in `folder`. Raises InputError for files that cannot go along."""
    files = tuple(_files(job))
    digest = hashlib.sha256(json.dumps([[each.path, each.text] for each in files]).encode()).hexdigest()[:8]
    token = PurePosixPath(TOKEN)
    uid, _, gid = job.user.partition(":")
    environment = {**ENVIRONMENT, **job.variables, **({"HF_TOKEN_PATH": TOKEN} if job.secret else {})}
    known = {
        each: getattr(job, each) for each in job.__dataclass_fields__ if each not in ("work", "project", "variables")
    }
    known |= {
        "uid": int(uid),
        "gid": int(gid),
        "claim": job.claim or job.name,
        "own_claim": not job.claim,
        "labels": dict(label.split("=", 1) for label in job.labels),
        "rdma": bool(job.adapter),
        "resources": {
            **({"amd.com/gpu": job.processes} if job.gpu else {}),
            **({job.adapter: 1} if job.adapter else {}),
        },
        "models": job.work.models,
        "files": files,
        "files_name": f"{job.name}-files-{digest}",
        "command": tuple(_words(job)),
        "run": _run(job),
        "environment": environment,
        "caches": CACHES,
        "workspace": WORKSPACE,
        "job": JOB,
        "port": PORT,
        "token_folder": str(token.parent),
        "token_file": token.name,
        "mark": MARK,
    }
    text = rendered("kubernetes.yaml.j2", known, folder)
    return Emitted(".yaml", f"{job.name}.yaml", signed("kubernetes", text))


def _run(job: Job) -> str:
    """The folder of the run where the words name one."""
    if not job.work.run:
        return ""
    path = Path(job.work.run)
    if not path.is_relative_to(job.project):
        raise InputError(
            f"the run folder {path} lies outside of {job.project}", cure="name one inside, or leave --run-dir out"
        )
    return f"{WORKSPACE}/{path.relative_to(job.project).as_posix()}"


def _words(job: Job) -> Iterator[str]:
    """The words of the job, which calls the recipe by its place there."""
    own = Path(job.work.facts.argument)
    for word in job.work.words:
        here = word == str(own) and own.is_relative_to(job.project)
        yield f"{JOB}/{own.relative_to(job.project).as_posix()}" if here else word


def _files(job: Job) -> Iterator[File]:
    """The recipe and what it reads. Raises InputError for what lies elsewhere, is too large, or is named by a path that
    only this host has.
    """
    project = job.project
    inside = {path for path in job.work.facts.reads if path.is_relative_to(project)}
    followed = {path.resolve() for path in inside}
    problems = [
        Problem(f"{path} lies outside of {project}, and only what is in it goes along", cure="move it, or --project")
        for path in job.work.facts.reads
        if path not in inside and path not in followed and not any(path in each.parents for each in followed)
    ]
    paths = sorted(
        {file for path in inside for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()}
    )
    size = sum(path.stat().st_size for path in paths)
    if size > _MOST_BYTES:
        largest = max(paths, key=lambda path: path.stat().st_size)
        problems.append(
            Problem(
                f"the recipe reads {size / 1e6:,.1f} MB of files, most of it {largest.relative_to(project)}, and 1 MB "
                "can go along",
                cure="name a set or a model of the hub instead",
            )
        )
    if problems:
        raise InputError(problems)
    keys: set[str] = set()
    for path in paths:
        relative, content = path.relative_to(project).as_posix(), path.read_bytes()
        if str(project).encode() in content and path == Path(job.work.facts.argument):
            raise InputError(f"{path} names {project}, which is only here", cure="write paths relative to the recipe")
        key = base = re.sub(r"[^-._a-zA-Z0-9]", "_", relative)[-200:].lstrip(".") or "file"
        while key in keys:
            key = f"{base}-{len(keys)}"
        keys.add(key)
        yield _file(key, relative, content)


def _file(key: str, path: str, content: bytes) -> File:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return File(key, path, "binaryData", base64.b64encode(content).decode())
    return File(key, path, "data", text, f"|\n{text.removesuffix(chr(10))}" if _LITERAL.fullmatch(text) else "")
