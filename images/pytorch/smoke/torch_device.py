#!/usr/bin/env python3
"""PyTorch sees the GPU, and multiplies bf16 matrices and attends on it as it does on the CPU."""

import os
import sys
from pathlib import Path

NOT_HERE = 77

if not Path("/dev/kfd").exists():
    print("not shown: there is no /dev/kfd, so no AMD GPU in this container")
    sys.exit(NOT_HERE)

import torch  # noqa: E402

if torch.version.hip is None:
    print(f"not shown: torch {torch.__version__} is built without GPU support")
    sys.exit(NOT_HERE)
if not os.access("/dev/kfd", os.R_OK | os.W_OK):
    groups = ", ".join(map(str, os.getgroups()))
    sys.exit(f"torch: /dev/kfd is here and user {os.getuid()} with the groups {groups} may not use it")
if not torch.cuda.is_available():
    sys.exit("torch: /dev/kfd is here, and torch.cuda.is_available() is False")

name = torch.cuda.get_device_name(0)
torch.manual_seed(0)
left, right = torch.randn(512, 384), torch.randn(384, 256)
for kind, limit in ((torch.float32, 1e-3), (torch.bfloat16, 2e-2)):
    want = left.to(kind).double() @ right.to(kind).double()
    have = (left.to("cuda", kind) @ right.to("cuda", kind)).double().cpu()
    error = ((have - want).abs().max() / want.abs().max()).item()
    if not error < limit:
        sys.exit(f"torch: {kind} product on {name} is off by {error:.1e} of its range")
# AOTriton's images are a pack of their own: without it this is hipErrorInvalidValue, on any device that has the others
query, key, value = (torch.randn(1, 4, 256, 64, dtype=torch.bfloat16) for _ in range(3))
attend = torch.nn.functional.scaled_dot_product_attention
want = attend(query.double(), key.double(), value.double(), is_causal=True)
given = [tensor.cuda().requires_grad_() for tensor in (query, key, value)]
have = attend(*given, is_causal=True)
error = ((have.double().cpu() - want).abs().max() / want.abs().max()).item()
if not error < 2e-2:
    sys.exit(f"torch: attention on {name} is off by {error:.1e} of its range")
have.float().square().mean().backward()
if not all(bool(tensor.grad.isfinite().all()) for tensor in given):
    sys.exit(f"torch: attention on {name} has gradients that are not finite")
free, total = torch.cuda.mem_get_info()
print(
    f"torch {torch.__version__} on {name}: fp32 and bf16 products, attention and its gradients are right,"
    f" {free >> 20} of {total >> 20} MB free"
)
