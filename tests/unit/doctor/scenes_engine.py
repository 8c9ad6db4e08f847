"""Engines, rootless containers, SELinux, disks and the network."""

from __future__ import annotations

import json

from strix_finetune.doctor.edges import EngineState, Reached, Space, ToolboxImage
from strix_finetune.engine.failures import unreachable
from strix_finetune.errors import InputError, Problem
from strix_finetune.toolbx.contract import LABEL
from tests.unit.doctor.hosts import GIB, FakeEdges, Tree, running
from tests.unit.doctor.scenes import (
    Scene,
    bare,
    docker,
    expects,
    fedora_halo,
    itself,
    noble_halo,
    podman,
    selinux,
)

_MILLION = 10**6


def _live(**changed: str) -> tuple[str, ...]:
    """What is found on a machine without a GPU whose Docker answers."""
    usual = {"gpu": "advice", "engine": "ok", "cgroups": "unknown", "disk": "ok", "temporary": "ok"}
    return expects(**(usual | {"network": "unknown"} | changed))


def _silent(url: str, error: OSError, source: str = "") -> EngineState:
    """The state of an engine that did not answer, in the words of the connection itself."""
    refusal = unreachable(url, error, source=source)
    assert refusal is not None
    return EngineState(None, refusal.problems[0])


def _cdi(kind: str, *renders: str) -> dict[str, object]:
    """A specification as AMD's tool makes it: a device for each GPU, and one for all of them."""
    nodes = [{"path": "/dev/kfd"}, *({"path": f"/dev/dri/{render}"} for render in renders)]
    devices = [{"name": name, "containerEdits": {"deviceNodes": nodes}} for name in ("0", "all")]
    return {"cdiVersion": "0.6.0", "kind": kind, "devices": devices}


def _docker(tree: Tree) -> Tree:
    return bare(tree, "docker")


def _toolbox(tree: Tree, mode: int = 0o666) -> Tree:
    """Fedora as it comes: everybody may compute, and Toolbx is there, with the bus that it asks."""
    tree = fedora_halo(tree).programs("toolbox").put("run/dbus/system_bus_socket")
    return tree.own("dev/kfd", mode, 105).own("dev/dri/renderD128", mode, 105)


def _image(**config: object) -> ToolboxImage:
    return ToolboxImage("localhost/strix-finetune:gfx1151", {"Labels": {LABEL: "true"}, "Env": ["A=b"]} | config)


_ROOTLESS = running("podman", rootless=True)

ENGINES: dict[str, Scene] = {
    "Toolbx, and an image that it can take": Scene(
        _toolbox,
        itself(toolbx="ok"),
        {"toolbx": {"image": "localhost/strix-finetune:gfx1151"}},
        ("Podman has localhost/strix-finetune:gfx1151, and it is what Toolbx asks for",),
        FakeEdges(_ROOTLESS, toolbox=_image()),
    ),
    "Toolbx, and an image of somebody else's making": Scene(
        _toolbox,
        itself(toolbx="warning"),
        words=(
            f"is none for Toolbx: it lacks the label {LABEL}, it has an entry point, which takes the place of",
            "Toolbx's own process, it sets HIP_VISIBLE_DEVICES wherever it is used",
        ),
        edges=FakeEdges(
            _ROOTLESS,
            toolbox=_image(Labels=None, Entrypoint=["/entrypoint.sh"], Env=["PATH=/x", "HIP_VISIBLE_DEVICES=0"]),
        ),
    ),
    "Toolbx without its bus, an image, or the group's rights": Scene(
        lambda tree: _toolbox(tree, 0o660).drop("run/dbus/system_bus_socket"),
        itself(toolbx="warning advice advice"),
        {"toolbx": {}},
        (
            "sudo systemctl start dbus",
            "a toolbox does not get your groups, and /dev/kfd is open to the group render alone (mode 0660)",
            "strix-finetune emit udev --access seat",
            "Podman, which Toolbx reads, has no image localhost/strix-finetune:gfx1151",
        ),
        FakeEdges(_ROOTLESS, toolbox=ToolboxImage("localhost/strix-finetune:gfx1151", None)),
    ),
    "Toolbx on a copied tree": Scene(
        lambda tree: _toolbox(tree).drop("run/dbus/system_bus_socket"), podman(toolbx="unknown")
    ),
    "no engine, and a network that partly answers": Scene(
        bare,
        _live(engine="blocks", disk="", network="ok warning"),
        words=("neither Docker nor Podman is installed", "its certificate is not trusted here; building needs it"),
        edges=FakeEdges(
            _silent("unix:///var/run/docker.sock", FileNotFoundError(2, "No such file")),
            answers=(
                Reached("Debian mirror", "http://mirror.example/debian", "building"),
                Reached(
                    "package index", "https://pip.example/simple", "building", "its certificate is not trusted here"
                ),
            ),
        ),
    ),
    "an engine that does not run": Scene(
        _docker,
        _live(engine="blocks"),
        {"engine": {"programs": ["docker"]}},
        ("no container engine is running at unix:///var/run/docker.sock", "systemctl start docker"),
        FakeEdges(_silent("unix:///var/run/docker.sock", FileNotFoundError(2, "No such file"))),
    ),
    "an engine that is not for this user": Scene(
        _docker,
        _live(engine="blocks", disk="unknown", temporary="warning"),
        {"temporary": {"free_gib": 1.0, "needed_gib": 4.0}},
        ("no permission to use the container engine", "usermod -aG", "export TMPDIR=/var/tmp"),
        FakeEdges(
            _silent("unix:///nowhere/docker.sock", PermissionError(13, "Permission denied")),
            spaces={"/tmp": Space(GIB, 2 * GIB, _MILLION, _MILLION), "/var/lib/docker": None},
            answers=(),
        ),
    ),
    "an engine's address that leads elsewhere": Scene(
        _docker,
        _live(engine="blocks"),
        words=("unix:///tmp/old.sock (from DOCKER_HOST)", "correct or unset DOCKER_HOST"),
        edges=FakeEdges(_silent("unix:///tmp/old.sock", FileNotFoundError(2, "No such file"), "DOCKER_HOST")),
    ),
    "an engine on another machine": Scene(
        _docker, _live(disk=""), edges=FakeEdges(EngineState(running("docker").info, data_root=""))
    ),
    "an engine in a virtual machine": Scene(
        fedora_halo,
        itself(engine="blocks"),
        words=("Docker Desktop's virtual machine", "docker context use default"),
        edges=FakeEdges(running("docker", system="Docker Desktop")),
    ),
    "rootless Docker": Scene(
        fedora_halo,
        itself(engine="warning"),
        {"engine": {"kind": "docker", "rootless": True}},
        ("it cannot hand on the groups",),
        FakeEdges(running("docker", rootless=True)),
    ),
    "named devices, good and of another day": Scene(
        lambda tree: (
            fedora_halo(tree)
            .put("etc/cdi/amd.json", json.dumps(_cdi("amd.com/gpu", "renderD128")))
            .put("etc/cdi/nvidia.json", json.dumps(_cdi("nvidia.com/gpu", "renderD140")))
            .put("etc/cdi/torn.json", "{")
            .put("var/run/cdi/amd.json", json.dumps(_cdi("amd.com/gpu", "renderD128", "renderD129")))
        ),
        podman(cdi="ok warning"),
        {"cdi": {"path": "/etc/cdi/amd.json"}},
        (
            "/dev/dri/renderD129, which this machine does not have",
            "amd-ctk cdi generate --output=/var/run/cdi/amd.json",
        ),
    ),
    "a full disk, vfs, and settings that cannot be right": Scene(
        _docker,
        _live(engine="warning", disk="blocks", temporary="blocks", network="blocks"),
        {"disk": {"path": "/srv/docker", "free_gib": 5.0, "needed_gib": 10.0}},
        ("every layer, and every container, is a full copy", "TMPDIR is /nowhere", "--ca-bundle names /x"),
        FakeEdges(
            running("docker", storage="vfs", root="/srv/docker"),
            spaces={"/srv/docker": Space(5 * GIB, 50 * GIB, _MILLION, _MILLION)},
            answers=InputError("--ca-bundle names /x, which is not a file", cure="correct or unset it"),
        ),
        env={"TMPDIR": "/nowhere"},
    ),
    "a user's Podman without fuse-overlayfs": Scene(
        fedora_halo,
        itself(engine="warning"),
        {"engine": {"storage": "vfs", "rootless": True}},
        (
            "every layer, and every container, is a full copy | reset the store, which removes its images and ",
            "write driver = 'overlay' under [storage] in ~/.config/containers/storage.conf | podman system reset\n",
        ),
        FakeEdges(running("podman", rootless=True, storage="vfs")),
    ),
    "the same on a kernel that cannot mount for a user": Scene(
        lambda tree: fedora_halo(tree).put("proc/sys/kernel/osrelease", "5.10.0-28-amd64\n"),
        itself(engine="warning", kernel="warning"),
        words=("| install fuse-overlayfs, then reset the store", "install fuse-overlayfs | podman system reset\n"),
        edges=FakeEdges(running("podman", rootless=True, storage="vfs")),
    ),
    "vfs of root's Podman": Scene(
        fedora_halo,
        itself(engine="warning"),
        words=("in /etc/containers/storage.conf | sudo podman system reset\n",),
        edges=FakeEdges(running("podman", storage="vfs")),
    ),
    "a disk that is nearly full": Scene(
        _docker,
        _live(disk="warning"),
        {"disk": {"free_gib": 15.0, "needed_gib": 10.0}},
        edges=FakeEdges(running("docker"), spaces={"/var/lib/docker": Space(15 * GIB, 50 * GIB, _MILLION, _MILLION)}),
    ),
    "a disk out of inodes, and /tmp too": Scene(
        _docker,
        _live(disk="blocks", temporary="warning"),
        {"disk": {"inodes_free": 1000}, "temporary": {"inodes_free": 999}},
        edges=FakeEdges(
            running("docker"),
            spaces={
                "/var/lib/docker": Space(90 * GIB, 99 * GIB, 1000, _MILLION),
                "/tmp": Space(90 * GIB, 99 * GIB, 999, _MILLION),
            },
        ),
    ),
    "images on a network drive": Scene(
        lambda tree: fedora_halo(tree).put(
            "proc/self/mountinfo",
            "1 0 0:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:2 / /home rw shared:1 - nfs4 srv:/home rw\n",
        ),
        podman(disk="blocks"),
        {"disk": {"file_system": "nfs4", "path": "/home/kim/.local/share/containers/storage"}},
    ),
    "images where the configuration says": Scene(
        lambda tree: (
            fedora_halo(tree)
            .put("home/kim/.config/containers/storage.conf", '[storage]\ngraphroot = "/srv/images"\n')
            .put("proc/self/mountinfo", "1 0 0:1 / /srv rw - cifs //nas/x rw\n")
        ),
        podman(disk="blocks"),
        {"disk": {"file_system": "cifs", "path": "/srv/images"}},
    ),
    "no sub-ids": Scene(
        lambda tree: fedora_halo(tree).put("etc/subuid", "root:100000:65536\n"),
        podman(subids="blocks"),
        {"subids": {"held": 0, "needed": 65536}},
        ("kim has no ids in /etc/subuid", "--add-subuids 165536-231071 --add-subgids 165536-231071 kim"),
    ),
    "too few sub-ids, in two ranges": Scene(
        lambda tree: fedora_halo(tree).put("etc/subgid", "kim:100000:1000\n1000:300000:64535\n"),
        podman(subids="blocks"),
        {"subids": {"held": 65535}},
        ("kim has 65535 ids in /etc/subgid", "--add-subuids 427680-493215"),
    ),
    "sub-ids that are somebody else's as well, Docker answers": Scene(
        lambda tree: fedora_halo(tree).put("etc/subuid", "kim:100000:65536\nlee:130000:65536\n"),
        itself(subids="warning"),
        {"subids": {"other": "lee"}},
        edges=FakeEdges(running("docker")),
    ),
    "sub-ids from a directory service": Scene(
        lambda tree: fedora_halo(tree).put("etc/nsswitch.conf", "passwd: sss files\nsubid: sss\n"),
        podman(subids="unknown"),
    ),
    "no user namespaces, no newuidmap, no crun": Scene(
        lambda tree: (
            fedora_halo(tree).put("proc/sys/user/max_user_namespaces", "0\n").drop("usr/bin/newuidmap", "usr/bin/crun")
        ),
        podman(subids="blocks", namespaces="blocks", runtime="blocks"),
        words=("newuidmap is missing", "user.max_user_namespaces is 0", "crun is missing"),
    ),
    "a hardened kernel": Scene(
        lambda tree: fedora_halo(tree).put("proc/sys/kernel/unprivileged_userns_clone", "0\n"),
        podman(namespaces="blocks"),
        words=("kernel.unprivileged_userns_clone=1",),
    ),
    "AppArmor, and runc by configuration, beside Docker": Scene(
        lambda tree: (
            noble_halo(tree)
            .rootless()
            .put("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
            .put("home/kim/.config/containers/containers.conf", '[engine]\nruntime = "/usr/sbin/runc"\n')
        ),
        podman(namespaces="warning", runtime="warning"),
        words=("told to use /usr/sbin/runc",),
    ),
    "hybrid control groups, rootless Podman": Scene(
        lambda tree: (
            fedora_halo(tree).drop("sys/fs/cgroup/cgroup.controllers").put("sys/fs/cgroup/unified/cgroup.controllers")
        ),
        podman(cgroups="blocks"),
        {"cgroups": {"mode": "hybrid"}},
        ("--args=systemd.unified_cgroup_hierarchy=1",),
    ),
    "old control groups, Docker alone": Scene(
        lambda tree: noble_halo(tree).drop("sys/fs/cgroup/cgroup.controllers").put("sys/fs/cgroup/memory/tasks"),
        docker(),
        {"cgroups": {"mode": "old"}},
    ),
    "old control groups, Podman beside Docker, no GPU": Scene(
        lambda tree: bare(tree, "docker", "podman", "crun", "newuidmap").put("sys/fs/cgroup/memory/tasks"),
        expects(gpu="advice", engine="unknown", subids="warning", namespaces="ok", cgroups="warning", disk="unknown"),
        {"cgroups": {"mode": "old"}},
    ),
    "SELinux enforcing, rootless Podman": Scene(
        lambda tree: selinux(fedora_halo(tree), "0 0", "0 0"),
        podman(selinux="blocks"),
        words=("setsebool -P container_use_devices 1",),
    ),
    "SELinux enforcing, devices allowed": Scene(
        lambda tree: selinux(fedora_halo(tree), "1 1", "1 1"), podman(selinux="ok")
    ),
    "SELinux enforcing, only /dev/dri allowed": Scene(
        lambda tree: selinux(fedora_halo(tree), "0 0", "1 1"), podman(selinux="advice"), words=("hsa_device_t",)
    ),
    "SELinux enforcing, its switches hidden": Scene(
        lambda tree: fedora_halo(tree).put("sys/fs/selinux/enforce", "1"), podman(selinux="unknown")
    ),
    "SELinux enforcing, Docker": Scene(
        lambda tree: selinux(noble_halo(tree), "0 0", "0 0"), docker(selinux="advice"), words=("selinux-enabled",)
    ),
    "SELinux that only warns": Scene(
        lambda tree: fedora_halo(tree).put("sys/fs/selinux/enforce", "0"), podman(selinux="ok")
    ),
    "SELinux enforcing, no GPU": Scene(
        lambda tree: _docker(tree).put("sys/fs/selinux/enforce", "1"),
        _live(selinux="ok"),
        edges=FakeEdges(running("docker")),
    ),
    "a disk full of large files only": Scene(
        _docker,
        _live(disk="warning"),
        {"disk": {"inodes_free": 300_000}},
        edges=FakeEdges(running("docker"), spaces={"/var/lib/docker": Space(90 * GIB, 99 * GIB, 300_000, _MILLION)}),
    ),
    "a file system without inodes": Scene(
        _docker,
        _live(),
        edges=FakeEdges(
            EngineState(running("docker").info, Problem(""), "/var/lib/docker"),
            spaces={"/var/lib/docker": Space(90 * GIB, 99 * GIB, 0, 0)},
        ),
    ),
}
