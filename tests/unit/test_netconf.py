"""The host's network settings: read from every place that holds them, lent to a step, and never printed."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from strix_finetune import netconf
from strix_finetune.errors import InputError
from strix_finetune.netconf import Flags, NetSettings, Suites, collect

TARGETS = "http://mirror.example/debian/|main/binary-amd64/Packages|/nonexistent/main_main_binary-amd64_Packages"
DUMP = """\
Acquire "";
Acquire::http "";
Acquire::http::Proxy "http://apt:secret@proxy.example:3142/";
Acquire::https::Proxy::mirror.example "DIRECT";
Acquire::http::Proxy-Auto-Detect "/usr/local/bin/detect";
Acquire::Retries "4";
Acquire::Check-Valid-Until "false";
Acquire::Check-Date "false";
Acquire::AllowInsecureRepositories "1";
Acquire::GzipIndexes "true";
APT::Get::AllowUnauthenticated "1";
"""


def host(targets: str = "", dump: str = "") -> Callable[[Sequence[str]], str]:
    return lambda command: targets if command[0] == "apt-get" else dump


def debian(root: Path) -> None:
    """Make `root` the root of a Debian host whose apt has the sources TARGETS."""
    folder = root / "var/lib/apt/lists"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main_InRelease").write_text("Origin: Debian\nLabel: Debian\n")


def settings(
    tmp_path: Path, *, targets: str = "", dump: str = "", flags: Flags | None = None, **env: str
) -> NetSettings:
    return collect(env, flags, home=tmp_path / "home", root=tmp_path, run=host(targets, dump))


def written(found: NetSettings, **options: object) -> dict[str, bytes | Path]:
    return {file.path: file.source for file in netconf.files(found, uv=False, **options)}  # type: ignore[arg-type]


def sourced(found: NetSettings, wheels: dict[tuple[str, str], set[str]] | None = None) -> dict[str, str]:
    """What a shell knows after it has read the env file."""
    env = written(found, wheels_wanted=wheels)["env"]
    assert isinstance(env, bytes)
    command = ["env", "-i", "sh", "-c", env.decode() + "export -p"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = (line.removeprefix("export ").partition("=") for line in lines)
    return {name: value.strip("'\"") for name, _, value in pairs if name != "PWD"}


def test_a_host_without_settings(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert found == NetSettings()
    assert sourced(found) == {
        "APT_CONFIG": "/mnt/apt.conf",
        "UV_LINK_MODE": "copy",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    assert sorted(written(found, suites=Suites(("sid",)))) == ["apt.conf", "env"]


def test_debians_mirror_is_found_among_the_host_sources(tmp_path: Path) -> None:
    debian(tmp_path)
    found = settings(tmp_path, targets=TARGETS)
    assert found.debian_mirror == "http://mirror.example/debian"
    made = written(found, suites=Suites(("sid", "experimental"), ("main", "contrib")))
    assert made["sources.list"] == (
        b"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
        b" http://mirror.example/debian sid main contrib\n"
        b"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
        b" http://mirror.example/debian experimental main contrib\n"
    )
    assert b'Dir::Etc::sourcelist "/mnt/sources.list";' in bytes(made["apt.conf"])


def test_flag_before_variable_before_host(tmp_path: Path) -> None:
    debian(tmp_path)
    by_variable = settings(tmp_path, targets=TARGETS, STRIX_DEBIAN_MIRROR="http://variable.example/debian")
    assert by_variable.debian_mirror == "http://variable.example/debian"
    flags = Flags(debian_mirror="http://flag.example/debian/")
    by_flag = settings(tmp_path, targets=TARGETS, flags=flags, STRIX_DEBIAN_MIRROR="http://variable.example/debian")
    assert by_flag.debian_mirror == "http://flag.example/debian"


@pytest.mark.parametrize(
    "mirror", ["mirror.example/debian", "file:///srv/debian", "http://a b/", "http://x/[trusted=yes]"]
)
def test_what_is_no_mirror(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(InputError, match="cannot be the URL of a Debian mirror"):
        settings(tmp_path, STRIX_DEBIAN_MIRROR=mirror)


def test_only_harmless_apt_options_are_lent(tmp_path: Path) -> None:
    conf = written(settings(tmp_path, dump=DUMP))["apt.conf"]
    assert bytes(conf).decode().splitlines() == [
        'Acquire::http::Proxy "http://apt:secret@proxy.example:3142/";',
        'Acquire::https::Proxy::mirror.example "DIRECT";',
        'Acquire::Retries "4";',
        'Acquire::Check-Valid-Until "false";',
        'Acquire::Check-Date "false";',
    ]


def test_proxies_come_in_both_spellings(tmp_path: Path) -> None:
    found = settings(tmp_path, HTTPS_PROXY="http://u:p w@proxy.example:8080", no_proxy="localhost,.example")
    shell = sourced(found)
    assert shell["https_proxy"] == shell["HTTPS_PROXY"] == "http://u:p w@proxy.example:8080"
    assert shell["no_proxy"] == shell["NO_PROXY"] == "localhost,.example"
    assert "http_proxy" not in shell


def test_nothing_secret_is_in_the_repr(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        dump=DUMP,
        STRIX_DEBIAN_MIRROR="https://me:hunter2@mirror.example/debian",
        https_proxy="http://me:hunter2@proxy.example",
        UV_DEFAULT_INDEX="https://me:hunter2@index.example/simple",
        UV_INDEX="a=https://me:hunter2@index.example/a",
        UV_FIND_LINKS="https://me:hunter2@links.example/",
    )
    assert "hunter2" not in repr(found)
    assert "secret" not in repr(found)
    with pytest.raises(InputError) as caught:
        settings(tmp_path, STRIX_DEBIAN_MIRROR="ftp://me:hunter2@mirror.example/debian")
    assert "hunter2" not in str(caught.value)
    assert (
        netconf.redact("E: https://me:hunter2@x.example/a 'http://t@y/'")
        == "E: https://***@x.example/a 'http://***@y/'"
    )


def test_the_ca_bundle(tmp_path: Path) -> None:
    one, two = tmp_path / "one.pem", tmp_path / "two.pem"
    one.write_text("1")
    two.write_text("2")
    assert settings(tmp_path, PIP_CERT=str(two)).ca_bundle == two
    found = settings(tmp_path, PIP_CERT=str(two), SSL_CERT_FILE=str(one))
    assert found.ca_bundle == one
    assert written(found)["ca.crt"] == one
    shell = sourced(found)
    assert {name for name, value in shell.items() if value == "/mnt/ca.crt"} == set(netconf._CA_INSIDE)
    assert b'Acquire::https::CaInfo "/mnt/ca.crt";' in bytes(written(found)["apt.conf"])
    assert found.uv_variables()["SSL_CERT_FILE"] == str(one)
    with pytest.raises(InputError, match="REQUESTS_CA_BUNDLE names /nowhere, which is not a file; correct or unset it"):
        settings(tmp_path, REQUESTS_CA_BUNDLE="/nowhere")


def test_uv_wins_over_pip_and_a_variable_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    conf = tmp_path / "etc/pip.conf"
    conf.write_text(
        "[global]\nindex-url = https://file.example/simple\nextra-index-url =\n    https://x.example/1\n    file:///opt/x\n"
        "cert = /nowhere\n[install]\ntrusted-host = x.example\n[list]\nindex-url = https://wrong.example\n"
    )
    (tmp_path / "cert.pem").write_text("")
    conf.write_text(conf.read_text().replace("/nowhere", str(tmp_path / "cert.pem")))
    found = settings(tmp_path)
    assert found.ca_bundle == tmp_path / "cert.pem"
    shell = sourced(found)
    assert shell["UV_DEFAULT_INDEX"] == "https://file.example/simple"
    assert shell["UV_INDEX"] == "https://x.example/1"
    assert shell["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert shell["UV_INSECURE_HOST"] == "x.example"
    by_pip = sourced(settings(tmp_path, PIP_INDEX_URL="https://pip.example/simple"))
    assert by_pip["UV_DEFAULT_INDEX"] == "https://pip.example/simple"
    by_uv = settings(tmp_path, PIP_INDEX_URL="https://pip.example/simple", UV_INDEX="uv=https://uv.example/simple?a=b")
    assert by_uv.indexes.variables("")["UV_INDEX"] == "uv=https://uv.example/simple?a=b"
    assert "UV_INDEX_STRATEGY" not in by_uv.indexes.variables("")
    assert "UV_DEFAULT_INDEX" not in sourced(settings(tmp_path, PIP_CONFIG_FILE="/dev/null"))


def test_the_users_files_win_over_the_systems(tmp_path: Path) -> None:
    for number, name in enumerate(("etc/xdg/pip", "etc", "home/.pip", "home/.config/pip")):
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pip.conf").write_text(f"[global]\nindex-url = https://{number}.example/\n")
        assert sourced(settings(tmp_path))["UV_DEFAULT_INDEX"] == f"https://{number}.example/"
    uv = tmp_path / "home/.config/uv"
    uv.mkdir(parents=True)
    (uv / "uv.toml").write_text(
        '[[index]]\nurl = "https://default.example"\ndefault = true\n[[index]]\nurl = "https://extra.example"\n'
        '[[index]]\nname = "hidden"\nurl = "https://explicit.example"\nexplicit = true\n'
    )
    assert sourced(settings(tmp_path))["UV_DEFAULT_INDEX"] == "https://default.example"
    assert sourced(settings(tmp_path))["UV_INDEX"] == "https://extra.example"
    assert sourced(settings(tmp_path, UV_NO_CONFIG="1"))["UV_DEFAULT_INDEX"] == "https://3.example/"


def test_indexes_on_this_disk_do_not_reach_a_step(tmp_path: Path) -> None:
    found = settings(tmp_path, PIP_INDEX_URL="file:///srv/simple", PIP_EXTRA_INDEX_URL="file:///srv/more /srv/plain")
    assert not {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY"} & sourced(found).keys()


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("pip", "[global]\nindex-url\n= = =\n [x", ":2"),
        ("pip", "index-url = x\n", ":1"),
        ("uv", "a = 1\nb = ?\n", ":2"),
    ],
)
def test_a_broken_configuration_file(tmp_path: Path, name: str, text: str, line: str) -> None:
    path = tmp_path / ("etc/pip.conf" if name == "pip" else "etc/uv/uv.toml")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InputError, match="its syntax is wrong") as caught:
        settings(tmp_path)
    assert str(caught.value).startswith(f"{path}{line}")


def wheel(folder: Path, name: str, content: bytes) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def test_only_the_wheels_that_the_lock_names_go_along(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    good = wheel(one, "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", b"good")
    wheel(one, "trl-1.15.0-py3-none-any.whl", b"changed")
    wheel(one, "numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl", b"not asked for")
    wheel(one, "not a wheel.whl", b"")
    flagged = wheel(two, "Flask_Thing-1.0-py3-none-any.whl", b"flag")
    wanted = {("torch", "2.13.0+cpu"): {good}, ("trl", "1.15.0"): {"0" * 64}, ("flask-thing", "1.0.0"): {flagged}}
    found = settings(tmp_path, flags=Flags(wheels=(two,)), PIP_FIND_LINKS=f"{one} https://links.example/w")
    assert found.wheel_folders == (two, one)
    made = {name for name in written(found, wheels_wanted=wanted) if name.startswith("wheels/")}
    assert made == {
        "wheels/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "wheels/Flask_Thing-1.0-py3-none-any.whl",
    }
    assert sourced(found, wanted)["UV_FIND_LINKS"] == "https://links.example/w,/mnt/wheels"
    assert sourced(found)["UV_FIND_LINKS"] == "https://links.example/w"
    assert found.uv_variables()["UV_FIND_LINKS"] == f"https://links.example/w,{two},{one}"
    with pytest.raises(InputError, match="the wheel folder /nowhere does not exist"):
        settings(tmp_path, flags=Flags(wheels=(Path("/nowhere"),)))


def test_uv_is_lent_as_a_program(tmp_path: Path) -> None:
    lent = {file.path: file for file in netconf.files(settings(tmp_path))}["bin/uv"]
    assert lent.executable
    assert isinstance(lent.source, Path)
    told = subprocess.run([lent.source, "--version"], capture_output=True, text=True, check=True).stdout
    assert told.startswith("uv ")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"http_proxy": "http://localhost:3128"}, True),
        ({"http_proxy": "127.0.0.1:3128"}, True),
        ({"http_proxy": "http://[::1]:3128"}, True),
        ({"http_proxy": "http://proxy.example:3128", "no_proxy": "localhost,127.0.0.1"}, False),
        ({"UV_INDEX": "here=http://u:p@localhost:8080/simple https://x.example"}, True),
        ({"STRIX_DEBIAN_MIRROR": "http://127.0.0.1:3142/debian"}, True),
    ],
)
def test_settings_on_loopback_are_told(tmp_path: Path, env: dict[str, str], expected: bool) -> None:
    assert collect(env, home=tmp_path, root=tmp_path, run=host()).loopback is expected


def test_a_host_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert collect({}, home=tmp_path, root=tmp_path) == NetSettings()


def test_pins_hold_for_a_step_and_leave_no_file(tmp_path: Path) -> None:
    pin = "Package: src:rocm-hipamd\nPin: release a=experimental\nPin-Priority: 990"
    made = written(settings(tmp_path), suites=Suites(("sid", "experimental"), pins=(pin, "Package: b")))
    assert made["preferences"] == f"{pin}\n\nPackage: b\n".encode()
    assert b'Dir::Etc::preferences "/mnt/preferences";' in bytes(made["apt.conf"])
    without = written(settings(tmp_path), suites=Suites(("sid",)))
    assert "preferences" not in without
    assert b"preferences" not in bytes(without["apt.conf"])
