"""The pods of an emitted JobSet, run by Podman as a kubelet would: its user, mounts, variables and command, no more."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.stranger import Stranger
from tests.e2e.test_podman import IMAGE, TARGET
from tests.e2e.test_podman import podman_env as podman_env

RECIPE = """\
model: demo
data: {train: ../rows/train.jsonl}
adapter: {kind: lora, r: 4}
backend: hf
precision: fp32
schedule: {steps: 2, batch: 1, accumulation: 1, max_length: 64}
"""
ROW = {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Nobody."}]}


@pytest.fixture(scope="module")
def ready(stranger: Stranger, podman_env: dict[str, str]) -> dict[str, str]:
    """The image in Podman's store, and the model; the environment of podman."""
    stranger.run("make", "image", "ENGINE=podman", f"TARGET={TARGET}")
    stranger.strix("fetch", "demo", "--engine", "podman", "--target", TARGET)
    return podman_env


def emitted(stranger: Stranger, project: Path) -> dict[str, dict[str, Any]]:
    (project / "recipes").mkdir()
    (project / "rows").mkdir()
    (project / "recipes/r.yaml").write_text(RECIPE)
    (project / "rows/train.jsonl").write_text(f"{json.dumps(ROW)}\n" * 4)
    emit = ("emit", "kubernetes", "--with", "jobset", "-t", TARGET, "--nodes", "2", "--name", "two")
    more = ("--image", "registry.example.org/me/image:1", "--project", str(project), "-o", str(project / "job.yaml"))
    recipe = str(project / "recipes/r.yaml")
    stranger.run(str(stranger.clone / ".venv/bin/strix-finetune"), *emit, *more, "--", "train", recipe)
    return {each["kind"]: each for each in yaml.safe_load_all((project / "job.yaml").read_text())}


def pod(found: dict[str, dict[str, Any]], index: int, volumes: Path, port: int) -> list[str]:
    """The command line of one pod. Names are the first node's own address, as the cluster's DNS would make them."""
    spec = found["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    container, security = spec["containers"][0], spec["securityContext"]
    words = ["podman", "run", "--rm", "--network", "host", "--read-only=false", "--workdir", container["workingDir"]]
    words += ["--user", f"{security['runAsUser']}:{security['runAsGroup']}", "--group-add", str(security["fsGroup"])]
    words += ["--cap-drop", "all", "--security-opt", "no-new-privileges", "--shm-size", "1g"]
    for mount in container["volumeMounts"]:
        if mount["name"] != "shm":
            place = volumes / mount["name"] / mount.get("subPath", "")
            end = ",readonly" if mount.get("readOnly") else ""
            words += ["--mount", f"type=bind,source={place},target={mount['mountPath']}{end}"]
    known = {"STRIX_RESTARTS": "0", "STRIX_UID": "0a1b2c3d-0000", "PET_NODE_RANK": str(index)}
    known |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    env = {each["name"]: each.get("value", "") for each in container["env"]} | known
    words += [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    return [*words, "--entrypoint", json.dumps(container["command"]), IMAGE, *container["args"]]


def test_two_pods_train_without_root_and_write_into_the_claim(
    stranger: Stranger, ready: dict[str, str], tmp_path: Path
) -> None:
    project, volumes = tmp_path / "project", tmp_path / "volumes"
    project.mkdir()
    found = emitted(stranger, project)
    config, spec = (
        found["ConfigMap"],
        found["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"],
    )
    (items,) = (each["configMap"]["items"] for each in spec["volumes"] if each["name"] == "files")
    for item in items:
        path = volumes / "files" / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config["data"][item["key"]])
    # what fsGroup does: a claim's folders belong to the group
    for mount in spec["containers"][0]["volumeMounts"]:
        if "subPath" in mount:
            (volumes / "data" / mount["subPath"]).mkdir(parents=True)
            os.chown(volumes / "data" / mount["subPath"], 0, spec["securityContext"]["fsGroup"])
            (volumes / "data" / mount["subPath"]).chmod(0o2775)
    subprocess.run(
        ["cp", "-r", stranger.home / ".cache/strix-finetune/models/demo", volumes / "data/models"], check=True
    )
    tmp_path.chmod(0o755)
    env = stranger.environment(ready)
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    pod(found, index, volumes, 29400 + os.getpid() % 100),
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for index in (0, 1)
        ]
        said = [process.communicate(timeout=600)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert "node 1 of 2" in said[1]
    run = volumes / "data/workspace/runs/two-0a1b2c3d"
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    made = (run / "adapter/adapter_model.safetensors").stat()
    assert (made.st_uid, made.st_gid) == (1000, 1000)
