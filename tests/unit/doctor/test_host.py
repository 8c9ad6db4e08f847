"""Reading below a root: nothing leads out of it, nothing raises, and what was read is noted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strix_finetune.doctor import distro, user
from strix_finetune.doctor.host import OWNERS, Host, Owner, number
from strix_finetune.doctor.inside import inside
from strix_finetune.doctor.registry import CHECKS, examine
from tests.unit.doctor.hosts import TARGETS, Tree
from tests.unit.doctor.scenes import fedora_halo, noble_halo
from tests.unit.doctor.test_hosts import SCENES


def test_links_stay_below_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/os-release").write_text("ID=fedora\n")
    (root / "etc").mkdir()
    (root / "etc/os-release").symlink_to("../usr/lib/os-release")
    (root / "etc/absolute").symlink_to("/usr/lib/os-release")
    (root / "etc/up").symlink_to("../../../../../../../../usr/lib/os-release")
    (root / "lib").symlink_to("usr/lib")
    (root / "loop").symlink_to("loop")
    host = Host(root)
    for path in ("etc/os-release", "/etc/absolute", "etc/up", "lib/os-release", "../../usr/lib/os-release"):
        assert host.text(path) == "ID=fedora\n", path
    assert host.text("loop") is None
    assert host.text("a\0b") is None
    assert host.names("lib") == ("os-release",)
    assert distro.find(host).family == "fedora"
    assert inside(root, "etc/nowhere/x") == root / "etc/nowhere/x"


@given(path=st.text(alphabet="ab./", max_size=30))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_path_leads_out(path: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True, exist_ok=True)
    if not (root / "b").is_symlink():
        (root / "b").symlink_to("/a/../../..")
    found = inside(root, path)
    assert found is not None
    assert found.is_relative_to(root)


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe1\n")
    host = Host(tmp_path)
    assert host.text("pipe") is None
    assert host.text("folder") is None
    assert host.number("binary") is None
    assert host.data("binary", 2) == b"\xff\xfe"
    assert host.names("binary") == ()


def test_what_was_read_is_noted(tmp_path: Path) -> None:
    Tree(tmp_path).put("etc/passwd").put("sys/x/2/y", "1").put("sys/x/10/y", "2")
    host = Host(tmp_path)
    host.text("etc/passwd")
    view = host.view()
    assert view.text("/etc/passwd") == ""
    assert view.text("etc/shadow") is None
    assert view.glob("sys/x/*/y") == ("sys/x/2/y", "sys/x/10/y")
    assert view.seen() == (("/etc/passwd", "/sys/x"), ("/etc/shadow",))
    assert host.seen() == (("/etc/passwd",), ())


def test_owners_of_a_copied_tree(tmp_path: Path) -> None:
    tree = Tree(tmp_path).put("dev/kfd").put("dev/other")
    host = Host(tree.put(OWNERS, "660 0 992 /dev/kfd\nnonsense\n999 0 x /dev/other\n").root)
    assert host.owner("/dev/kfd") == Owner(0o660, 0, 992)
    own = host.owner("dev/other")
    assert own is not None
    assert own.uid == os.getuid()
    assert host.owner("dev/none") is None


@pytest.mark.parametrize(
    ("owner", "allowed"),
    [
        (Owner(0o660, 0, 105), True),
        (Owner(0o660, 0, 44), False),
        (Owner(0o666, 0, 44), True),
        (Owner(0o606, 0, 105), False),
        (Owner(0o066, 1000, 105), False),
        (Owner(0o600, 1000, 0), True),
    ],
)
def test_the_first_class_that_applies_decides(owner: Owner, allowed: bool) -> None:
    kim = user.User("kim", 1000, "/home/kim", frozenset({105}), frozenset({44, 105}))
    assert kim.may_use(owner) is allowed
    assert kim.may_after_login(Owner(0o660, 0, 44))


def test_sudo_speaks_of_the_person_behind_it(tmp_path: Path) -> None:
    tree = noble_halo(Tree(tmp_path)).user(uid=0, env="SUDO_UID=1000\0")
    found = user.find(Host(tree.root))
    assert found == user.User("kim", 1000, "/home/kim", frozenset({39, 105, 1000}), frozenset({39, 105, 1000}), True)
    # sudo to an ordinary account is that account
    tree.user(uid=1000, groups=(7,), env="SUDO_UID=1001\0")
    found = user.find(Host(tree.root))
    assert found is not None
    assert (found.name, found.groups, found.stands_for) == ("kim", {7, 1000}, False)
    tree.user(uid=0, members=False, env="SUDO_UID=1000\0")
    assert "kim may not open /dev/kfd" in "".join(result.finding.says for result in tree.report().results)


def test_numbers() -> None:
    assert [number(text) for text in ("12", " 12\n", "x", "", "-1", "9" * 5000)] == [12, 12, None, None, -1, None]
    assert (number("0x1002", 0), number("1002", 16)) == (0x1002, 0x1002)


def test_this_machine_within_a_second() -> None:
    """No GPU is needed for that, and none is missed."""
    fastest, report = 60.0, None
    for _ in range(3):
        began = time.perf_counter()
        report = examine(Host(env=os.environ, targets=TARGETS))
        fastest = min(fastest, time.perf_counter() - began)
    assert fastest < 1
    assert report is not None
    assert report.root == "/"
    assert report.results
    assert not [result for result in report.results if "a fault in this check" in result.finding.says]


def test_a_check_that_fails_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Host) -> tuple[()]:
        raise RuntimeError("it\nbroke")

    from strix_finetune.doctor import registry
    from strix_finetune.doctor.values import Check

    bad = Check("bad", "", "", ("unknown",), broken)
    monkeypatch.setattr(registry, "CHECKS", (bad, *CHECKS))
    report = fedora_halo(Tree(tmp_path)).report()
    assert report.results[0].finding.says == "a fault in this check itself (RuntimeError: it broke)"
    assert len(report.results) > 10


# the machines with the most to read
_BASE = ("Fedora 43, Strix Halo", "MI300X server", "leftovers of old guides", "firmware left by AMD's driver", "WSL2")
_GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=80).map(str.encode),
    st.sampled_from(
        ["-1", "0", str(1 << 63), "9" * 5000, "[[[", "{" * 3000, "a=b\nc d e f\n::::\n", "1:2:3:4\n-:-\n"]
    ).map(str.encode),
)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Path]]]:
    """Full machines by name, each with its files."""
    found = {}
    for index, name in enumerate(_BASE):
        tree = Tree(tmp_path_factory.mktemp("machine") / str(index))
        SCENES[name].build(tree)
        tree.put("etc/docker/daemon.json", "{}").put("home/kim/.config/containers/storage.conf", "[storage]")
        tree.put("etc/containers/containers.conf").put("sys/fs/selinux/enforce", "1").put("etc/nsswitch.conf")
        tree.put("usr/lib/sysimage/rpm/rpmdb.sqlite").put("proc/self/mountinfo").put("etc/modprobe.d/x.conf")
        tree.put("sys/kernel/debug/dri/1/amdgpu_firmware_info").put("etc/cdi/amd.json", "{}")
        tree.put("lib/firmware/amdgpu/gc_11_5_1_mes_2.bin.xz").put(OWNERS)
        found[name] = tree.root, sorted(path for path in tree.root.rglob("*") if path.is_file())
    return found


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_garbage_in_any_file_raises_nothing(data: st.DataObject, machines: dict[str, tuple[Path, list[Path]]]) -> None:
    root, files = machines[data.draw(st.sampled_from(_BASE))]
    chosen = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=6, unique=True))
    before = {path: path.read_bytes() for path in chosen}
    try:
        for path in chosen:
            path.write_bytes(data.draw(_GARBAGE))
        host = Host(root, targets=TARGETS)
        for check in CHECKS:
            for finding in check.run(host.view()):
                assert finding.verdict in check.verdicts
    finally:
        for path, content in before.items():
            path.write_bytes(content)
