"""What containers of an ordinary user need: ids, user namespaces, and a runtime that keeps groups."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from strix_finetune.doctor import distro, gpus, user
from strix_finetune.doctor.checks.engine import has_program, kind
from strix_finetune.doctor.host import Host, number
from strix_finetune.doctor.values import Check, Finding, Verdict

_NEEDED = 65536
_FIRST = 100000


@dataclass(frozen=True, slots=True)
class _Range:
    owner: str
    start: int
    count: int


def subids(host: Host) -> Iterator[Finding]:
    who = _person(host)
    if who is None:
        return
    verdict = _severity(host)
    if not has_program(host, "newuidmap"):
        yield Finding(
            verdict,
            "newuidmap is missing, without which a user's containers have one id alone",
            "install it",
            distro.install(distro.find(host), "uidmap", "shadow-utils", "shadow", "shadow"),
        )
        return
    if "sss" in _nss(host):
        yield Finding("unknown", "sub-ids come from a directory service (sssd)")
        return
    both = {path: _ranges(host.text(path) or "") for path in ("etc/subuid", "etc/subgid")}
    for path, ranges in both.items():
        own = [item for item in ranges if item.owner in (who.name, str(who.uid))]
        held = sum(item.count for item in own)
        if held < _NEEDED:
            start = _free(both["etc/subuid"] + both["etc/subgid"])
            span = f"{start}-{start + _NEEDED - 1}"
            has = f"has {held} ids" if held else "has no ids"
            yield Finding(
                verdict,
                f"{who.name} {has} in /{path}, and images need {_NEEDED}",
                "add a range, and let Podman take notice",
                (f"sudo usermod --add-subuids {span} --add-subgids {span} {who.name}", "podman system migrate"),
                {"held": held, "needed": _NEEDED},
            )
            return
        clash = next((other for item in own for other in ranges if _clash(item, other)), None)
        if clash:
            yield Finding(
                "warning",
                f"{who.name}'s ids in /{path} are also {clash.owner}'s: each can touch files of the other's containers",
                "give one of them another range",
                data={"other": clash.owner},
            )
            return
    yield Finding("ok", f"{who.name} has {held} sub-ids", data={"held": held, "needed": _NEEDED})


def namespaces(host: Host) -> Iterator[Finding]:
    """Switches of the kernel and of AppArmor that forbid user namespaces."""
    who = _person(host)
    if who is None:
        return
    verdict = _severity(host)
    if host.number("proc/sys/user/max_user_namespaces") == 0:
        yield _forbidden(verdict, "user.max_user_namespaces", "15000", 0)
    elif host.number("proc/sys/kernel/unprivileged_userns_clone") == 0:
        yield _forbidden(verdict, "kernel.unprivileged_userns_clone", "1", 0)
    elif host.number("proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1 and not any(
        host.exists(f"etc/apparmor.d/{name}") for name in ("podman", "usr.bin.podman")
    ):
        yield Finding(
            "warning",
            "AppArmor forbids user namespaces to programs without a profile, and Podman has none here",
            "install the distribution's profile (package apparmor), or Podman from the distribution",
        )
    else:
        yield Finding("ok", "ordinary users may make user namespaces")


def runtime(host: Host) -> Iterator[Finding]:
    """crun alone hands the user's groups on, and with them the right to open the devices."""
    if _person(host) is None or not gpus.find(host):
        return
    chosen = _configured(host)
    verdict = _severity(host)
    if chosen and "crun" not in chosen:
        yield Finding(
            verdict,
            f"Podman is told to use {chosen}, which silently drops the groups that may open the GPU",
            "remove the line `runtime` from containers.conf",
            data={"runtime": chosen},
        )
    elif not has_program(host, "crun"):
        yield Finding(
            verdict,
            "crun is missing; other runtimes silently drop the groups that may open the GPU",
            "install it",
            distro.install(distro.find(host), "crun"),
        )
    else:
        yield Finding("ok", "crun is there, which keeps the groups that may open the GPU")


def _person(host: Host) -> user.User | None:
    """The user whose rootless Podman this is about; None where there is none."""
    who = user.find(host)
    return who if who and not who.root and has_program(host, "podman") else None


def _severity(host: Host) -> Verdict:
    """What stops Podman stops the work only where Podman does the work."""
    return "blocks" if kind(host) == "podman" else "warning"


def _forbidden(verdict: Verdict, name: str, value: str, found: int) -> Finding:
    return Finding(
        verdict,
        f"{name} is {found}: ordinary users may make no containers",
        f"set it to {value}",
        (f"echo {name}={value} | sudo tee /etc/sysctl.d/90-containers.conf", "sudo sysctl --system"),
        {name: found},
    )


def _ranges(text: str) -> list[_Range]:
    found = []
    for line in text.splitlines():
        fields = line.split("#")[0].strip().split(":")
        if len(fields) == 3:
            start, count = number(fields[1]), number(fields[2])
            if start is not None and count is not None and start >= 0 and count > 0:
                found.append(_Range(fields[0], start, count))
    return found


def _free(ranges: list[_Range]) -> int:
    end = max((item.start + item.count for item in ranges), default=_FIRST)
    return max(_FIRST, -(-(end - _FIRST) // _NEEDED) * _NEEDED + _FIRST)


def _clash(one: _Range, other: _Range) -> bool:
    return one.owner != other.owner and one.start < other.start + other.count and other.start < one.start + one.count


def _nss(host: Host) -> str:
    lines = (host.text("etc/nsswitch.conf") or "").splitlines()
    return next((line.partition(":")[2] for line in lines if line.startswith("subid:")), "")


def _configured(host: Host) -> str:
    """The runtime that a containers.conf names: the user's own file before the system's."""
    who = user.find(host)
    homes = [f"{who.home}/.config/containers/containers.conf"] if who else []
    for path in (*homes, "etc/containers/containers.conf"):
        try:
            engine = tomllib.loads(host.text(path) or "").get("engine")
        except (ValueError, RecursionError):
            continue
        if isinstance(engine, dict) and isinstance(engine.get("runtime"), str):
            return str(engine["runtime"])
    return ""


CHECKS = (
    Check(
        "subids",
        "Without a range of 65536 sub-ids an image cannot be unpacked: its files belong to ids that do not exist.",
        "https://github.com/containers/podman/blob/main/docs/tutorials/rootless_tutorial.md",
        ("ok", "warning", "blocks", "unknown"),
        subids,
    ),
    Check(
        "namespaces",
        "Hardened kernels and AppArmor forbid ordinary users the namespaces that rootless containers are made of.",
        "https://github.com/containers/podman/blob/main/troubleshooting.md",
        ("ok", "warning", "blocks"),
        namespaces,
    ),
    Check(
        "runtime",
        "Rootless Podman reaches the GPU through the user's own groups (keep-groups), which only crun hands on; with "
        "runc the option is taken and does nothing.",
        "https://github.com/containers/podman/issues/10166",
        ("ok", "warning", "blocks"),
        runtime,
    ),
)
