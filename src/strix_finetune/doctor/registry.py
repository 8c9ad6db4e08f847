"""All checks, in the order in which their answers are read: what there is, whether it may be used, what it lacks."""

from __future__ import annotations

from strix_finetune.doctor.checks import (
    cgroups,
    devices,
    disk,
    engine,
    gpu,
    iommu,
    kernel,
    memory,
    network,
    rootless,
    secureboot,
    selinux,
    toolbx,
    variables,
    wsl,
)
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding, Report, Result

_FAMILIES = (
    gpu, wsl, devices, kernel, secureboot, memory, iommu, variables,
    engine, rootless, cgroups, selinux, toolbx, disk, network,
)  # fmt: skip
CHECKS: tuple[Check, ...] = tuple(check for family in _FAMILIES for check in family.CHECKS)


def examine(host: Host) -> Report:
    """Run every check. One that fails is said, and hides no other."""
    results: list[Result] = []
    for check in CHECKS:
        view = host.view()
        try:
            findings = list(check.run(view))
        except Exception as error:  # noqa: BLE001 (a fault of ours in one check must not hide what the others see)
            words = " ".join(str(error).split())[:200]
            findings = [Finding("unknown", f"a fault in this check itself ({type(error).__name__}: {words})")]
        read, absent = view.seen()
        results += [Result(check.name, finding, read, absent) for finding in findings]
    return Report(str(host.root), tuple(results))
