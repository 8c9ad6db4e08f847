"""A container run as the command that a person would type: pure."""

from __future__ import annotations

from strix_finetune.engine.base import EngineInfo, RunRequest
from strix_finetune.engine.specs import unconfined


def command_line(request: RunRequest, engine: EngineInfo) -> list[str]:
    """The argv of `docker run` or `podman run` that does what `request` asks for."""
    argv = [engine.kind, "run", "--rm"]
    if request.interactive:
        argv.append("-it")
    if request.user:
        argv += ["--user", request.user]
    if request.keep_id:
        argv += ["--userns", "keep-id"]
    if unconfined(request):
        argv += ["--security-opt", "label=disable"]
    for device in request.devices:
        argv += ["--device", device]
    for group in request.group_add:
        argv += ["--group-add", group]
    if request.network:
        argv += ["--network", request.network]
    if request.shm_size:
        argv += ["--shm-size", str(request.shm_size)]
    for mount in request.mounts:
        # --mount refuses a missing source, where -v makes a folder of root's
        argv += ["--mount", f"type=bind,source={mount.source},target={mount.target}{',readonly' * mount.read_only}"]
    for name, value in request.env.items():
        argv += ["--env", f"{name}={value}"]
    if request.workdir:
        argv += ["--workdir", request.workdir]
    return [*argv, request.image, *request.command]
