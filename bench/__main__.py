"""python -m bench NAME...; without names: noop, edit and size. cold takes ten minutes and needs root, rccl five,
rccl-full twenty, bare fifteen, rebuild twenty, cluster-cost and pipeline, which need root and torch, ten each, and
pieces, which needs torch, two."""

from __future__ import annotations

import os
import platform
import sys

from bench import (
    bare,
    check,
    cluster_cost,
    cluster_tables,
    cold,
    edit,
    estimate,
    noop,
    pieces,
    pipeline,
    pipeline_tables,
    rccl,
    rebuild,
    size,
)

BENCHES = {
    "noop": noop.main,
    "edit": edit.main,
    "size": size.main,
    "cold": cold.main,
    "rccl": rccl.main,
    "rccl-full": rccl.full,
    "bare": bare.main,
    "check": check.main,
    "rebuild": rebuild.main,
    "estimate": estimate.main,
    "recipe-headers": estimate.headers,
    "cluster-cost": cluster_cost.main,
    "cluster-tables": cluster_tables.main,
    "pieces": pieces.main,
    "pipeline": pipeline.main,
    "pipeline-tables": pipeline_tables.main,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"error: there is no measurement '{unknown[0]}'; known: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}, Linux {platform.release()}, Python {platform.python_version()}")
    if load > 1:
        print("the machine is busy: times are upper bounds")
    for name in names or ["noop", "edit", "size"]:
        print(f"\n## {name}")
        BENCHES[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
