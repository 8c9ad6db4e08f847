"""What runs on which node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strix_finetune.cluster.job import Job, Known, Station, processes, stations
from strix_finetune.cluster.nodes import Cluster, Node, Ports
from strix_finetune.cluster.parcels import Parcel, Part
from strix_finetune.cluster.remote import Device, Over
from strix_finetune.engine.base import EngineInfo, Mount
from strix_finetune.engine.podman_conf import HostFacts
from strix_finetune.errors import InputError

HERE = Node("strix1", 0, address="10.0.0.1")
THERE = Node("strix2", 1, ssh="ada@strix2", address="10.0.0.2")
CLUSTER = Cluster(Path("cluster.toml"), (HERE, THERE), ports=Ports(29400, 29499))
FACTS = HostFacts(unified_cgroups=True, systemd=True, may_raise_limits=True, runtimes=("crun",))
RECIPE = Parcel(Path("/home/me/lab/recipe.yaml"), False, (Part("recipe.yaml", 100, "a" * 64),))
ROWS = Parcel(Path("/data/rows"), True, (Part("a.jsonl", 9, "b" * 64), Part("more/b.jsonl", 9, "c" * 64)))
MODEL = Parcel(Path("/home/me/.cache/strix-finetune/models/demo"), True, (Part("config.json", 9, "d" * 64),))
GPU = (Device("/dev/kfd", 992, False), Device("/dev/dri/renderD128", 992, False))
RDMA = (Device("/dev/infiniband/uverbs0", 0, True), Device("/dev/infiniband/rdma_cm", 0, True))


def over(**known: object) -> Over:
    usual = {"uid": 1001, "gid": 100, "user": "ada", "home": "/home/ada", "address": "", "usable": (), "denied": ()}
    return Over(**{**usual, "podman": "", "facts": FACTS, **known})  # type: ignore[arg-type]


def known(node: Node, *, kind: str = "docker", count: int = 1, has_model: bool = False, **more: object) -> Known:
    info = EngineInfo(kind, "29.0", "1.52", "unix:///x", rootless=False)  # type: ignore[arg-type]
    chosen = {"NCCL_IB_DISABLE": "1", "GLOO_SOCKET_IFNAME": f"nic{node.rank}"}
    return Known(node, over(**more), info, count, chosen, has_model)


def job(**changes: object) -> Job:
    usual = {"name": "recipe-1", "image": "localhost/strix-finetune:gfx1151", "key": "k" * 64}
    return Job(**{**usual, "argument": "/home/me/lab/recipe.yaml", "words": (), **changes})  # type: ignore[arg-type]


def made(job: Job, one: Known | None = None, two: Known | None = None) -> tuple[Station, Station]:
    env = {"OMP_NUM_THREADS": "2", "SECRET": "x"}
    head, other = stations(CLUSTER, job, [one or known(HERE), two or known(THERE)], env, {"NCCL_DEBUG": "INFO"})
    return head, other


def test_each_node_knows_its_place_and_its_own_interface() -> None:
    head, other = made(job(words=("--set", "schedule.steps=3")))
    assert head.request.env["PET_NODE_RANK"] == "0"
    assert other.request.env["PET_NODE_RANK"] == "1"
    for station in (head, other):
        env = station.request.env
        assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("2", "1")
        assert (env["PET_MASTER_ADDR"], env["PET_MASTER_PORT"]) == ("10.0.0.1", "29400")
        assert env["GLOO_SOCKET_IFNAME"] == f"nic{station.node.rank}"
        assert env["STRIX_PORTS"] == "29400-29499"
        assert station.request.network == "host"
        assert station.request.shm_size == 8 << 30
        assert (env["NCCL_DEBUG"], env["OMP_NUM_THREADS"], env.get("SECRET")) == ("INFO", "2", None)
    assert other.request.command == (
        *("python3", "-m", "strix_train.joining", "--attended", "--", "train", "run", "/home/me/lab/recipe.yaml"),
        *("--set", "schedule.steps=3", "--run-dir", "/home/ada/strix-finetune/runs/recipe-1"),
    )


def test_torchrun_meets_where_the_head_is_first_whatever_its_address() -> None:
    """c10d would sort 10.0.0.10 before 10.0.0.2, and rank 0 would be elsewhere."""
    head, other = made(job(), known(HERE, count=2), known(THERE, count=2))
    for station in (head, other):
        env = station.request.env
        assert (env["PET_NPROC_PER_NODE"], env["PET_NODE_RANK"]) == ("2", str(station.node.rank))
        assert not any(name.startswith("PET_RDZV") for name in env)


def test_nodes_with_different_numbers_of_processes_are_refused() -> None:
    with pytest.raises(InputError, match="strix1 would run 1 processes and strix2 2; give all nodes the same number"):
        made(job(), known(HERE), known(THERE, count=2))


def test_what_the_recipe_reads_is_where_it_looks_on_each_node() -> None:
    head, other = made(job(parcels=(RECIPE, ROWS)))
    sent = "/home/ada/strix-finetune/sent"
    assert Mount(f"{sent}/{RECIPE.digest}/recipe.yaml", "/home/me/lab/recipe.yaml", True) in other.request.mounts
    assert Mount(f"{sent}/{ROWS.digest}/rows", "/data/rows", True) in other.request.mounts
    assert Mount("/data/rows", "/data/rows", True) in head.request.mounts
    run = "/home/ada/strix-finetune/runs/recipe-1"
    assert Mount(run, run) in other.request.mounts
    assert {run, sent, "/home/ada/.cache/huggingface"} <= set(other.folders)


@pytest.mark.parametrize(
    ("has", "place"),
    [
        (True, "/home/ada/.cache/strix-finetune/models"),
        (False, f"/home/ada/strix-finetune/sent/{MODEL.digest}"),
    ],
)
def test_a_model_with_a_bare_name_is_the_nodes_own_or_what_was_sent(has: bool, place: str) -> None:
    head, other = made(job(parcels=(MODEL,), model=MODEL), two=known(THERE, has_model=has))
    assert Mount(place, "/models", True) in other.request.mounts
    assert Mount("/home/me/.cache/strix-finetune/models", "/models", True) in head.request.mounts
    # made by hand, an empty folder would pass for what was sent
    assert f"/home/ada/strix-finetune/sent/{MODEL.digest}" not in other.folders


def test_gpus_go_along_where_the_image_is_for_one() -> None:
    head, other = made(job(gpu=True), known(HERE, devices=GPU), known(THERE, devices=(*GPU, *RDMA)))
    assert other.request.devices == head.request.devices == ("/dev/kfd", "/dev/dri/renderD128")
    assert other.request.group_add == ("992",)
    assert other.request.user == "1001:100"
    assert made(job(), known(HERE, devices=GPU))[0].request.devices == ()


def test_adapters_and_locked_memory_go_along_where_rccl_goes_by_rdma() -> None:
    chosen = {"NCCL_IB_HCA": "=mlx5_0:1"}
    one, two = (replace(known(node, devices=(*GPU, *RDMA)), environment=chosen) for node in (HERE, THERE))
    head, other = made(job(gpu=True), one, two)
    for station in (head, other):
        assert {"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"} <= set(station.request.devices)
        assert station.request.memlock == -1


def test_locked_memory_of_a_machine_is_in_kib() -> None:
    """As `ulimit -l` says it: 8 GiB, which a rootless engine cannot exceed."""
    chosen = {"NCCL_IB_HCA": "=mlx5_0:1"}
    one, two = (
        replace(known(node, devices=(*GPU, *RDMA), limits=(1024, 1024, 8 << 20)), environment=chosen)
        for node in (HERE, THERE)
    )
    assert made(job(gpu=True), one, two)[0].request.memlock == -1
    rootless = replace(two, info=replace(two.info, rootless=True))
    with pytest.raises(InputError, match="may lock 8192 MiB and a rootless engine not more"):
        made(job(gpu=True), one, rootless)
    free = replace(rootless, over=replace(two.over, limits=(1024, 1024, -1)))
    assert made(job(gpu=True), one, free)[1].request.memlock == -1


def test_the_token_of_the_hub_is_in_no_variable() -> None:
    _, other = made(job(token=True))
    assert other.request.env["HF_TOKEN_PATH"] == "/run/strix-finetune/hf-token"
    assert not {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} & set(other.request.env)


def test_a_process_a_gpu_unless_cluster_toml_says_otherwise() -> None:
    two = over(devices=(*GPU, Device("/dev/dri/renderD129", 992, False)))
    assert processes(HERE, two, gpu=True) == 2
    assert processes(HERE, two, gpu=False) == 1
    assert processes(HERE, over(), gpu=True) == 1
    assert processes(replace(HERE, processes=4), two, gpu=True) == 4
    # one of the two is of another vendor
    assert processes(HERE, two, gpu=True, gpus=1) == 1
    assert processes(HERE, over(), gpu=True, gpus=0) == 1
    assert processes(HERE, two, gpu=False, gpus=2) == 1
    assert processes(replace(HERE, processes=4), two, gpu=True, gpus=1) == 4
