"""What is said and compared before a training starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strix_finetune import names
from strix_finetune.cluster import prepare
from strix_finetune.cluster.job import Job, Known, Station
from strix_finetune.cluster.nodes import Cluster, Node
from strix_finetune.cluster.reach import Reached
from strix_finetune.cluster.remote import Device, Over
from strix_finetune.engine.base import EngineInfo, Image, RunRequest
from strix_finetune.engine.podman_conf import HostFacts
from strix_finetune.errors import InputError, WorkError
from strix_finetune.recipefacts import RecipeFacts

NODES = (Node("strix1", 0, address="10.0.0.1"), Node("strix2", 1, ssh="strix2", address="10.0.0.2"))
FACTS = HostFacts(unified_cgroups=True, systemd=True, may_raise_limits=True, runtimes=("crun",))
OVER = Over(1000, 1000, "ada", "/home/ada", "", (), (), "", FACTS)


@dataclass
class Store:
    """An engine that holds one image, or none."""

    held: Image | None

    def image(self, ref: str) -> Image | None:
        return self.held


def image(number: int, key: str = "", digest: str = "") -> Image:
    labels = {names.KEY: key} if key else {}
    return Image(f"sha256:{number:064d}", ("localhost/x:cpu",), labels, 1, (digest,) if digest else ())


def reached(*held: Image | None) -> list[Reached]:
    stores: list[Any] = [Store(each) for each in held]
    return [Reached(node, store, OVER) for node, store in zip(NODES, stores, strict=True)]


def test_the_same_image_is_one_by_id_by_digest_or_by_key() -> None:
    for one, other in (
        (image(1), image(1)),
        (image(1, digest="sha256:a"), image(2, digest="sha256:a")),
        (image(1, key="k"), image(2, key="k")),
    ):
        assert prepare.images(reached(one, other), "localhost/x:cpu") is one


def test_another_image_or_none_is_refused_with_the_node() -> None:
    with pytest.raises(WorkError, match=r"node strix2 has another image localhost/x:cpu .*than strix1.*the same one"):
        prepare.images(reached(image(1, key="k"), image(2, key="l")), "localhost/x:cpu")
    with pytest.raises(WorkError, match="node strix2 has no image localhost/x:cpu; pull or build it there"):
        prepare.images(reached(image(1), None), "localhost/x:cpu")
    with pytest.raises(WorkError, match="node strix1 has no image"):
        prepare.images(reached(None, image(1)), "localhost/x:cpu")


def test_what_was_chosen_is_shown_once_where_it_is_the_same() -> None:
    info = EngineInfo("podman", "5.0", "1.41", "", rootless=False)
    stations, known = [], []
    for node in NODES:
        chosen = {"NCCL_IB_DISABLE": "1", "GLOO_SOCKET_IFNAME": f"nic{node.rank}"}
        stations.append(Station(node, RunRequest("x", ()), "/run", (), chosen))
        known.append(Known(node, OVER, info, 2, chosen))
    assert prepare.shown(stations, known) == [
        "all get NCCL_IB_DISABLE=1",
        "strix1: ranks 0-1 at 10.0.0.1, podman 5.0, GLOO_SOCKET_IFNAME=nic0",
        "strix2: ranks 2-3 at 10.0.0.2, podman 5.0, GLOO_SOCKET_IFNAME=nic1",
    ]


def test_without_a_check_the_head_asks_for_its_interface_by_its_peer() -> None:
    cluster = Cluster(Path("cluster.toml"), NODES)
    head, other = prepare.unchecked(cluster, reached(None, None)).values()
    assert head["STRIX_PEER"] == "10.0.0.2"
    assert "STRIX_PEER" not in other
    assert head["NCCL_IB_DISABLE"] == other["NCCL_IB_DISABLE"] == "1"


def test_faults_of_all_nodes_are_told() -> None:
    def work(number: int) -> int:
        if number:
            raise WorkError(f"fault {number}")
        return number

    with pytest.raises(WorkError) as caught:
        prepare.at_once([0, 1, 2], work)
    assert [str(problem) for problem in caught.value.problems] == ["fault 1", "fault 2"]
    assert prepare.at_once([0, 0], work) == [0, 0]


def test_a_name_of_a_run_is_no_path() -> None:
    wanted = prepare.Wanted("demo", run="../elsewhere")
    cluster = Cluster(Path("cluster.toml"), NODES)
    with pytest.raises(InputError, match=r"'\.\./elsewhere' is no name of a run"):
        prepare.plan(
            cluster, wanted, reached(None, None)[0], RecipeFacts("demo.yaml"), [], "x", image(1), {"HOME": "/"}
        )


def test_what_the_check_saw_of_gpus_counts_and_not_every_render_node() -> None:
    two = tuple(Device(f"/dev/dri/renderD{128 + number}", 0, True) for number in range(2))
    reached: Any = [
        SimpleNamespace(node=node, over=replace(OVER, devices=two), home="/home/ada", engine=SimpleNamespace(info=None))
        for node in NODES
    ]
    made = Job("r", "image", "", "r.yaml", (), gpu=True)
    known = prepare.known_of(reached, {}, made, {"strix1": 1, "strix2": 2})
    assert [each.processes for each in known] == [1, 2]
    assert [each.processes for each in prepare.known_of(reached, {}, made)] == [2, 2]
