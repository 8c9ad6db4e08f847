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

import bitsandbytes  # noqa: E402
from bitsandbytes import functional  # noqa: E402

torch.manual_seed(0)
weight = torch.randn(256, 512)
errors = []
for block in (64, 128):
    packed, state = functional.quantize_4bit(weight.cuda(), blocksize=block, quant_type="nf4")
    on_gpu = functional.dequantize_4bit(packed, state).float().cpu()
    cpu_packed, cpu_state = functional.quantize_4bit(weight, blocksize=block, quant_type="nf4")
    on_cpu = functional.dequantize_4bit(cpu_packed, cpu_state).float()
    # a value between two levels may be rounded either way; anything else is a kernel that computes wrongly
    differ = ((on_gpu - on_cpu).abs() > 1e-3).float().mean().item()
    if not differ < 0.002:
        sys.exit(f"4-bit: {differ:.1%} of the values differ from the CPU's with blocks of {block}")
    error = (on_gpu - weight).abs().mean().item()
    if not 0.05 < error < 0.11:
        sys.exit(f"4-bit: NF4 is off by {error:.3f} on average with blocks of {block}, and should be by 0.07 or 0.08")
    # eight rows are multiplied by the unpacked weight, one row by a kernel that unpacks as it goes
    weight_16 = weight.cuda().bfloat16()
    packed, state = functional.quantize_4bit(weight_16, blocksize=block, quant_type="nf4")
    unpacked = functional.dequantize_4bit(packed, state).double().cpu()
    for rows in (8, 1):
        inputs = torch.randn(rows, 512).bfloat16()
        want = inputs.double() @ unpacked.T
        with torch.no_grad():
            have = bitsandbytes.matmul_4bit(inputs.cuda(), packed.t(), quant_state=state).double().cpu()
        error = ((have - want).abs().max() / want.abs().max()).item()
        errors.append(error)
        if not error < 0.02:
            sys.exit(f"4-bit: a product of {rows} rows is off by {error:.1e} of its range with blocks of {block}")
print(f"NF4 on {torch.cuda.get_device_name(0)} is the CPU's; products are right within {max(errors):.1e}")
