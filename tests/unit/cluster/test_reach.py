"""Nodes are reached by the real OpenSSH over a real sshd; what answers behind it is a small HTTP server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from strix_finetune.cluster import reach, remote, sshlink
from strix_finetune.cluster.file import read
from strix_finetune.cluster.nodes import Node
from strix_finetune.engine.podman_conf import HostFacts
from strix_finetune.errors import WorkError
from tests.sshd import Sshd, serving


@contextmanager
def engine_at(path: Path, name: str = "Engine") -> Iterator[None]:
    """What an engine says of itself, at a socket."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            version = {"Version": "27.1", "ApiVersion": "1.46", "Components": [{"Name": name}]}
            body = json.dumps(version if self.path.endswith("/version") else {"SecurityOptions": []}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

        def address_string(self) -> str:
            return "socket"

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with serving(tmp_path_factory.mktemp("ssh")) as sshd:
        yield sshd


@pytest.fixture
def ssh(machine: Sshd) -> Iterator[Sshd]:
    """The machine, whose client is configured anew after each test."""
    yield machine
    machine.hosts.clear()
    machine.client.clear()
    machine.trust(machine.folder / "host.pub")
    machine.configure()


def refusal(sshd: Sshd, folder: Path, nodes: str) -> list[str]:
    """The sentences, with the file as cluster.toml."""
    file = folder / "cluster.toml"
    file.write_text(nodes)
    with pytest.raises(WorkError) as caught, reach.open_nodes(read(file), sshd.env()):
        pass
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def test_an_engine_and_programs_over_there(ssh: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f'[[nodes]]\nname = "one"\nssh = "node"\nengine = "unix://{tmp_path}/e"\n')
    with engine_at(tmp_path / "e"), reach.open_nodes(read(file), ssh.env()) as (one,):
        assert one.engine.info.kind == "docker"
        assert one.engine.info.url == f"{tmp_path}/e on one"
        assert one.node.address == "127.0.0.1"  # the end of the connection
        assert one.run(["printf", "%s|", "a b", "$HOME 'x' \"y\""]) == "a b|$HOME 'x' \"y\"|"
        assert one.run(["cat"], stdin=b"data") == "data"
        assert one.try_run(["sh", "-c", "exit 7"]).code == 7
        with pytest.raises(WorkError, match=r"node one: `ls` failed: .*No such file"):
            one.run(["ls", "/nothing/there"])
        with pytest.raises(WorkError, match=r"node one: `sleep 5` did not end within 0.5 s"):
            one.run(["sleep", "5"], seconds=0.5)


def test_forwardings_of_the_users_configuration_are_left_out(ssh: Sshd, tmp_path: Path) -> None:
    """Each client of a connection would ask for them again, and fail where their port is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        ports = [one.getsockname()[1] for one in (taken, free)]
        free.close()
        file = tmp_path / "cluster.toml"
        file.write_text(f'[[nodes]]\nname = "one"\nssh = "node"\nengine = "unix://{tmp_path}/e"\n')
        for key, port in (("LocalForward", ports[0]), ("RemoteForward", ports[0]), ("LocalForward", ports[1])):
            ssh.client |= {key: f"127.0.0.1:{port} 127.0.0.1:1", "ExitOnForwardFailure": "yes"}
            ssh.configure()
            with engine_at(tmp_path / "e"), reach.open_nodes(read(file), ssh.env()) as (one,):
                assert one.engine.info.kind == "docker"
                ran = one.try_run(["echo", "here"])
                assert (ran.code, ran.out, ran.err) == (0, "here\n", "")
                with one.popen(["cat"]) as streamed:
                    assert streamed.communicate(b"data") == (b"data", b"")
                with socket.socket() as probe:
                    assert (probe.connect_ex(("127.0.0.1", port)) == 0) == (port == ports[0])
            (tmp_path / "e").unlink()
            del ssh.client[key]


def test_nothing_is_left(ssh: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    original = reach.tempfile.mkdtemp
    monkeypatch.setattr(reach.tempfile, "mkdtemp", lambda **options: made.append(Path(original(**options))) or made[-1])
    file = tmp_path / "cluster.toml"
    file.write_text(f'[[nodes]]\nname = "one"\nssh = "node"\nengine = "unix://{tmp_path}/e"\n')

    def interrupted() -> None:
        with reach.open_nodes(read(file), ssh.env()) as (one,):
            one.run(["sh", "-c", f"echo $PPID >{tmp_path}/pid"])
            raise KeyboardInterrupt

    with engine_at(tmp_path / "e"), pytest.raises(KeyboardInterrupt):
        interrupted()
    assert made
    assert not made[0].exists()
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_killed_driver_leaves_nothing_over_there(ssh: Sshd, tmp_path: Path) -> None:
    """The shell over there ends with us, and its traps are run."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom strix_finetune.cluster.sshlink import SshLink\n"
        "from strix_finetune.cluster.nodes import Node\nimport os\n"
        "link = SshLink(Node('one', 0, 'node'), Path(sys.argv[1]), os.environ)\nlink.open()\n"
        "link.ask(f'trap \"rm {sys.argv[1]}/there\" EXIT; : >{sys.argv[1]}/there', 5)\nprint('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, env=ssh.env(), stdout=subprocess.PIPE) as driver:
        assert driver.stdout
        assert driver.stdout.readline() == b"ready\n"
        assert (tmp_path / "there").exists()
        driver.send_signal(signal.SIGKILL)
    until = time.monotonic() + 10
    while (tmp_path / "there").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not (tmp_path / "there").exists()


def test_each_refusal_of_ssh_is_a_sentence(ssh: Sshd, tmp_path: Path) -> None:
    assert refusal(ssh, tmp_path, '[[nodes]]\nssh = "no-such-host.invalid"\nname = "a"\n') == [
        (
            "cluster.toml:1: node a: the name no-such-host.invalid is not known; "
            "correct 'ssh', or give the host an address in ~/.ssh/config or DNS"
        )
    ]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ssh.hosts["off"] = port
    ssh.configure()
    # both at once, each with its line
    assert refusal(ssh, tmp_path, '[[nodes]]\nssh = "off"\n\n[[nodes]]\nssh = "nobody@node"\n') == [
        (
            f"cluster.toml:1: node off: nothing listens for ssh at 127.0.0.1 port {port}; "
            "start sshd there, or correct the port in ~/.ssh/config"
        ),
        (
            "cluster.toml:4: node node: nobody@node does not let this user in without a question (it offers publickey, "
            "keyboard-interactive); `ssh-copy-id nobody@node`, and `ssh-add` where the key has a passphrase"
        ),
    ]


def test_host_keys_are_checked(ssh: Sshd, tmp_path: Path) -> None:
    ssh.known.write_text("")
    assert refusal(ssh, tmp_path, '[[nodes]]\nssh = "node"\n') == [
        (
            "cluster.toml:1: node node: the host key of node is not known here; "
            "run `ssh node true` once, compare the fingerprint with the machine's own, and accept it"
        )
    ]
    assert ssh.known.read_text() == ""
    ssh.trust(ssh.folder / "user.pub")
    assert refusal(ssh, tmp_path, '[[nodes]]\nssh = "node"\n') == [
        (
            f"cluster.toml:1: node node: the host key of node is another one than {ssh.known} holds, so this may "
            "not be that machine; ask its owner; if the key was really renewed: `ssh-keygen -R` with its name, then "
            "`ssh node`"
        )
    ]


def test_a_machine_that_says_nothing(ssh: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sshlink, "CONNECT_SECONDS", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ssh.hosts["silent"] = silent.getsockname()[1]
        ssh.configure()
        begin = time.monotonic()
        assert refusal(ssh, tmp_path, '[[nodes]]\nssh = "silent"\n') == [
            (
                "cluster.toml:1: node silent: silent does not answer (no ssh within the time limit); "
                "check that the machine is on, the cable, and that no firewall drops ssh"
            )
        ]
        assert time.monotonic() - begin < 5


def test_a_key_that_others_may_read_and_a_wrong_configuration(ssh: Sshd, tmp_path: Path) -> None:
    shutil.copy(ssh.folder / "user", tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    ssh.client["IdentityFile"] = str(tmp_path / "key")
    ssh.configure()
    assert refusal(ssh, tmp_path, '[[nodes]]\nssh = "node"\n') == [
        "cluster.toml:1: node node: ssh will not use the private key key, because others can read it; chmod 600 key"
    ]
    ssh.client["Nonsense"] = "yes"
    ssh.configure()
    (told,) = refusal(ssh, tmp_path, '[[nodes]]\nssh = "node"\n')
    assert "ssh does not understand its configuration" in told
    assert "nonsense" in told


def test_an_engine_that_is_not_there(ssh: Sshd, tmp_path: Path) -> None:
    place = f'[[nodes]]\nssh = "node"\nengine = "unix://{tmp_path}/e"\n'
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "e"))
    assert refusal(ssh, tmp_path, place) == [
        (
            "cluster.toml:1: node node: no container engine answers at e on node, or sshd there forwards no sockets; "
            "start the engine there, or set AllowStreamLocalForwarding to yes in its sshd_config"
        )
    ]
    (tmp_path / "e").unlink()
    assert refusal(ssh, tmp_path, place) == [
        (
            "cluster.toml:1: node node: there is no engine socket at e on node; "
            "start the engine there, or correct 'engine'"
        )
    ]
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=_greet, args=(other,), daemon=True).start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert refusal(ssh, tmp_path, f'[[nodes]]\nssh = "node"\nengine = "tcp://{address}"\n') == [
            f"cluster.toml:1: node node: what answers at {address} on node is not a container engine; correct 'engine'"
        ]


def _greet(server: socket.socket) -> None:
    """A server of something else."""
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        with client:
            client.recv(10)
            client.sendall(b"220 mail ready\r\n")


def test_sshd_that_forwards_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "s", {"AllowTcpForwarding": "no", "AllowStreamLocalForwarding": "no"}) as sshd:
        place = '[[nodes]]\nssh = "node"\nengine = '
        assert refusal(sshd, tmp_path, place + '"tcp://127.0.0.1:2375"\n') == [
            (
                "cluster.toml:1: node node: sshd on node forwards no connections; "
                "set AllowTcpForwarding to yes in its sshd_config"
            )
        ]
        with engine_at(tmp_path / "e"):
            (told,) = refusal(sshd, tmp_path, place + f'"unix://{tmp_path}/e"\n')
        assert "set AllowStreamLocalForwarding to yes in its sshd_config" in told


def _programs(folder: Path, *names: str) -> Path:
    """A PATH with these programs and no others."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return folder


USUAL = ("sh", "id", "stat", "sed", "mktemp", "sleep", "rm", "grep", "tail", "env")


def test_podman_is_started_where_it_is_wanted_and_its_words_are_kept(tmp_path: Path) -> None:
    programs = _programs(tmp_path / "bin", *USUAL)
    settings = {"SetEnv": f"PATH={programs} XDG_RUNTIME_DIR={tmp_path}"}
    with serving(tmp_path / "s", settings) as sshd:
        place = '[[nodes]]\nssh = "node"\nengine = "podman"\n'
        assert refusal(sshd, tmp_path, place) == [
            "cluster.toml:1: node node: there is no podman on node; install or start it there, or give its 'engine'"
        ]
        podman = programs / "podman"
        podman.write_text('#!/bin/sh\necho "Error: no space left in /var/lib" >&2\nexit 125\n')
        podman.chmod(0o755)
        assert refusal(sshd, tmp_path, place) == [
            (
                "cluster.toml:1: node node: Podman does not start there: Error: no space left in /var/lib; "
                "run `podman info` on node to see what it lacks"
            )
        ]
        assert not list(tmp_path.glob("strix-podman-*"))


def test_a_socket_without_the_right_to_it(tmp_path: Path) -> None:
    """Said of the group that owns it; root may open everything, so the machine's own words are given here."""
    over = remote.parse(
        ["Welcome!", "strix:uid=1000", "strix:user=ada", "strix:denied=docker /var/run/docker.sock", "strix:podman="]
    )
    opened = reach._Opened({})
    try:
        with pytest.raises(WorkError) as caught:
            opened._engine(Node("one", 0, "ada@one"), None, over)  # type: ignore[arg-type]
    finally:
        opened.close()
    assert str(caught.value) == (
        "node one: ada may not use the container engine at /var/run/docker.sock; "
        "`sudo usermod -aG docker ada` there, or use rootless Podman there"
    )


def test_what_a_machine_says_of_itself() -> None:
    """The script runs on this machine's own shell, and finds what Python finds."""
    done = subprocess.run(["sh", "-s"], input=remote.LOOK, text=True, capture_output=True, check=True)
    over = remote.parse(done.stdout.splitlines())
    assert over.uid == os.getuid()
    assert over.podman == (shutil.which("podman") or "")
    assert over.facts == HostFacts.read(os.environ)
    assert over.address == ""


def test_this_machine_is_known_to_the_others_by_the_address_it_sends_from() -> None:
    here = reach.Reached(Node("head", 0), None)  # type: ignore[arg-type]
    there = reach.Reached(Node("one", 1, "one", address="127.0.0.5"), None)  # type: ignore[arg-type]
    found = reach._addressed(here, [here, there])
    assert isinstance(found, reach.Reached)
    assert found.node.address == "127.0.0.1"
    lost = reach._addressed(here, [here, replace(there, node=Node("one", 1, "one"))])
    assert isinstance(lost, reach.Unreached)
    assert str(lost.error) == "node head: no address is known by which the others reach it; give it 'address'"
