#!/usr/bin/env python3
"""PyTorch imports, is what its package says, computes right on the CPU, and is no CUDA build."""

import os
import sys
import sysconfig
import time
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["STRIX_SMOKE"], "lib")))
import guard

if stub := guard.stand_in(guard.installed(Path(sysconfig.get_path("purelib")))):
    print(f"not shown: {stub} is a stub that computes nothing")
    sys.exit(77)
started = time.monotonic()
import torch  # noqa: E402

took = time.monotonic() - started


def check(true: bool, message: str) -> None:
    if not true:
        sys.exit(f"torch: {message}")


check(torch.__version__ == version("torch"), f"module {torch.__version__}, metadata {version('torch')}")
check(torch.version.cuda is None, f"a CUDA build: {torch.version.cuda}")

# whole numbers: exact in fp32 and, up to 256, in bf16, whatever the order of summation
rows = torch.arange(64.0).remainder(3).repeat(32, 1)
columns = torch.arange(64.0).remainder(2).unsqueeze(1).repeat(1, 16)
expected = float(sum((i % 3) * (i % 2) for i in range(64)))
for kind in (torch.float32, torch.bfloat16):
    product = rows.to(kind) @ columns.to(kind)
    check(product.shape == (32, 16) and bool((product == expected).all()), f"wrong matrix product in {kind}")

torch.manual_seed(0)
left, right = torch.randn(96, 128, dtype=torch.float64), torch.randn(128, 80, dtype=torch.float64)
error = (left.float() @ right.float() - left @ right).abs().max().item()
check(error < 1e-4, f"fp32 differs from fp64 by {error:.1e}")
q, r = torch.linalg.qr(left)
check(torch.allclose(q @ r, left), "LAPACK: the QR factors do not give the matrix back")

weight = torch.ones(3, requires_grad=True)
(weight * torch.tensor([1.0, 2.0, 3.0])).square().sum().backward()
check(weight.grad is not None and weight.grad.tolist() == [2.0, 8.0, 18.0], f"wrong gradient {weight.grad}")
check(torch.distributed.is_available() and torch.distributed.is_gloo_available(), "Gloo is missing")
# what torchrun begins with; it fails where USE_LIBUV does not suit the build
torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:29531", rank=0, world_size=1)
torch.distributed.destroy_process_group()
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous  # noqa: E402

StaticTCPRendezvous("127.0.0.1", 29532, 0, 1, "smoke", 60).next_rendezvous()
# the helper of shared memory, which data loaders start
check((Path(torch.__file__).parent / "bin" / "torch_shm_manager").exists(), "no torch_shm_manager")

gpu = f"ROCm {torch.version.hip}" if torch.version.hip else "CPU only"
print(f"torch {torch.__version__} ({gpu}): products, QR and gradients are right; import {took:.1f} s")
