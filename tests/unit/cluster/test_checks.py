"""Each fault that a cluster may have, as values, and the sentence that is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from strix_finetune.cluster.checks import clock, collectives, images, interfaces, kernel, links, ports, rdma, room
from strix_finetune.cluster.facts import Adapter, Found, Gid, Interface, NodeFacts, Reduction, WayFacts
from strix_finetune.cluster.findings import Finding, failed
from strix_finetune.cluster.nodes import Cluster, Node, Ports

GB = 10**9
CLUSTER = Cluster(Path("cluster.toml"), (Node("a", 0), Node("b", 1)), ports=Ports(29400, 29409))
A = NodeFacts(
    "a",
    "10.0.0.1",
    image="localhost/strix-finetune:gfx1151",
    image_id="sha256:" + "1" * 64,
    image_digests=("sha256:d1",),
    image_key="k1",
    image_target="gfx1151",
    clock_seconds=0.1,
    clock_exact=0.01,
    hostname="a",
    hostname_addresses=("10.0.0.1",),
    interfaces=(
        Interface("lo", ("127.0.0.1/8", "::1/128"), 65536, kind="loopback"),
        Interface("enp1s0", ("10.0.0.1/24", "fe80::1/64"), 9000, mbit=10000),
        Interface("docker0", ("172.17.0.1/16",), up=False, kind="bridge"),
    ),
    sources={"10.0.0.2": "10.0.0.1"},
    memory_bytes=128 * GB,
    memory_free_bytes=100 * GB,
    disk_free_bytes=500 * GB,
    kernel="6.18.9",
    python="3.14.2",
    packages={"torch": "2.13.0", "peft": "0.21.2"},
)
B = replace(
    A,
    name="b",
    address="10.0.0.2",
    hostname="b",
    interfaces=(A.interfaces[0], Interface("eth1", ("10.0.0.2/24",), 9000, mbit=10000)),
    sources={"10.0.0.1": "10.0.0.2"},
)
OPEN = dict.fromkeys(range(29400, 29410), "open")
SOME = dict.fromkeys((40001, 50002), "open")


def way(sender: str, receiver: str) -> WayFacts:
    return WayFacts(sender, receiver, OPEN, SOME, mtu_bytes=9000, median_us=60.0, least_us=50.0, gbit=9.4)


AB, BA = way("a", "b"), way("b", "a")
FOUND = Found(CLUSTER, (A, B), (AB, BA), (Reduction("a", "gloo", ok=True, gbit=8.9), Reduction("b", "gloo", ok=True)))
Check = Callable[[Found], Iterable[Finding]]
ALL: tuple[Check, ...] = (
    images.check,
    clock.check,
    interfaces.check,
    rdma.check,
    kernel.check,
    room.check,
    ports.check,
    links.check,
    collectives.check,
)


def nodes(a: NodeFacts = A, b: NodeFacts = B) -> Found:
    return replace(FOUND, nodes=(a, b))


def told(check: Check, found: Found) -> list[str]:
    """What is not fine, as "level where: sentence; cure"."""
    return [f"{item.level} {item.where}: {item.says}; {item.cure}" for item in check(found) if item.level != "ok"]


def one(check: Check, found: Found) -> str:
    (text,) = told(check, found)
    return text


def test_a_good_cluster_has_no_fault() -> None:
    findings = [finding for check in ALL for finding in check(FOUND)]
    assert not failed(findings)
    assert {finding.level for finding in findings} == {"ok"}
    assert {finding.check for finding in findings} == {
        *("image", "packages", "clock", "interface", "room", "ports", "mtu", "speed", "link", "allreduce")
    }
    assert not any(finding.cure for finding in findings)


@pytest.mark.parametrize("check", ALL)
def test_no_sentence_ends_with_a_full_stop_and_every_fault_has_a_cure(check: Check) -> None:
    bad = nodes(
        replace(A, gpus=("gfx1151",), interface="eth9", taken={29400: "taken", 29403: "taken"}, memory_free_bytes=1),
        replace(B, image_id="sha256:2", image_digests=(), image_key="k2", packages={}, clock_seconds=900.0),
    )
    blocked = replace(AB, ports=dict.fromkeys(OPEN, "dropped"), some={}, mtu_bytes=1400, stalled=4)
    hung = (Reduction("a", "gloo", ok=False, stage="group", late=True),)
    for finding in check(replace(bad, ways=(blocked, BA), reductions=hung)):
        assert not finding.says.endswith(".")
        assert "\n" not in finding.says
        assert finding.level == "ok" or finding.cure


def test_an_image_that_is_not_there_or_another_one() -> None:
    assert one(images.check, nodes(b=replace(B, image_id=""))) == (
        "failure b: the image localhost/strix-finetune:gfx1151 is not on this node; `strix-finetune pull` there, "
        "or send it: `docker save localhost/strix-finetune:gfx1151 | ssh … docker load`"
    )
    other = replace(B, image_id="sha256:" + "2" * 64, image_digests=(), image_key="k2")
    assert one(images.check, nodes(b=other)) == (
        "failure b: the image is 222222222222 here and 111111111111 on a; "
        "make it the same: `strix-finetune push` from a and `strix-finetune pull` here"
    )
    # an engine that converts an image gives it another id, and the registry's digest stays
    assert told(images.check, nodes(b=replace(other, image_digests=("sha256:d1",)))) == []
    twin = one(images.check, nodes(b=replace(other, image_key="k1")))
    assert twin.startswith("warning b: the image was built here by itself, from the same inputs as that of a; ")


def test_packages_and_gpus_differ() -> None:
    assert one(images.check, nodes(b=replace(B, packages={"torch": "2.13.0", "trl": "1.0"}, python="3.13.1"))) == (
        "failure b: packages differ from those of a: peft missing (there 0.21.2), trl 1.0 (there missing), "
        "python 3.13.1 (there 3.14.2); use the same image on all nodes"
    )
    assert one(images.check, nodes(a=replace(A, gpus=("gfx1151",)))) == (
        "failure b: a trains on its GPU (gfx1151) and b has none that this user may use; "
        "run `strix-finetune doctor` on b"
    )
    mixed = told(images.check, nodes(replace(A, gpus=("gfx1151",)), replace(B, gpus=("gfx1100",))))
    assert mixed == [
        (
            "warning b: its GPUs (gfx1100) are other ones than those of a (gfx1151); "
            "the slowest one sets the pace of all"
        ),
        ("warning b: the image is made for gfx1151, and this node has gfx1100; build or pull the image for gfx1100"),
    ]


def test_a_clock_that_is_off() -> None:
    cure = "set it by NTP: `sudo timedatectl set-ntp true`, or start chrony"
    assert one(clock.check, nodes(b=replace(B, clock_seconds=3.2))) == (
        f"warning b: its clock is 3.1 s ahead of that of a, and so are the times of its logs; {cure}"
    )
    assert one(clock.check, nodes(b=replace(B, clock_seconds=-30.0))) == (
        "warning b: its clock is 30.1 s behind that of a, and so are the times of its logs; torchrun's c10d "
        f"rendezvous, started by hand, would take living nodes for dead; {cure}"
    )
    assert "its clock is 2 h ahead of" in one(clock.check, nodes(b=replace(B, clock_seconds=7300.0)))
    # what is measured over a slow way is no fault
    assert told(clock.check, nodes(b=replace(B, clock_seconds=3.2, clock_exact=5.0))) == []


def test_a_wrong_interface() -> None:
    cure = "correct 'interface' of b in cluster.toml, or leave it out"
    # the name that the head has
    assert one(interfaces.check, nodes(b=replace(B, interface="enp1s0"))) == (
        f"failure b: there is no interface enp1s0 here; there are eth1 (10.0.0.2); {cure}"
    )
    two = replace(B, interfaces=(*B.interfaces, Interface("eth0", ("192.168.1.7/24",))), interface="eth0")
    assert one(interfaces.check, nodes(b=two)) == (
        f"failure b: eth0 has 192.168.1.7/24, and peers expect 10.0.0.2, which eth1 holds; {cure}"
    )
    assert one(interfaces.check, nodes(b=replace(B, address="203.0.113.9"))) == (
        "failure b: no interface here has the address 203.0.113.9; there are eth1 (10.0.0.2); "
        "correct 'address' of b in cluster.toml (behind NAT gloo and RCCL cannot work)"
    )
    down = replace(B, interfaces=(replace(B.interfaces[1], up=False),))
    assert one(interfaces.check, nodes(b=down)) == (
        "failure b: eth1 carries nothing: it is down; plug it in, or `sudo ip link set eth1 up`"
    )
    loopback = replace(B, address="127.0.1.1")
    assert one(interfaces.check, nodes(b=loopback)) == (
        "failure b: 127.0.1.1 is on the loopback, which no other node can reach; "
        "give b the 'address' that the others see"
    )


def test_a_name_that_means_the_loopback_is_no_fault() -> None:
    found = list(interfaces.check(nodes(b=replace(B, hostname="toolbox", hostname_addresses=("127.0.1.1",)))))
    assert not failed(found)
    said = next(item for item in found if item.check == "hostname")
    assert (said.level, said.where) == ("ok", "b")
    assert said.says == "its name toolbox means 127.0.1.1; training does not ask it"


def test_doubtful_interfaces() -> None:
    wireless = replace(
        B, interfaces=(replace(B.interfaces[1], kind="wireless"), Interface("eth0", ("192.168.1.7/24",), mbit=2500))
    )
    assert one(interfaces.check, nodes(b=wireless)) == (
        "warning b: eth1 is wireless, which loses packets and time; use eth0 (192.168.1.7): set 'address'"
    )
    slow = replace(
        B,
        interfaces=(replace(B.interfaces[1], mbit=1000), Interface("eth0", ("192.168.1.7/24",), mbit=25000)),
    )
    assert one(interfaces.check, nodes(b=slow)) == (
        "warning b: eth0 is faster (25000 Mbit/s) than eth1 (1000 Mbit/s); "
        "where it leads to the other nodes, set 'address' to 192.168.1.7"
    )
    second = replace(B, interfaces=(replace(B.interfaces[1], addresses=("169.254.3.4/16", "10.0.0.2/24")),))
    assert one(interfaces.check, nodes(b=second)) == (
        "warning b: eth1 has 169.254.3.4 before 10.0.0.2, and gloo and RCCL take the first one; "
        "let 169.254.3.4 be the 'address', or remove it from eth1"
    )
    bent = replace(B, interfaces=(*B.interfaces, Interface("eth0", ("10.0.0.7/24",))), sources={"10.0.0.1": "10.0.0.7"})
    assert one(interfaces.check, nodes(b=bent)) == (
        "warning b > a: the way to 10.0.0.1 leaves by eth0 (10.0.0.7), and gloo and RCCL bind eth1; "
        "`ip route get 10.0.0.1` there; give both nodes addresses of one network"
    )
    assert one(interfaces.check, nodes(b=replace(B, sources={"10.0.0.1": ""}))) == (
        "failure b > a: there is no route from here to 10.0.0.1; check addresses and netmasks of both"
    )


def test_blocked_ports() -> None:
    cure = (
        "let b take all TCP from 10.0.0.1: `sudo firewall-cmd --permanent --zone=trusted --add-source=10.0.0.1 && "
        "sudo firewall-cmd --reload`, or `sudo ufw allow from 10.0.0.1`"
    )

    def shut(first_open: bool, some: str) -> Found:
        states = {port: "open" if first_open and port == 29400 else "dropped" for port in OPEN}
        return replace(FOUND, ways=(replace(AB, ports=states, some=dict.fromkeys(SOME, some)), BA))

    # the classic: the master's port is open, the others are dropped
    assert one(ports.check, shut(first_open=True, some="dropped")) == (
        "failure a > b: ports 29401-29409 of 10.0.0.2 cannot be reached (nothing comes back, as with a firewall that "
        f"drops), nor those that gloo and RCCL choose (32768-60999); {cure}"
    )
    assert one(ports.check, shut(first_open=False, some="dropped")) == (
        "failure a > b: no TCP port of 10.0.0.2 can be reached (nothing comes back, as with a firewall that drops); "
        + cure
    )
    both = replace(FOUND, ways=tuple(replace(way, ports=dict.fromkeys(OPEN, "dropped"), some={}) for way in (AB, BA)))
    assert "as with a firewall that drops), unless a itself drops the answers; " in told(ports.check, both)[0]
    # the range of cluster.toml is open, and that is not enough
    assert one(ports.check, replace(FOUND, ways=(replace(AB, some=dict.fromkeys(SOME, "EHOSTUNREACH")), BA))) == (
        "failure a > b: 29400-29409 are open, but not the ports that gloo and RCCL choose "
        f"(32768-60999: a firewall or router says that there is no way); {cure}"
    )


def test_a_port_that_is_taken() -> None:
    assert told(ports.check, nodes(a=replace(A, taken={29400: "taken", 29403: "taken", 29404: "taken"}))) == [
        (
            "failure a: port 29400, where the nodes meet, is taken by another program here; "
            "end it (`sudo ss -ltnp 'sport = :29400'` names it), or change 'ports'"
        ),
        (
            "warning a: ports 29403-29404 of the range are taken here; "
            "`sudo ss -ltnp` names the programs; end them, or change 'ports'"
        ),
    ]
    # on another node than the head nobody meets there
    assert one(ports.check, nodes(b=replace(B, taken={29400: "taken"}))).startswith(
        "warning b: port 29400 of the range"
    )
    # an address that the node does not have is said of its interface
    assert told(ports.check, nodes(b=replace(B, taken={29400: "no-address"}))) == []


def test_ranges_in_few_words() -> None:
    assert ports.ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert ports.ranges([]) == ""


def test_packets_that_do_not_pass() -> None:
    small = replace(B, interfaces=(replace(B.interfaces[1], mtu=1500),))
    cure = "set one MTU on enp1s0, eth1 and every switch between: `sudo ip link set enp1s0 mtu …`"
    mixed = replace(nodes(b=small), ways=(replace(AB, mtu_bytes=1500), replace(BA, mtu_bytes=1500)))
    assert one(links.check, mixed) == f"warning a > b: the MTU is 9000 on one side and 1500 on the other; {cure}"
    # large packets vanish: connections open, and nothing comes through
    hole = replace(FOUND, ways=(replace(AB, mtu_bytes=1400, gbit=0.0, stalled=4), BA))
    assert one(links.check, hole) == (
        "failure a > b: connections open, and stand still as soon as much is sent: packets of more than 1400 bytes "
        f"vanish (MTU 9000 here, 9000 there); {cure}"
    )
    quiet = replace(FOUND, ways=(replace(AB, mtu_bytes=1400), BA))
    assert one(links.check, quiet) == (
        "warning a > b: packets of more than 1400 bytes do not pass, and nobody says so (MTU 9000 here, 9000 there); "
        + cure
    )
    assert "as a router on the way says (1420)" in one(
        links.check, replace(FOUND, ways=(replace(AB, mtu_bytes=1400, mtu_told=1420), BA))
    )
    broken = replace(FOUND, ways=(replace(AB, gbit=0.0, stalled=4), BA))
    assert one(links.check, broken) == (
        "failure a > b: connections open, and stand still as soon as much is sent; "
        "look at the cable, the switch and `ip -s link` for errors"
    )
    assert one(links.check, replace(FOUND, ways=(replace(AB, mtu_bytes=0), BA))).startswith("warning a > b: UDP does")


def test_slow_ways() -> None:
    def ab(gbit: float) -> Found:
        return replace(FOUND, ways=(replace(AB, gbit=gbit), BA))

    assert one(links.check, ab(0.09)) == (
        "warning a > b: 0.09 Gbit/s, 60 µs there and back, which is slow for training; "
        "use a cable of 2.5 Gbit/s or more; else accumulate gradients over many steps"
    )
    assert one(links.check, ab(2.3)) == (
        "warning a > b: 2.3 Gbit/s, 60 µs there and back, of the 10 that the interfaces could; "
        "look at the cable, the slot of the card, `ethtool` and `ip -s link`"
    )
    silent = nodes(
        replace(A, interfaces=(replace(A.interfaces[1], mbit=0),)), replace(B, interfaces=(B.interfaces[1],))
    )
    assert one(links.check, replace(silent, ways=ab(2.3).ways)) == (
        "warning a > b: 2.3 Gbit/s, 60 µs there and back, but 9.4 Gbit/s the other way; "
        "look at errors with `ip -s link` on both"
    )
    # what could not be measured is said of the ports
    assert told(links.check, replace(FOUND, ways=(WayFacts("a", "b", OPEN), BA))) == []


def adapter(
    number: int, interface: str, kind: str = "RoCE v2", state: str = "ACTIVE", firmware: str = "1.74"
) -> Adapter:
    return Adapter(
        f"roce{number}", 1, state, "Ethernet", (Gid(3, "fe80::1", kind, interface),), firmware=firmware, driver="irdma"
    )


def test_rdma_that_was_asked_for() -> None:
    wanted = replace(CLUSTER, link="rdma")
    a = replace(A, adapters=(adapter(0, "enp1s0"),), uverbs=("uverbs0",))
    b = replace(B, adapters=(adapter(1, "eth1"),), uverbs=("uverbs0",))

    def said(node: NodeFacts) -> list[str]:
        return told(rdma.check, Found(wanted, (a, node)))

    assert said(b) == []
    assert said(B) == [
        (
            "failure b: there is no RDMA adapter here; "
            "load its driver (`sudo modprobe irdma` or mlx5_ib), or change 'link'"
        )
    ]
    assert said(replace(b, uverbs=())) == [
        (
            "failure b: there are adapters, and no /dev/infiniband/uverbs* in the container; "
            "`sudo modprobe ib_uverbs`, and let this user use the device"
        )
    ]
    assert said(replace(b, adapters=(adapter(1, "eth1", state="DOWN"),))) == [
        (
            "failure b: no active port of an adapter belongs to eth1 (roce1:1 DOWN); "
            "give the 'address' of the adapter's own interface, and plug it in"
        )
    ]
    assert said(replace(b, memlock_bytes=8 << 20)) == [
        (
            "failure b: only 8 MiB of memory may be locked in the container; set memlock to unlimited for this user "
            "and its engine (/etc/security/limits.d; LimitMEMLOCK=infinity)"
        )
    ]
    assert said(replace(b, adapters=(adapter(1, "eth1"), adapter(2, "eth1")))) == [
        (
            "warning b: roce1:1 is taken of several (roce2:1); RCCL gets exactly one; "
            "give the 'address' of the one that you mean"
        )
    ]
    assert said(replace(b, adapters=(adapter(1, "eth1", firmware="1.60"),))) == [
        "warning b: the adapter's firmware is 1.60 here and 1.74 on a; update both to the same"
    ]
    (first, second) = said(replace(b, adapters=(adapter(1, "eth1", kind="IB/RoCE v1"),)))
    assert first.startswith("warning b: roce1:1 has no GID of RoCE v2 on its interface, only IB/RoCE v1; ")
    assert second.startswith("failure b: it is IB/RoCE v1 here and RoCE v2 on a; ")
    native = replace(b, adapters=(Adapter("mlx4_0", 1, "ACTIVE", "InfiniBand"),))
    assert said(native) == ["failure b: it is InfiniBand here and Ethernet on a; connect all nodes by one kind of link"]


def test_rdma_that_is_there_and_not_taken() -> None:
    a = replace(A, adapters=(adapter(0, "enp1s0"),), uverbs=("uverbs0",))
    cure = 'set link = "rdma" to have RDMA, "ethernet" for TCP'
    assert told(rdma.check, nodes(a)) == [
        f"warning b: RCCL goes by TCP, since no active port of an adapter belongs to the interface; {cure}"
    ]
    two = replace(B, adapters=(adapter(1, "eth1"), adapter(2, "eth1")), uverbs=("uverbs0",))
    assert told(rdma.check, nodes(a, two)) == [
        f"warning b: RCCL goes by TCP, since 2 ports could be meant (roce1:1, roce2:1); {cure}"
    ]
    assert told(rdma.check, replace(nodes(a), cluster=replace(CLUSTER, link="ethernet"))) == []
    assert told(rdma.check, FOUND) == []


def test_thunderbolt_is_what_it_says() -> None:
    found = replace(FOUND, cluster=replace(CLUSTER, link="thunderbolt"))
    assert told(rdma.check, found)[0] == (
        "warning a: enp1s0 is no interface of Thunderbolt (ethernet); "
        "give the 'address' of thunderbolt0, or correct 'link'"
    )


def test_kernels_that_differ() -> None:
    a = replace(A, gpus=("gfx1151",), command_line="quiet amd_iommu=off ttm.pages_limit=32505856", ttm_pages=32505856)
    b = replace(a, name="b", kernel="6.17.0", command_line="quiet", ttm_pages=16384000, iommu_groups=30)
    assert told(kernel.check, nodes(a, b)) == [
        (
            "warning b: its kernel differs from that of a: Linux 6.17.0 (there 6.18.9), IOMMU on (there off), "
            "amd_iommu=off only there, ttm.pages_limit=32505856 only there; "
            "run `strix-finetune doctor` on both and make them alike"
        ),
        (
            "warning b: the GPU may have 62 GiB of memory here and 124 GiB on a; "
            "set ttm.pages_limit alike; the smaller one decides what fits"
        ),
    ]
    assert told(kernel.check, nodes(a, replace(a, name="b"))) == []
    # without AMD's GPUs nothing of it matters
    assert list(kernel.check(nodes(b=replace(B, kernel="5.15")))) == []


def test_the_iommu_and_an_adapter() -> None:
    a = replace(A, adapters=(adapter(0, "enp1s0"),), uverbs=("uverbs0",), iommu_groups=20)
    b = replace(B, adapters=(adapter(1, "eth1"),), uverbs=("uverbs0",), iommu_groups=20, command_line="iommu=pt")
    assert told(kernel.check, nodes(a, b)) == [
        "warning a: the IOMMU translates what the adapter sends; add iommu=pt to the kernel's command line"
    ]


def test_no_room() -> None:
    assert told(room.check, nodes(b=replace(B, memory_free_bytes=3 * GB))) == [
        "warning b: only 3.0 GB of 128 GB memory are free; end what uses it"
    ]
    assert told(room.check, nodes(b=replace(B, disk_free_bytes=GB // 2))) == [
        "failure b: only 0.5 GB are free where runs are written (strix-finetune); free some space, or change 'workdir'"
    ]
    assert told(room.check, nodes(b=replace(B, memory_bytes=64 * GB, memory_free_bytes=60 * GB))) == [
        "warning b: it has 64.0 GB of memory, and a 128 GB; the smallest node decides what fits"
    ]


@pytest.mark.parametrize(
    ("reduction", "sentence"),
    [
        (
            Reduction(
                "b",
                "gloo",
                False,
                "group",
                "RuntimeError: [enforce fail] ifa != nullptr. Unable to find address for: vA",
            ),
            "gloo finds no address on the interface vA here; correct 'interface', or leave it out",
        ),
        (
            Reduction(
                "b",
                "gloo",
                False,
                "group",
                "RuntimeError: Gloo connectFullMesh failed with timed out connecting: remote=[127.0.0.1]:10134",
            ),
            "gloo was sent to 127.0.0.1, the loopback of another node; correct 'address' and 'interface'",
        ),
        (
            Reduction("b", "gloo", False, "group", "torch.X: timed out, remote=[10.0.0.1]:43211", late=True),
            (
                "gloo met at the head, and the nodes do not get through to each other (10.0.0.1:43211 did not answer); "
                "open all TCP ports between the nodes: gloo and RCCL choose theirs by themselves"
            ),
        ),
        (
            Reduction(
                "b", "gloo", False, "meet", "torch.distributed.DistNetworkError: The client socket has timed out."
            ),
            (
                "gloo did not get to the head's port (torch.distributed.DistNetworkError: The client socket has timed "
                "out); see what is said of ports and the head"
            ),
        ),
        (
            Reduction("b", "nccl", False, "import", "Traceback\n  File x\nOSError: librccl.so: cannot open\n"),
            (
                "RCCL was not tried, since torch did not load here (OSError: librccl.so: cannot open); "
                "run `strix-finetune smoke` there, or give the machine more time"
            ),
        ),
        (
            Reduction("b", "nccl", False, "small", "RuntimeError: NCCL error: unhandled system error."),
            (
                "RCCL failed (RuntimeError: NCCL error: unhandled system error); "
                "set NCCL_DEBUG=INFO or TORCH_DISTRIBUTED_DEBUG=DETAIL to see more"
            ),
        ),
    ],
)
def test_an_all_reduce_that_failed(reduction: Reduction, sentence: str) -> None:
    fine = Reduction("a", reduction.backend, ok=True)
    assert one(collectives.check, replace(FOUND, reductions=(fine, reduction))) == f"failure b: {sentence}"


def test_who_failed_is_told_from_who_waited() -> None:
    waited = Reduction("a", "gloo", False, "group", "RuntimeError: Connection closed by peer", late=False)
    broken = Reduction("b", "gloo", False, "group", "RuntimeError: Unable to find address for: vA")
    assert one(collectives.check, replace(FOUND, reductions=(waited, broken))).startswith(
        "failure b: gloo finds no address on the interface vA here; a waited for it; "
    )
