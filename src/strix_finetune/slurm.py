"""A batch script for Slurm, one container a node, by Podman, Apptainer or pyxis: pure but for reading its templates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from strix_finetune.caches import CACHES, ENVIRONMENT, TOKEN
from strix_finetune.emit import IMAGE, MARK, NAME, Emitted, holdable, rendered, signed
from strix_finetune.errors import InputError
from strix_finetune.jobs import Work
from strix_finetune.launch import PASSED

RUNTIMES = ("podman", "apptainer", "pyxis")
# the file that each runtime converts an image into
_FILES = {"apptainer": ".sif", "pyxis": ".sqsh"}
_SUFFIX = re.compile(r"[\w.-]*")
# of the environment that sbatch was called in; what a terminal looks like is no job's business
_PASSED = ("PET_*", "STRIX_PEER", "STRIX_LINK_*", "STRIX_DIST_*", "NCCL_*", "RCCL_*", "GLOO_*", "TP_*")
# Slurm says by it which GPUs of a shared node are the job's
_GPUS = ("ROCR_VISIBLE_DEVICES",)


@dataclass(frozen=True, slots=True)
class Job:
    """A run on `nodes` of them. `processes`: of a node, one a GPU. `project`: mounted at its own path. `suffix`: behind
    a node's name, its name on the network for training. `token`: a file; `moved`: caches that are not in their usual
    places, by name; `shm`: GiB; `variables`: for those who have not set them. Raises InputError for what no
    script could hold.
    """

    image: str
    work: Work
    project: Path
    runtime: str = "podman"
    name: str = "strix-finetune"
    gpu: bool = True
    nodes: int = 1
    processes: int = 1
    suffix: str = ""
    shm: int = 8
    rdma: bool = False
    selinux: bool = False
    token: str = ""
    moved: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ending = _FILES.get(self.runtime, "")
        if not self.file and not IMAGE.fullmatch(self.image):
            raise InputError(f"'{self.image}' is no name of an image", cure="write registry/name:tag")
        if ending and not self.file and self.local:
            raise InputError(
                f"{self.runtime} cannot take {self.image} from the engine of this host",
                cure=f"push it and say --image HOST/NAME:TAG, or give its file with --image FILE{ending}",
            )
        if not NAME.fullmatch(self.name):
            raise InputError(f"'{self.name}' is no name of a job", cure="take lower-case letters, digits and -_.")
        if not _SUFFIX.fullmatch(self.suffix):
            raise InputError(f"'{self.suffix}' is no end of a host's name", cure="write it like -ib or .fast")
        for path in (str(self.project), self.token, *self.moved.values(), *map(str, self._outside())):
            holdable(path)

    @property
    def file(self) -> bool:
        """Whether the image is a file that the runtime reads itself."""
        ending = _FILES.get(self.runtime)
        return bool(ending) and self.image.endswith(ending or "")

    @property
    def local(self) -> bool:
        """Whether the image has no registry that a node could pull it from."""
        return self.image.startswith("localhost/")

    def _outside(self) -> Iterator[Path]:
        for path in (*self.work.facts.writes, *self.work.facts.reads):
            if not path.is_relative_to(self.project):
                yield path

    @property
    def writes(self) -> tuple[str, ...]:
        """Folders outside of the project that a run writes to."""
        return tuple(str(path) for path in self._outside() if path in self.work.facts.writes)

    @property
    def mounts(self) -> tuple[tuple[str, str, bool], ...]:
        """(source, target, read-only): the project, what is read and written elsewhere, and the caches."""
        found = [(str(self.project), str(self.project), False)]
        found += [(str(path), str(path), str(path) not in self.writes) for path in self._outside()]
        found += [(f"$STRIX_PLACE_{cache.name.upper()}", cache.target, cache.read_only) for cache in CACHES]
        found += [(self.token, TOKEN, True)] if self.token else []
        if self.runtime == "pyxis":
            found += [(path, path, False) for path in ("/dev/kfd", "/dev/dri") if self.gpu]
            found += [("/dev/infiniband", "/dev/infiniband", False)] if self.rdma else []
        # an inner folder is mounted after the outer one, which would hide it
        return tuple(sorted(dict.fromkeys(found), key=lambda mount: mount[1].count("/")))


def render(job: Job, folder: Path) -> Emitted:
    """The script, from the templates in `folder`. Raises TemplateError."""
    work, image = job.work, str(job.project / job.image) if job.file else job.image
    registry, slash, rest = image.partition("/")
    passed = (
        *dict.fromkeys([*_PASSED, *(name for name in job.variables if not name.startswith("NCCL_"))]),
        *(name for name in PASSED if name not in ("TERM", "COLORTERM")),
        *_GPUS * job.gpu,
    )
    known = {each: getattr(job, each) for each in job.__dataclass_fields__ if each not in ("work", "project", "moved")}
    known |= {
        "image": image,
        "file": job.file,
        "local": job.local,
        "enroot": f"{registry}#{rest}" if slash and re.search(r"[.:]", registry) else image,
        "project": str(job.project),
        "command": work.words,
        "run": work.run or work.output,
        "run_of_job": not work.run,
        "trains": work.trains,
        "writes": job.writes,
        "mounts": job.mounts,
        "environment": {**ENVIRONMENT, **({"HF_TOKEN_PATH": TOKEN} if job.token else {})},
        "caches": [{**asdict(cache), "moved": job.moved.get(cache.name, "")} for cache in CACHES],
        "passed": "      " + " | ".join(passed),
        "mark": MARK,
    }
    text = rendered(f"slurm-{job.runtime}.sbatch.j2", known, folder)
    return Emitted(".sbatch", f"{job.name}.sbatch", signed("slurm", text))
