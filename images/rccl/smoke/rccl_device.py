#!/usr/bin/env python3
"""RCCL on the GPUs of this machine: all_reduce on one rank, and on every GPU together, right and with its bandwidth."""

import ctypes
import sys
import time
from pathlib import Path

NOT_HERE = 77
if not Path("/dev/kfd").exists():
    print("not shown: there is no /dev/kfd, so no AMD GPU in this container")
    sys.exit(NOT_HERE)

hip, rccl = ctypes.CDLL("libamdhip64.so.7"), ctypes.CDLL("librccl.so.1")
hip.hipGetErrorString.restype = rccl.ncclGetErrorString.restype = ctypes.c_char_p
TO_DEVICE, TO_HOST = 1, 2
FLOAT32, SUM = 7, 0
COUNT, ROUNDS = 1 << 22, 20  # 16 MiB


def hip_call(name: str, *arguments: object) -> None:
    if code := getattr(hip, name)(*arguments):
        sys.exit(f"rccl: {name} ends with {code} ({hip.hipGetErrorString(code).decode()})")


def call(name: str, *arguments: object) -> None:
    if code := getattr(rccl, name)(*arguments):
        sys.exit(f"rccl: {name} ends with {code} ({rccl.ncclGetErrorString(code).decode()})")


class Rank:
    """One GPU with its stream, and a buffer that holds `device + 1` in every place."""

    def __init__(self, device: int) -> None:
        self.device, self.stream, self.buffer = device, ctypes.c_void_p(), ctypes.c_void_p()
        hip_call("hipSetDevice", device)
        hip_call("hipStreamCreate", ctypes.byref(self.stream))
        hip_call("hipMalloc", ctypes.byref(self.buffer), ctypes.c_size_t(COUNT * 4))
        self.fill()

    def fill(self) -> None:
        values = (ctypes.c_float * COUNT)(*[float(self.device + 1)] * COUNT)
        hip_call("hipSetDevice", self.device)
        hip_call("hipMemcpy", self.buffer, values, ctypes.c_size_t(COUNT * 4), TO_DEVICE)

    def read(self) -> set[float]:
        values = (ctypes.c_float * COUNT)()
        hip_call("hipSetDevice", self.device)
        hip_call("hipStreamSynchronize", self.stream)
        hip_call("hipMemcpy", values, self.buffer, ctypes.c_size_t(COUNT * 4), TO_HOST)
        return set(values)


def all_reduce(ranks: list[Rank], comms: ctypes.Array[ctypes.c_void_p]) -> None:
    call("ncclGroupStart")
    for rank, comm in zip(ranks, comms, strict=True):
        arguments = (ctypes.c_size_t(COUNT), FLOAT32, SUM, ctypes.c_void_p(comm), rank.stream)
        call("ncclAllReduce", rank.buffer, rank.buffer, *arguments)
    call("ncclGroupEnd")


def together(devices: list[int]) -> float:
    """Sum over these GPUs, compare every value, and return the bus bandwidth in GB/s (0 on one)."""
    ranks = [Rank(device) for device in devices]
    comms = (ctypes.c_void_p * len(devices))()
    call("ncclCommInitAll", comms, len(devices), (ctypes.c_int * len(devices))(*devices))
    all_reduce(ranks, comms)
    expected = {float(sum(device + 1 for device in devices))}
    for rank in ranks:
        if (values := rank.read()) != expected:
            some = sorted(values)[:5]
            sys.exit(f"rccl: all_reduce over {len(devices)} GPUs gives {some} on GPU {rank.device}, not {expected}")
    # sums grow with every round, so that only the first is compared
    began = time.monotonic()
    for _ in range(ROUNDS):
        all_reduce(ranks, comms)
    for rank in ranks:
        hip_call("hipSetDevice", rank.device)
        hip_call("hipStreamSynchronize", rank.stream)
    seconds = (time.monotonic() - began) / ROUNDS
    for comm in comms:
        call("ncclCommDestroy", ctypes.c_void_p(comm))
    return 2 * (len(devices) - 1) / len(devices) * COUNT * 4 / seconds / 1e9


found = ctypes.c_int()
hip_call("hipGetDeviceCount", ctypes.byref(found))
if found.value < 1:
    sys.exit("rccl: /dev/kfd is here, and HIP counts no device")
together([0])
if found.value < 2:
    print("all_reduce on one rank is right; two ranks need two GPUs, and this machine has one")
    sys.exit(0)
pair = together([0, 1])
every = together(list(range(found.value))) if found.value > 2 else pair
print(f"all_reduce is right on 1, 2 and {found.value} ranks; {pair:.1f} GB/s on two, {every:.1f} GB/s on all")
