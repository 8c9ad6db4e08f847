"""One machine: what one does with a box on a desk. It is switched on, logged into, broken, and its plug pulled."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from strix_finetune.engine.podman_conf import HostFacts, configuration
from tests.machines.cgroups import Cgroups
from tests.machines.switch import Switch

HOME = "/srv/strix"
_INSIDE = Path(__file__).with_name("inside.py")
_SPACES = ("--net", "--uts", "--mount", "--pid", "--ipc", "--cgroup", "--fork", "--kill-child", "--mount-proc")
_TOGETHER = ("setpriv", "--pdeathsig", "KILL", "--")
# in a folder that is called after the processor; where it is not installed all clocks are right
_FAKETIME = next(map(str, Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), "")
_SSHD = """\
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
UseDNS no
PidFile none
"""
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
[storage.options]
additionalimagestores = [{stores}]
"""


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@dataclass(eq=False)
class Machine:
    """A box with two network interfaces: one to the office, one to its neighbours alone.

    `office` and `link`: the interfaces' names, which differ from box to box. `address` is that of the link,
    `office_address` the one that its name stands for. `stores`: image stores of this host that it may read.
    """

    name: str
    root: Path
    office: str
    link: str
    number: int
    switches: Mapping[str, Switch]
    stores: Sequence[Path] = ()
    service: bool = False
    _unshare: subprocess.Popen[bytes] | None = None
    _pid: int = 0
    _groups: Cgroups = field(init=False)
    _clock: str = ""

    def __post_init__(self) -> None:
        self._groups = Cgroups(self.name)
        for folder in ("etc/ssh", "etc.work", "etc/containers", "home/.ssh", "containers"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "home/.ssh").chmod(0o700)
        keygen(self.root / "etc/ssh/ssh_host_ed25519_key", self.name)
        users = Path("/etc/passwd").read_text().splitlines()[1:]
        self._write("passwd", "\n".join([f"root:x:0:0:root:{HOME}:/bin/bash", *users, ""]))
        self._write("hostname", f"{self.name}\n")
        # nobody answers here
        self._write("resolv.conf", "options timeout:1 attempts:1\n")
        stores = ", ".join(f'"/srv/store{number}"' for number, _ in enumerate(self.stores))
        self._write("containers/storage.conf", _STORAGE.format(stores=stores))
        self._configure()

    @property
    def office_address(self) -> str:
        return f"192.168.77.{self.number}"

    @property
    def address(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def home(self) -> Path:
        """Its home, as this host sees it, also while it is off."""
        return self.root / "home"

    @property
    def running(self) -> bool:
        return self._unshare is not None and self._unshare.poll() is None

    @property
    def host_key(self) -> str:
        """The public half, as known_hosts has it."""
        return " ".join((self.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])

    def start(self) -> None:
        """Switch it on; it has started when this returns."""
        assert not self.running
        self._groups.make()
        services = {"sshd": ["/usr/sbin/sshd", "-D", "-e"]}
        if self.service:
            services["podman"] = ["podman", "system", "service", "--time", "0", "unix:///run/podman/podman.sock"]
        said = {
            "name": self.name,
            "root": str(self.root),
            "home": HOME,
            "stores": [str(store) for store in self.stores],
            "cgroups": self._groups.seen,
            "services": services,
        }
        script = f'{self._groups.joining}; exec unshare {" ".join(_SPACES)} "$@"'
        log = self.root / "start.log"
        self._unshare = subprocess.Popen(
            ["sh", "-c", script, "sh", sys.executable, "-I", str(_INSIDE), json.dumps(said)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            stderr=log.open("wb"),
            start_new_session=True,
        )
        assert self._unshare.stdout
        assert self._unshare.stdout.readline() == b"ready\n", f"{self.name} does not start: {log.read_text()}"
        self._pid = int(Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text())
        for kind, interface, address in (
            ("office", self.office, self.office_address),
            ("link", self.link, self.address),
        ):
            hardware = f"02:00:00:{len(kind):02x}:00:{self.number:02x}"
            self.switches[kind].plug_in(self.name, self._pid, interface, hardware)
            self.well("ip", "address", "add", f"{address}/24", "dev", interface)
            self.well("ip", "link", "set", interface, "up")

    def kill(self) -> None:
        """Pull the plug: nobody hears a word from it any more."""
        if not self.running:
            return
        for switch in self.switches.values():
            switch.unplug(self.name)
        self._end()

    def unplug(self, kind: str = "link") -> None:
        """Pull one cable; the machine lives on."""
        self.switches[kind].unplug(self.name)

    def stop(self) -> None:
        """Switch it off and forget its containers and cgroups, whatever state it is in."""
        self._end()
        self._groups.remove()

    def _end(self) -> None:
        if self._unshare is None:
            return
        with suppress(ProcessLookupError):
            if self._pid:
                os.kill(self._pid, signal.SIGKILL)
            self._unshare.kill()
        self._unshare.wait()
        for stream in (self._unshare.stdin, self._unshare.stdout):
            assert stream
            stream.close()
        self._unshare, self._pid = None, 0

    def popen(
        self, *command: str, env: Mapping[str, str] | None = None, cwd: str = HOME, **options: int
    ) -> subprocess.Popen[str]:
        """Start a command in it, which ends when the process that is returned is killed.

        `inner` tells its own process id, since other signals stop at what is in between.
        """
        enter = ("nsenter", "--target", str(self._pid), "--all", f"--wdns={cwd}", "--", *_TOGETHER)
        return subprocess.Popen(
            [*enter, *command],
            env={**environment(), **(env or {})},
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},  # type: ignore[call-overload]
        )

    def run(self, *command: str, env: Mapping[str, str] | None = None, cwd: str = HOME, timeout: float = 120) -> Said:
        """Run a command in it, as its user would at the keyboard."""
        with self.popen(*command, env=env, cwd=cwd) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return Said(process.returncode, out, err)

    def well(self, *command: str, **options: str) -> str:
        """The same for what must end well; returns what it printed."""
        said = self.run(*command, **options)  # type: ignore[arg-type]
        assert said.code == 0, f"{self.name}: {' '.join(command)} ended with {said.code}: {said.err}"
        return said.out

    # how it may be broken

    def block(self, *ports: str) -> None:
        """Its firewall drops what comes to these TCP and UDP ports ("29401:29499") over the link, without a word."""
        for port in ports:
            for protocol in ("tcp", "udp"):
                rule = ("INPUT", "-i", self.link, "-p", protocol, "--dport", port, "-j", "DROP")
                self.well("iptables", "-A", *rule)

    def unblock(self) -> None:
        self.well("iptables", "-F", "INPUT")

    def mtu(self, size: int) -> None:
        """The largest packet that its link sends, whatever the switch takes: 1500 unless that was changed, too."""
        # what leaves it must be packets of that size already, as on a cable
        self.well("ethtool", "-K", self.link, "tso", "off", "gso", "off", "gro", "off")
        self.well("ip", "link", "set", self.link, "mtu", str(size))

    def loopback_hostname(self, wrong: bool = True) -> None:
        """Its own name stands for 127.0.1.1, as Debian's installer writes it."""
        hosts = Path(f"/proc/{self._pid}/root/etc/hosts") if self.running else self.root / "etc/hosts"
        lines = [line for line in hosts.read_text().splitlines() if not line.startswith("127.0.1.1")]
        hosts.write_text("\n".join([*([f"127.0.1.1 {self.name}"] if wrong else []), *lines, ""]))

    def clock(self, offset: str = "") -> None:
        """What sshd starts and what runs in its containers sees another time ("+90s"); nothing: the right one.

        It takes effect when the machine is started.
        """
        assert not self.running
        assert _FAKETIME or not offset, "libfaketime is not installed"
        self._clock = offset
        self._configure()

    def take(self, port: int) -> subprocess.Popen[str]:
        """Another program listens on that port of all its addresses, until it is killed."""
        script = f"import socket; s = socket.create_server(('', {port})); print('taken', flush=True); s.accept()"
        process = self.popen(sys.executable, "-I", "-c", script)
        assert process.stdout
        assert process.stdout.readline() == "taken\n"
        return process

    def _configure(self) -> None:
        """What depends on the clock: sshd's and Podman's settings."""
        lie = {"LD_PRELOAD": _FAKETIME, "FAKETIME": self._clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        words = " ".join(f"{name}={value}" for name, value in lie.items())
        self._write("ssh/sshd_config", _SSHD + (f"SetEnv {words}\n" if self._clock else ""))
        conf = configuration(HostFacts.read(os.environ), root=True)
        if self._clock:
            more = f"env = {json.dumps([f'{name}={value}' for name, value in lie.items()])}\n"
            more += f'volumes = ["{_FAKETIME}:{_FAKETIME}:ro"]\n'
            conf = conf.replace("[containers]\n", "[containers]\n" + more) if "[containers]" in conf else more + conf
        self._write("containers/containers.conf", conf)

    def _write(self, path: str, text: str) -> None:
        (self.root / "etc" / path).write_text(text)


def environment() -> dict[str, str]:
    """What a login on such a machine has; nothing of the settings of this host's engines."""
    path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "HOME": HOME, "USER": "root", "LOGNAME": "root", "LANG": "C.UTF-8", "TERM": "dumb"}


def inner(process: subprocess.Popen[str]) -> int:
    """The process id, on this host, of what `popen` runs in a machine."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def keygen(path: Path, comment: str) -> None:
    """A key pair without a passphrase, once."""
    if not path.exists():
        program = shutil.which("ssh-keygen") or "ssh-keygen"
        subprocess.run([program, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)], check=True)
