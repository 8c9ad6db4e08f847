"""Secure Boot, which keeps modules out that nobody signed: those that DKMS built."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding

_VARIABLE = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def secure_boot(host: Host) -> Iterator[Finding]:
    """Four bytes of attributes, then 1 where it is on."""
    modules = [name for name in ("amdgpu", "amdxdna") if host.names(f"var/lib/dkms/{name}")]
    if not modules:
        return
    names = " and ".join(modules)
    if not host.exists("sys/firmware/efi"):
        yield Finding(
            "ok", f"DKMS built {names}, and this machine does not start by UEFI: nothing asks for a signature"
        )
        return
    state = host.data(_VARIABLE, 8)
    if state is None or len(state) < 5:
        yield Finding("unknown", f"DKMS built {names}, and whether Secure Boot is on cannot be read")
    elif state[4] != 1:
        yield Finding("ok", f"DKMS built {names}, and Secure Boot is off")
    elif all(host.exists(f"sys/module/{name}") for name in modules):
        yield Finding("ok", f"DKMS built {names}, signed with a key that this machine knows")
    else:
        lacking = next(name for name in modules if not host.exists(f"sys/module/{name}"))
        yield Finding(
            "blocks" if lacking == "amdgpu" else "warning",
            f"Secure Boot is on, and the module {lacking}, which DKMS built, is not loaded",
            "enrol the key that DKMS signs with, restart and confirm it on the blue screen (or switch Secure Boot off)",
            ("sudo mokutil --import /var/lib/dkms/mok.pub",),
        )


CHECKS = (
    Check(
        "secure-boot",
        "With Secure Boot a module that DKMS built is silently not loaded until its key is enrolled.",
        "https://github.com/dell/dkms (README: module signing)",
        ("ok", "warning", "blocks", "unknown"),
        secure_boot,
    ),
)
