#!/usr/bin/env python3
"""HIP counts the GPUs, one of them is the image's target, and a kernel compiled at run time gives the right sums."""

import ctypes
import os
import sys
from pathlib import Path

NOT_HERE = 77
SOURCE = b"""
extern "C" __global__ void scaled(float factor, const float* from, float* to, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = factor * from[i] + 1.0f;
}
"""
COUNT, BLOCK, FACTOR = 100_000, 256, 3.0
TO_DEVICE, TO_HOST = 1, 2

if not Path("/dev/kfd").exists():
    print("not shown: there is no /dev/kfd, so no AMD GPU in this container")
    sys.exit(NOT_HERE)
if not os.access("/dev/kfd", os.R_OK | os.W_OK):
    sys.exit(f"hip: /dev/kfd is here and user {os.getuid()} with the groups {os.getgroups()} may not use it")

try:
    from rocm_sdk import find_libraries

    hip, hiprtc = (ctypes.CDLL(str(path)) for path in find_libraries("amdhip64", "hiprtc"))
except ModuleNotFoundError:
    hip, hiprtc = ctypes.CDLL("libamdhip64.so.7"), ctypes.CDLL("libhiprtc.so.7")
hip.hipGetErrorString.restype = ctypes.c_char_p


def call(name: str, *arguments: object) -> None:
    code = getattr(hip, name)(*arguments)
    if code:
        sys.exit(f"hip: {name} ends with {code} ({hip.hipGetErrorString(code).decode()})")


count = ctypes.c_int()
call("hipGetDeviceCount", ctypes.byref(count))
if count.value < 1:
    sys.exit("hip: /dev/kfd is here, and HIP counts no device")
program, size = ctypes.c_void_p(), ctypes.c_size_t()
hiprtc.hiprtcCreateProgram(ctypes.byref(program), SOURCE, b"scaled.hip", 0, None, None)
options = (ctypes.c_char_p * 1)(f"--offload-arch={os.environ['STRIX_TARGET']}".encode())
if hiprtc.hiprtcCompileProgram(program, 1, options):
    sys.exit("hip: the kernel does not compile")
hiprtc.hiprtcGetCodeSize(program, ctypes.byref(size))
code = ctypes.create_string_buffer(size.value)
hiprtc.hiprtcGetCode(program, code)
module, function = ctypes.c_void_p(), ctypes.c_void_p()
# fails with "no binary for gpu" where the GPU is another than the image was made for
call("hipModuleLoadData", ctypes.byref(module), code)
call("hipModuleGetFunction", ctypes.byref(function), module, b"scaled")

bytes_ = ctypes.c_size_t(COUNT * 4)
host = (ctypes.c_float * COUNT)(*range(COUNT))
source, result = ctypes.c_void_p(), ctypes.c_void_p()
call("hipMalloc", ctypes.byref(source), bytes_)
call("hipMalloc", ctypes.byref(result), bytes_)
call("hipMemcpy", source, host, bytes_, TO_DEVICE)
values = (ctypes.c_float(FACTOR), source, result, ctypes.c_int(COUNT))
pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
blocks = (COUNT + BLOCK - 1) // BLOCK
call("hipModuleLaunchKernel", function, blocks, 1, 1, BLOCK, 1, 1, 0, None, pointers, None)
call("hipDeviceSynchronize")
call("hipMemcpy", host, result, bytes_, TO_HOST)
wrong = sum(host[i] != FACTOR * i + 1 for i in range(COUNT))
if wrong:
    sys.exit(f"hip: the kernel ran, and {wrong} of {COUNT} results are wrong")
print(
    f"HIP counts {count.value} device(s); a kernel compiled for {os.environ['STRIX_TARGET']} gives {COUNT} right sums"
)
