#!/opt/venv/bin/python
"""bitsandbytes' 4-bit kernels on the GPU give what its CPU code gives, forwards and in a product."""

import sys
from pathlib import Path

NOT_HERE = 77

if not Path("/dev/kfd").exists():
    print("not shown: there is no /dev/kfd, so no AMD GPU in this container")
    sys.exit(NOT_HERE)

import torch  # noqa: E402

if torch.version.hip is None or not torch.cuda.is_available():
    print("not shown: this torch sees no GPU")
    sys.exit(NOT_HERE)

import bitsandbytes.functional as bnb  # noqa: E402

torch.manual_seed(0)
weight = torch.randn(256, 512)
errors = {}
for block in (64, 128):
    packed, state = bnb.quantize_4bit(weight.cuda(), blocksize=block, quant_type="nf4")
    on_gpu = bnb.dequantize_4bit(packed, state).float().cpu()
    cpu_packed, cpu_state = bnb.quantize_4bit(weight, blocksize=block, quant_type="nf4")
    on_cpu = bnb.dequantize_4bit(cpu_packed, cpu_state).float()
    # a value between two levels may be rounded either way; anything else is a kernel that computes wrongly
    differ = ((on_gpu - on_cpu).abs() > 1e-3).float().mean().item()
    if not differ < 0.002:
        sys.exit(f"4-bit: {differ:.1%} of the values differ from the CPU's with blocks of {block}")
    error = (on_gpu - weight).abs().mean().item()
    if not 0.05 < error < 0.11:
        sys.exit(f"4-bit: NF4 is off by {error:.3f} on average with blocks of {block}, and should be by 0.07 or 0.08")
    inputs = torch.randn(8, 512)
    want = inputs @ on_gpu.T
    packed, state = bnb.quantize_4bit(weight.cuda().bfloat16(), blocksize=block, quant_type="nf4")
    have = (inputs.cuda().bfloat16() @ bnb.dequantize_4bit(packed, state).T).float().cpu()
    errors[block] = ((have - want).abs().max() / want.abs().max()).item()
    if not errors[block] < 0.05:
        sys.exit(f"4-bit: a product is off by {errors[block]:.1e} of its range with blocks of {block}")
print(f"NF4 on {torch.cuda.get_device_name(0)} is the CPU's; products are right within {max(errors.values()):.1e}")
