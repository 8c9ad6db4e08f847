"""A container run as the command that a person would type: pure."""

from __future__ import annotations

from strix_finetune.engine.base import EngineInfo, RunRequest
from strix_finetune.engine.specs import LOOPBACK, unconfined
from strix_finetune.errors import InputError, Problem


def command_line(request: RunRequest, engine: EngineInfo) -> list[str]:
    """The argv of `docker run` or `podman run` that does what `request` asks for.

    Raises InputError for a mount whose path the command line cannot say.
    """
    argv = [engine.kind, "run", "--rm", "--init"]
    if request.interactive:
        argv.append("-it")
    if request.user:
        argv += ["--user", request.user]
    if request.keep_id:
        argv += ["--userns", "keep-id"]
    for device in request.devices:
        argv += ["--device", device]
    for group in request.group_add:
        argv += ["--group-add", group]
    if request.network:
        argv += ["--network", request.network]
    for port in request.publish:
        argv += ["--publish", f"{LOOPBACK}:{port}:{port}"]
    if request.ipc:
        argv += ["--ipc", request.ipc]
    if request.shm_size:
        argv += ["--shm-size", str(request.shm_size)]
    if request.memlock is not None:
        argv += ["--ulimit", f"memlock={request.memlock}:{request.memlock}"]
    if unconfined(request):
        argv += ["--security-opt", "label=disable"]
    for mount in request.mounts:
        if "," in mount.source + mount.target or (mount.relabel and ":" in mount.source + mount.target):
            message = f"'{mount.source}' holds a sign that {engine.kind}'s command line takes for its own"
            raise InputError(Problem(message, cure="leave --print out, or rename it"))
        if mount.relabel:
            # the only form that can label; Docker's --mount cannot
            argv += ["--volume", f"{mount.source}:{mount.target}:{'ro,' * mount.read_only}z"]
            continue
        # --mount refuses a missing source, where -v makes a folder of root's
        argv += ["--mount", f"type=bind,source={mount.source},target={mount.target}{',readonly' * mount.read_only}"]
    for name, value in request.env.items():
        argv += ["--env", f"{name}={value}"]
    if request.workdir:
        argv += ["--workdir", request.workdir]
    return [*argv, request.image, *request.command]
