"""The variables of training are made of what was found on each node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from strix_finetune.cluster.environment import by_rdma, environment, usable
from strix_finetune.cluster.facts import Adapter, Gid, Interface, NodeFacts, WayFacts
from strix_finetune.cluster.nodes import Cluster, Node

CLUSTER = Cluster(Path("cluster.toml"), (Node("a", 0), Node("b", 1)))
A = NodeFacts("a", "10.0.0.1", interfaces=(Interface("lo", kind="loopback"), Interface("enp1s0", ("10.0.0.1/24",))))
B = NodeFacts("b", "10.0.0.2", interfaces=(Interface("eth7", ("192.168.1.9/24",)), Interface("eth1", ("10.0.0.2/24",))))
V4 = "0000:0000:0000:0000:0000:ffff:0a00:000{}"


def roce(number: int, interface: str) -> Adapter:
    return Adapter(
        f"rocep{number}s0",
        1,
        "ACTIVE",
        "Ethernet",
        (
            Gid(0, "fe80::1", "IB/RoCE v1", interface),
            Gid(1, "fe80::1", "RoCE v2", interface),
            Gid(2, V4.format(number), "IB/RoCE v1", interface),
            Gid(3, V4.format(number), "RoCE v2", interface),
        ),
    )


def test_each_node_has_its_own_interface() -> None:
    assert environment(CLUSTER, A, (A, B)) == {
        "NCCL_SOCKET_IFNAME": "=enp1s0",
        "GLOO_SOCKET_IFNAME": "enp1s0",
        "TP_SOCKET_IFNAME": "enp1s0",
        "NCCL_IB_DISABLE": "1",
        "STRIX_PORTS": "29400-29499",
    }
    assert environment(CLUSTER, B, (A, B))["NCCL_SOCKET_IFNAME"] == "=eth1"
    # what cluster.toml says is taken, right or wrong
    assert environment(CLUSTER, replace(B, interface="eth7"), (A, B))["GLOO_SOCKET_IFNAME"] == "eth7"
    assert "GLOO_SOCKET_IFNAME" not in environment(CLUSTER, replace(B, interface="eth9"), (A, B))


def test_all_ranks_hear_of_the_slowest_way() -> None:
    ways = (WayFacts("a", "b", gbit=9.4, median_us=60.0), WayFacts("b", "a", gbit=2.35, median_us=71.5))
    for node in (A, B):
        found = environment(CLUSTER, node, (A, B), ways, timeout=900)
        assert found["STRIX_LINK_GBIT"] == "2.35"
        assert found["STRIX_LINK_US"] == "71.5"
        assert found["STRIX_DIST_TIMEOUT"] == "900"


def test_rdma_names_one_port_and_the_gid_of_the_own_address() -> None:
    a = replace(A, adapters=(roce(1, "enp1s0"),), uverbs=("uverbs0",))
    b = replace(B, adapters=(roce(2, "eth1"), replace(roce(3, "eth7"), state="DOWN")), uverbs=("uverbs0",))
    assert by_rdma(CLUSTER, (a, b))
    found = environment(CLUSTER, b, (a, b))
    assert found["NCCL_IB_HCA"] == "=rocep2s0:1"
    assert found["NCCL_IB_GID_INDEX"] == "3"
    assert (found["NCCL_IB_TIMEOUT"], found["NCCL_IB_RETRY_CNT"]) == ("23", "7")
    assert "NCCL_IB_DISABLE" not in found
    # one node without it: all go by TCP
    assert not by_rdma(CLUSTER, (a, B))
    assert environment(CLUSTER, a, (a, B))["NCCL_IB_DISABLE"] == "1"
    assert environment(replace(CLUSTER, link="ethernet"), a, (a, b))["NCCL_IB_DISABLE"] == "1"
    # an adapter of another network is none
    assert usable(replace(a, adapters=(roce(1, "enp9s0"),))) == []


def test_native_infiniband_has_no_gid() -> None:
    adapter = Adapter("mlx5_0", 1, "ACTIVE", "InfiniBand", (Gid(0, "fe80::9", "IB/RoCE v1"),))
    a, b = (replace(node, adapters=(adapter,), uverbs=("uverbs0",)) for node in (A, B))
    found = environment(CLUSTER, a, (a, b))
    assert found["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert "NCCL_IB_GID_INDEX" not in found


def test_unified_memory_and_ipv6() -> None:
    assert environment(CLUSTER, replace(A, gpus=("gfx1151",)), (A, B))["NCCL_NET_GDR_LEVEL"] == "0"
    assert "NCCL_NET_GDR_LEVEL" not in environment(CLUSTER, replace(A, gpus=("gfx1100",)), (A, B))
    six = replace(A, address="fd00::1", interfaces=(Interface("eth0", ("fd00::1/64",)),))
    assert environment(CLUSTER, six, (six,))["NCCL_SOCKET_FAMILY"] == "AF_INET6"
