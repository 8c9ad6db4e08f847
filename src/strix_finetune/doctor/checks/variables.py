"""Variables from old guides, which break ROCm from afar: in this environment, or in a file that sets them at login."""

from __future__ import annotations

import re
from collections.abc import Iterator

from strix_finetune.doctor import gpus, user
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding, Verdict

_SCOPE = "Our launcher does not pass it on; Toolbx, Distrobox and programs without a container do"
# name → how bad it is, and what it does
_KNOWN: dict[str, tuple[Verdict, str]] = {
    "HSA_OVERRIDE_GFX_VERSION": (
        "warning",
        "makes ROCm take the GPU for another one, whose code then faults or computes nonsense",
    ),
    "HIP_VISIBLE_DEVICES": ("advice", "hides all GPUs but those it names"),
    "ROCR_VISIBLE_DEVICES": ("advice", "hides all GPUs but those it names"),
    "CUDA_VISIBLE_DEVICES": ("advice", "hides all GPUs but those it names, in PyTorch for ROCm, too"),
    "GPU_DEVICE_ORDINAL": ("advice", "hides all GPUs but those it names"),
    "HSA_ENABLE_SDMA": ("advice", "switches the copy engines off: copies take compute units then"),
    "HIP_LAUNCH_BLOCKING": ("advice", "waits for every kernel: training becomes several times slower"),
    "AMD_SERIALIZE_KERNEL": ("advice", "waits for every kernel: training becomes several times slower"),
}
_HIDING = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_HARMLESS = {"HSA_ENABLE_SDMA": ("1",), "HIP_LAUNCH_BLOCKING": ("0",), "AMD_SERIALIZE_KERNEL": ("0",)}
_PRELOADED = re.compile(r"librocm_smi|libtcmalloc|libamdhip|libhsa-runtime|librccl")
_SYSTEM_FILES = ("etc/environment", "etc/profile", "etc/bash.bashrc", "etc/bashrc")
_SYSTEM_GLOBS = ("etc/profile.d/*.sh", "etc/environment.d/*.conf")
_HOME_FILES = (".profile", ".bash_profile", ".bashrc", ".zshrc", ".zprofile", ".zshenv", ".config/fish/config.fish")
_HOME_GLOBS = (".config/environment.d/*.conf",)
_ASSIGNED = re.compile(r"^\s*(?:export\s+|set\s+-\S+\s+)?([A-Z][A-Z0-9_]*)(?:=|\s+(?=\S))[\"']?([^\"'#;]*)")


def variables(host: Host) -> Iterator[Finding]:
    if not gpus.find(host) and not gpus.on_bus(host):
        return
    found = [(name, value, "") for name, value in sorted(host.env.items()) if _matters(name, value)]
    found += [
        (name, value, f"/{path}:{number}")
        for path in _files(host)
        for number, name, value in _assignments(host.text(path) or "")
        if _matters(name, value)
    ]
    places: dict[tuple[str, str], list[str]] = {}
    for name, value, place in found:
        places.setdefault((name, value), []).append(place)
    if not places:
        yield Finding("ok", "no variable of an old guide is set")
        return
    for (name, value), where in places.items():
        yield _finding(name, value, [place for place in where if place])


def _finding(name: str, value: str, places: list[str]) -> Finding:
    if name == "LD_PRELOAD":
        known = _PRELOADED.search(value) is not None
        verdict: Verdict = "warning" if known else "advice"
        effect = "loads a library of the host into every program, which in a container is another version or missing"
    else:
        verdict, effect = _KNOWN[name]
        if name in _HIDING and value.strip() in ("", "-1"):
            verdict, effect = "warning", "hides every GPU"
    where = f" ({', '.join(places)})" if places else " (in this environment)"
    if places:
        path, _, line = places[0].rpartition(":")
        commands: tuple[str, ...] = (
            f"{'' if '/home/' in path or path.startswith('/root/') else 'sudo '}sed -i.bak '{line}d' {path}",
        )
        fix = f"remove {'the lines' if len(places) > 1 else 'the line'} at {', '.join(places)} and log in again"
        commands = commands if len(places) == 1 else ()
    else:
        commands, fix = (f"unset {name}",), "unset it"
    shown = value.strip()[:60]
    return Finding(
        verdict, f"{name}={shown}{where} {effect}", f"{fix}; {_SCOPE[:1].lower()}{_SCOPE[1:]}", commands,
        {"name": name, "value": shown, "places": places},
    )  # fmt: skip


def _matters(name: str, value: str) -> bool:
    if name == "LD_PRELOAD":
        return bool(value.strip())
    return name in _KNOWN and value.strip() not in _HARMLESS.get(name, ())


def _files(host: Host) -> Iterator[str]:
    yield from _SYSTEM_FILES
    for pattern in _SYSTEM_GLOBS:
        yield from host.glob(pattern)
    who = user.find(host)
    home = who.home.strip("/") if who else ""
    if home:
        yield from (f"{home}/{name}" for name in _HOME_FILES)
        for pattern in _HOME_GLOBS:
            folder, _, last = pattern.rpartition("/")
            yield from (f"{home}/{folder}/{name}" for name in host.names(f"{home}/{folder}") if name.endswith(last[1:]))


def _assignments(text: str) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _ASSIGNED.match(line):
            yield number, match[1], match[2].strip()


CHECKS = (
    Check(
        "variables",
        "Guides of 2024 set HSA_OVERRIDE_GFX_VERSION and preload libraries; with code for the real GPU they crash it.",
        "https://github.com/kyuz0/amd-strix-halo-toolboxes/pull/115",
        ("ok", "advice", "warning"),
        variables,
    ),
)
