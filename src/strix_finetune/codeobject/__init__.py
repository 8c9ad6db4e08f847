"""Which AMD GPU targets a file holds code for, how much, and for which wave size; no GPU, no ROCm, no compiler.

    report = inspect("librccl.so.1")
    report.targets        # ("gfx1151",)
    report.summaries()    # one line a target: objects, sizes, kernels, wave sizes

Reads `.hip_fatbin` sections (offload bundles, plain and compressed), bare code objects, kpack archives and the
references to them, wheels and folders. Memory stays bounded by what a decompressor's window needs (128 MiB at most),
whatever the file says. Only the standard library is needed; before Python 3.14, zstd comes from backports.zstd or the
system's libzstd.so.1. The folder works as plain files too, outside of this project's package.
"""

from .faults import CodeObjectError, LimitExceeded, Malformed, UnknownFormat, Unreadable, Unsupported
from .limits import Limits
from .model import CodeObject, Container, Report, SideReference, TargetSummary
from .reader import inspect, scan, targets

__all__ = [
    "CodeObject",
    "CodeObjectError",
    "Container",
    "LimitExceeded",
    "Limits",
    "Malformed",
    "Report",
    "SideReference",
    "TargetSummary",
    "UnknownFormat",
    "Unreadable",
    "Unsupported",
    "inspect",
    "scan",
    "targets",
]
