"""Where the processes meet: torch's store, the addresses of process 0, and the process group."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
from datetime import timedelta
from typing import Any

from strix_train.distributed.seats import Seat
from strix_train.distributed.waiting import telling
from strix_train.errors import InputError, Problem, TrainError


def store(seat: Seat) -> Any:
    """Return a client of the store, and hold the store where that is this process's part. Raises TrainError."""
    from torch.distributed import TCPStore

    libuv = os.environ.get("USE_LIBUV", "1") == "1"
    if seat.main and not seat.agent:
        try:
            _held.append(
                TCPStore(
                    seat.address,
                    seat.port,
                    seat.world,
                    is_master=True,
                    timeout=timedelta(seconds=seat.join),
                    wait_for_workers=False,
                    use_libuv=libuv,
                )
            )
        except RuntimeError as error:
            text = " ".join(str(error).split())
            if "already in use" in text or "EADDRINUSE" in text:
                raise InputError(
                    Problem(
                        f"port {seat.port} is taken, so the processes cannot meet there",
                        cure="set MASTER_PORT to another one (torchrun: --master-port, or a port in --rdzv-endpoint)",
                    )
                ) from None
            raise TrainError(f"process 0 cannot listen at {seat.address}:{seat.port}: {text[:200]}") from None
    return _client(seat, libuv)


# the store that this process holds for all others must outlive every client of it
_held: list[Any] = []


def _client(seat: Seat, libuv: bool, file: int = 2) -> Any:
    from torch.distributed import PrefixStore, TCPStore

    waits = (
        f"has not reached process 0 at {seat.address}:{seat.port} yet, and tries for {seat.join:.0f} s in all; "
        "is it started, and the port open?"
    )
    try:
        with telling(seat.rank, waits, seat.join, file):
            client = TCPStore(
                seat.address, seat.port, is_master=False, timeout=timedelta(seconds=seat.join), use_libuv=libuv
            )
    except RuntimeError as error:
        text = " ".join(str(error).split())[:200]
        raise TrainError(
            f"process {seat.rank} found nobody at {seat.address}:{seat.port} within {seat.join:.0f} s ({text})",
            cure="start process 0, and open the port on its machine",
        ) from None
    return PrefixStore("strix", client)


def addresses(seat: Seat) -> list[str]:
    """Return by what addresses the others may reach this process: the named interface's, then the way to the store."""
    found = [_address_of(name) for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    with suppress(OSError):
        family, _, _, _, target = socket.getaddrinfo(seat.address, seat.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            found.append(probe.getsockname()[0])
    if not seat.agent:
        found.append(seat.address)
    return list(dict.fromkeys(filter(None, found)))


def _address_of(interface: str) -> str:
    """Return the IPv4 address of an interface, empty where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        wanted = struct.pack("256s", interface.lstrip("=").encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, wanted)[20:24])  # SIOCGIFADDR
    return ""


def group(seat: Seat, device: Any, file: int = 2) -> None:
    """Make the process group. Raises TrainError where the processes do not reach one another.

    `file`: a descriptor, on which to say that it takes long.
    """
    import torch
    import torch.distributed as dist

    kinds = "gloo"
    more: dict[str, Any] = {}
    if device.is_gpu:
        _one_gpu_each(torch.cuda.device_count())
        kinds = "cpu:gloo,cuda:nccl"
        more["device_id"] = torch.device(device.torch)
    client = _client(seat, os.environ.get("USE_LIBUV", "1") == "1", file)
    waits = (
        "the processes have met, and do not get through to one another yet: gloo and RCCL choose ports of their own; "
        "open all TCP ports between the machines (`strix-finetune cluster check` says which are not)"
    )
    try:
        with telling(seat.rank, waits, seat.timeout, file):
            dist.init_process_group(
                kinds,
                store=dist.PrefixStore("group", client),
                rank=seat.rank,
                world_size=seat.world,
                timeout=timedelta(seconds=seat.timeout),
                **more,
            )
    except RuntimeError as error:
        raise TrainError(
            f"process {seat.rank} and the others do not reach one another: {' '.join(str(error).split())[:300]}",
            cure="set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface between the machines",
        ) from error


def _one_gpu_each(gpus: int) -> None:
    mine = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if mine > gpus:
        what = f"{mine} processes were started on {socket.gethostname()}, which has {gpus} GPUs"
        raise InputError(Problem(what, cure="start one for each GPU"))


def leave() -> None:
    """Take the process group down, so that this process could join another one."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    with suppress(ImportError):
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
    _held.clear()
