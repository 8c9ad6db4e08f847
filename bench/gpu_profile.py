"""Where the time and the memory of one optimizer step go, as short texts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# The first that fits a kernel's name names it.
KINDS = (
    ("attention", r"flash|fmha|attention|sdpa|cudnn_generated"),
    ("products", r"gemm|nvjet|cutlass|cublas|wgmma|xmma|splitk|Cijk"),
    ("loss", r"cross_entropy|logsumexp|log_softmax|_ce_|nll"),
    ("optimizer", r"adam|multi_tensor|foreach|LpNorm|norm_kernel"),
    ("copies to the host", r"Memcpy (DtoH|Device -> Pinned|Device -> Pageable)|DtoH"),
    ("copies from the host", r"HtoD|Pinned -> Device|Pageable -> Device"),
    ("copies", r"Memcpy|Memset|copy|cat"),
    ("norm, rope, gate", r"rms|rope|swiglu|silu|layernorm|_fg_|triton"),
    ("other small kernels", r"."),
)


@contextmanager
def time_of(found: list[str]) -> Iterator[None]:
    """While this lasts, kernels are recorded; what they took is added to `found`."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as watched:
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    events = watched.events()
    kernels = [each for each in events if "CUDA" in str(each.device_type)]
    if not kernels:
        found.append("no kernels: this is no GPU")
        return
    took: Counter[str] = Counter()
    names: dict[str, Counter[str]] = defaultdict(Counter)
    number: Counter[str] = Counter()
    spans = sorted((each.time_range.start, each.time_range.end, kind_of(each.name)) for each in kernels)
    for each in kernels:
        kind = kind_of(each.name)
        length = each.time_range.end - each.time_range.start
        took[kind] += length
        number[kind] += 1
        names[kind][re.sub(r"\s+", " ", each.name)[:70]] += length
    gaps = _gaps(spans)
    whole, idle = max(end for _, end, _ in spans) - spans[0][0], sum(length for length, _ in gaps)
    # what moves to and from the host does so beside the rest; where nothing else runs, the rest waits for it
    waiting = sum(length for length, _ in _gaps([each for each in spans if "the host" not in each[2]])) - idle
    found.append(
        f"from the first kernel to the last {whole / 1e3:.1f} ms, of it idle {idle / 1e3:.1f} ms, "
        f"with copies to and from the host alone {waiting / 1e3:.1f} ms"
    )
    found += _idle(gaps)
    for kind, length in took.most_common():
        most = "; ".join(
            f"{name} {each / 1e3:.1f}" for name, each in names[kind].most_common(10 if kind == "products" else 6)
        )
        found.append(f"  {kind:<22}{length / 1e3:>9.1f} ms {number[kind]:>6} x   {most}")
    calls = {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMalloc", "cudaFree", "cudaHostAlloc", "aten::item"}
    host = Counter({each.name: 0 for each in events if each.name in calls})
    for each in events:
        if each.name in calls:
            host[each.name] += 1
    found.append("  calls: " + ", ".join(f"{name} {count}" for name, count in host.items()))


def kind_of(name: str) -> str:
    """Return the kind of a kernel."""
    return next(kind for kind, words in KINDS if re.search(words, name, re.IGNORECASE))


def _gaps(spans: list[tuple[float, float, str]]) -> list[tuple[float, str]]:
    """Return how long nothing of the spans (start, end, kind) lasts, each time, and what stands at both ends."""
    found: list[tuple[float, str]] = []
    until, before = spans[0][0] if spans else 0.0, ""
    for start, end, kind in spans:
        if start > until:
            found.append((start - until, f"{before} > {kind}"))
        if end > until:
            until, before = end, kind
    return found


def _idle(gaps: list[tuple[float, str]]) -> list[str]:
    """Say how long the gaps between kernels are, in microseconds, and what stands at both ends of them."""
    limits = (2.0, 5.0, 20.0, 100.0, 1000.0, float("inf"))
    parts = []
    for least, most in zip((0.0, *limits), limits, strict=False):
        some = [length for length, _ in gaps if least < length <= most]
        parts.append(f"up to {most:g} us {sum(some) / 1e3:.1f} ms in {len(some)}")
    between: defaultdict[str, float] = defaultdict(float)
    for length, ends in gaps:
        between[ends] += length
    most_of_it = sorted(between.items(), key=lambda each: -each[1])[:8]
    ends = "; ".join(f"{name} {length / 1e3:.1f}" for name, length in most_of_it)
    return [f"  idle: {', '.join(parts)}", f"  between: {ends}"]


@contextmanager
def memory_of(found: list[str]) -> Iterator[None]:
    """While this lasts, allocations are recorded; what lives at the peak is added to `found`."""
    import torch

    if not torch.cuda.is_available():
        yield
        found.append("no memory of a GPU here")
        return
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated()
    torch.cuda.memory._record_memory_history(max_entries=2_000_000, context="alloc", stacks="python")
    try:
        yield
        torch.cuda.synchronize()
        trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    now, most, at = 0, 0, 0
    for index, event in enumerate(trace):
        if event["action"] == "alloc":
            now += event["size"]
        elif event["action"] == "free_requested":
            now -= event["size"]
        if now > most:
            most, at = now, index
    living: dict[int, tuple[int, str]] = {}
    for event in trace[: at + 1]:
        if event["action"] == "alloc":
            living[event["addr"]] = (event["size"], _place(event.get("frames") or []))
        elif event["action"] == "free_requested":
            living.pop(event["addr"], None)
    places: Counter[str] = Counter()
    for size, place in living.values():
        places[place] += size
    found.append(f"held before the step {base / 2**30:.3f} GiB, peak {(base + most) / 2**30:.3f} GiB; at the peak:")
    found += [f"  {size / 2**20:>8.1f} MiB  {place}" for place, size in places.most_common(14)]


def _place(frames: list[dict[str, Any]]) -> str:
    """Return the innermost places of a stack that say something."""
    told = [
        f"{frame['filename'].rpartition('/')[2]}:{frame['line']} {frame['name']}"
        for frame in frames
        if frame["filename"].endswith(".py") and "/torch/" not in frame["filename"]
    ]
    return " < ".join(told[:3]) or "torch itself"


def held(model: Any, optimizer: Any) -> list[str]:
    """Return what stays from step to step: weights, what learns, its gradients and the optimizer's states."""
    frozen = learns = grads = 0
    for weight in model.parameters():
        size = weight.numel() * weight.element_size()
        if weight.requires_grad:
            learns += size
            grads += size if weight.grad is not None else 0
        else:
            frozen += size
    states = here = 0
    kept = getattr(optimizer, "optimizer", optimizer)
    for state in kept.state.values():
        for value in state.values():
            if hasattr(value, "element_size"):
                states += value.numel() * value.element_size()
                here += value.numel() * value.element_size() if value.is_cuda else 0
    kinds = {str(weight.dtype) for weight in model.parameters() if weight.requires_grad}
    parts = {"frozen": frozen, "learns": learns, "gradients": grads, "states": states, "states on the GPU": here}
    return [
        ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in parts.items()) + f", learns in {sorted(kinds)}"
    ]
