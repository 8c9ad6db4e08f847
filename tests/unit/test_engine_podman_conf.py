"""What Podman is told on which host, decided on hosts that are laid out as folders."""

from __future__ import annotations

import tomllib
from pathlib import Path

from strix_finetune.engine.podman_conf import HostFacts, configuration

ALL_CAPS = "000001ffffffffff"
NO_SYS_RESOURCE = "000001fffeffffff"


def host(
    root: Path,
    *,
    caps: str = ALL_CAPS,
    unified: bool = True,
    systemd: bool = True,
    files: tuple[str, ...] = ("usr/libexec/podman/catatonit", "usr/lib/podman/netavark"),
    programs: tuple[str, ...] = ("crun", "runc", "slirp4netns"),
) -> HostFacts:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{caps}\n")
    wanted = [*files, *(f"bin/{name}" for name in programs)]
    wanted += ["sys/fs/cgroup/cgroup.controllers"] if unified else []
    for name in wanted:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch(mode=0o755)
    if systemd:
        (root / "run/systemd/system").mkdir(parents=True)
    return HostFacts.read({"PATH": str(root / "bin")}, root)


def test_a_usual_host_needs_nothing(tmp_path: Path) -> None:
    assert configuration(host(tmp_path), root=True) == ""


def test_hybrid_cgroups_mean_runc_and_cgroupfs(tmp_path: Path) -> None:
    conf = tomllib.loads(configuration(host(tmp_path, unified=False), root=True))
    assert conf == {"engine": {"runtime": "runc", "cgroup_manager": "cgroupfs"}}


def test_runc_is_not_asked_for_where_it_is_not(tmp_path: Path) -> None:
    assert "runtime" not in configuration(host(tmp_path, unified=False, programs=("crun",)), root=True)


def test_runc_is_found_where_debian_keeps_it(tmp_path: Path) -> None:
    facts = host(tmp_path, unified=False, programs=(), files=("usr/sbin/runc",))
    assert facts.runtimes == ("runc",)


def test_without_systemd_events_and_logs_go_to_files(tmp_path: Path) -> None:
    conf = tomllib.loads(configuration(host(tmp_path, systemd=False), root=False))
    assert conf["engine"] == {"cgroup_manager": "cgroupfs", "events_logger": "file"}
    assert conf["containers"] == {"log_driver": "k8s-file"}


def test_limits_are_stated_only_where_root_may_not_raise_them(tmp_path: Path) -> None:
    facts = host(tmp_path, caps=NO_SYS_RESOURCE)
    conf = tomllib.loads(configuration(facts, root=True))
    assert conf == {"containers": {"default_ulimits": ["nofile=4096:4096", "nproc=4096:4096"]}}
    assert configuration(facts, root=False) == ""


def test_another_static_init_stands_in_for_podman_s_own(tmp_path: Path) -> None:
    facts = host(tmp_path, files=("usr/bin/tini-static", "usr/lib/cni/bridge"))
    table = {"init_path": "/usr/bin/tini-static"}
    assert tomllib.loads(configuration(facts, root=True)) == {"containers": table, "engine": table}


def test_without_anything_that_makes_a_network_containers_use_the_host_s(tmp_path: Path) -> None:
    facts = host(tmp_path, files=("usr/libexec/podman/catatonit",), programs=("crun",))
    assert tomllib.loads(configuration(facts, root=True)) == {"containers": {"netns": "host"}}
    assert tomllib.loads(configuration(facts, root=False)) == {"containers": {"netns": "host"}}


def test_root_needs_a_bridge_and_a_user_needs_none(tmp_path: Path) -> None:
    facts = host(tmp_path, files=("usr/libexec/podman/catatonit",))
    assert configuration(facts, root=False) == ""
    assert "netns" in configuration(facts, root=True)
