"""What runs on which node: pure, given what is known of the nodes, the recipe and the wishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from strix_finetune import launch
from strix_finetune.caches import CACHES, TOKEN
from strix_finetune.cluster.nodes import Cluster, Node
from strix_finetune.cluster.parcels import Parcel
from strix_finetune.cluster.remote import Over
from strix_finetune.cluster.sending import SENT
from strix_finetune.engine.base import EngineInfo, Mount, RunRequest
from strix_finetune.errors import InputError, Problem

RUNS = "runs"
_RDMA = "/dev/infiniband/"


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained. `argument`: the recipe's path inside; `words`: more arguments of `train run`.

    `parcels`: what the recipe reads. `model`: the one of them that is known by its name alone, in a folder of models.
    `name`: of the run folder. `token`: there is one of the hub's, which goes along as a file. `gpu`: the image is for
    one.
    """

    name: str
    image: str
    key: str
    argument: str
    words: tuple[str, ...]
    parcels: tuple[Parcel, ...] = ()
    model: Parcel | None = None
    token: bool = False
    gpu: bool = False


@dataclass(frozen=True, slots=True)
class Station:
    """A node's part. `folders` are to be made there first; `environment` is what the check chose."""

    node: Node
    request: RunRequest
    run_folder: str
    folders: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a node. `processes` it runs; `environment` of the check; `caches`: its own model is the same."""

    node: Node
    over: Over
    info: EngineInfo
    processes: int
    environment: Mapping[str, str]
    has_model: bool = False


def workdir(cluster: Cluster, over: Over) -> str:
    """The folder of runs and parcels on a node."""
    return cluster.workdir.rstrip("/") if cluster.workdir.startswith("/") else f"{over.home}/{cluster.workdir}"


def models(over: Over) -> str:
    """Where a node has its own models with bare names."""
    return str(next(cache for cache in CACHES if cache.name == "models").place({"HOME": over.home}))


def processes(node: Node, over: Over, *, gpu: bool, gpus: int | None = None) -> int:
    """How many processes a node runs: what cluster.toml says, else one a GPU. `gpus`: those of ROCm, where known."""
    if gpus is None:
        # without a check: those of every vendor
        gpus = sum(device.path.startswith("/dev/dri/renderD") for device in over.devices)
    return node.processes or (max(1, gpus) if gpu else 1)


def stations(
    cluster: Cluster, job: Job, known: Sequence[Known], env: Mapping[str, str], more: Mapping[str, str]
) -> list[Station]:
    """Each node's part, in the order of the nodes. `env`: of this machine, of which the launcher passes some on;
    `more`: variables for the containers, whatever else says of them. Raises InputError."""
    different = [each for each in known if each.processes != known[0].processes]
    if different:
        other = different[0]
        message = (
            f"{known[0].node.name} would run {known[0].processes} processes and {other.node.name} {other.processes}"
        )
        raise InputError(Problem(message, other.node.place, "give all nodes the same number of 'processes'"))
    return [_station(cluster, job, each, known, env, more) for each in known]


def _station(
    cluster: Cluster,
    job: Job,
    own: Known,
    known: Sequence[Known],
    env: Mapping[str, str],
    more: Mapping[str, str],
) -> Station:
    folder = workdir(cluster, own.over)
    run = f"{folder}/{RUNS}/{job.name}"
    host = _host(own, job, run, folder, env)
    train = ("train", "run", job.argument, *job.words, "--run-dir", run)
    # it ends the training in order when its input ends, which it does when this program or the way to it is gone
    command = ("python3", "-m", "strix_train.joining", "--attended", "--", *train)
    rdma = own.environment.get("NCCL_IB_DISABLE") != "1" and bool(host.rdma)
    made = launch.plan(
        job.image,
        command,
        host,
        own.info,
        wishes=launch.Wishes(rdma=rdma, env={**own.environment, **_meeting(cluster, own, known), **more}),
        key=job.key,
    )
    inside = dict(made.request.env) | ({"HF_TOKEN_PATH": TOKEN} if job.token else {})
    mounts = (*made.request.mounts, *(_mounts(job, folder) if not own.node.local else _own(job)))
    request = replace(
        made.request,
        env=inside,
        mounts=tuple(sorted(mounts, key=lambda mount: len(Path(mount.target).parts))),
        network="host",
        interactive=True,
        attended=False,
    )
    # a parcel's own folder is there when all of it is
    sent = f"{folder}/{SENT}"
    folders = (run, sent, *(str(each) for each in made.folders if not each.is_relative_to(sent)))
    return Station(own.node, request, run, folders, own.environment)


def _host(own: Known, job: Job, run: str, folder: str, env: Mapping[str, str]) -> launch.Host:
    """That machine as the launcher wants to know one."""
    over = own.over
    home = {"HOME": over.home}
    places = {cache.name: cache.place(home) for cache in CACHES}
    if job.model and own.node.local:
        places["models"] = job.model.path.parent
    elif job.model and not own.has_model:
        places["models"] = Path(folder, SENT, job.model.digest)
    gpus = [device for device in over.devices if job.gpu and not device.path.startswith(_RDMA)]
    adapters = [device for device in over.devices if device.path.startswith(_RDMA)]
    return launch.Host(
        uid=over.uid,
        gid=over.gid,
        home=Path(over.home),
        workdir=Path(run),
        models=places["models"],
        hub=places["hub"],
        compiled=places["compiled"],
        env=env,
        devices=tuple(device.path for device in gpus),
        groups=tuple(sorted({str(device.group) for device in gpus if device.group})),
        open_to_all=all(device.open_to_all for device in gpus),
        rdma=tuple(device.path for device in adapters),
        rdma_groups=tuple(sorted({str(device.group) for device in adapters if device.group})),
        locked_memory=over.limits[2] * 1024 if over.limits[2] >= 0 else -1,
        selinux=over.selinux,
    )


def _mounts(job: Job, folder: str) -> list[Mount]:
    """Each parcel where the recipe looks for it."""
    return [
        Mount(f"{folder}/{SENT}/{parcel.stored}", str(parcel.path), read_only=True)
        for parcel in job.parcels
        if parcel is not job.model
    ]


def _own(job: Job) -> list[Mount]:
    """The same on this machine, where they are."""
    return [Mount(str(parcel.path), str(parcel.path), read_only=True) for parcel in job.parcels if parcel != job.model]


def _meeting(cluster: Cluster, own: Known, known: Sequence[Known]) -> dict[str, str]:
    """Which of how many this node is and where all meet, in the names that torchrun reads.

    Its static rendezvous, and not c10d, which sorts the nodes by their addresses as words: rank 0 belongs to the head.
    """
    head = known[0].node
    return {
        "PET_NNODES": str(len(known)),
        "PET_NODE_RANK": str(own.node.rank),
        "PET_NPROC_PER_NODE": str(own.processes),
        "PET_MASTER_ADDR": head.address,
        "PET_MASTER_PORT": str(cluster.ports.first),
        "STRIX_PORTS": str(cluster.ports),
        # who waits for a line should not wait for a block of them
        "PYTHONUNBUFFERED": "1",
        # torch warns of each connection whose address has no name, which addresses of a cable have not
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
