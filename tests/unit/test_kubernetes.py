"""Jobs for Kubernetes against the API models that Kubeflow's Trainer publishes, with those of JobSet and Kubernetes.

Those models let unknown fields pass, as the API server does, which drops them without a word: here they are faults.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from strix_finetune.caches import CACHES, ENVIRONMENT, TOKEN
from strix_finetune.cli import main
from strix_finetune.emit import edited
from strix_finetune.errors import InputError
from strix_finetune.jobs import PORT, Work, work
from strix_finetune.kubernetes import KINDS, Job, render
from strix_finetune.paths import find

FOLDER = find({}).toolbox
REMOTE = "registry.example.org/me/strix-finetune:gfx1151"
DIGEST = "registry.example.org/me/strix-finetune@sha256:" + "a" * 64
MODELS = {
    "ConfigMap": "IoK8sApiCoreV1ConfigMap",
    "PersistentVolumeClaim": "IoK8sApiCoreV1PersistentVolumeClaim",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
    "JobSet": "JobsetV1alpha2JobSet",
}
RECIPE = (
    "model: google/gemma-3-4b-it\ndata:\n  train: ../data/rows.jsonl\nschedule:\n  steps: 3\nadapter: {kind: lora}\n"
)
ROW = '{"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}]}\n'


@functools.cache
def model(kind: str) -> type[BaseModel]:
    from kubeflow_trainer_api import models  # type: ignore[import-untyped]

    found: type[BaseModel] = getattr(models, MODELS[kind])
    return found


def faults(shape: Any, value: Any, path: str = "") -> Iterator[str]:
    """The fields of `value` that its type does not have, and those that are missing."""
    arguments = [each for each in typing.get_args(shape) if each is not type(None)]
    if typing.get_origin(shape) is typing.Union:
        for each in arguments:
            yield from faults(each, value, path)
    elif isinstance(value, list) and arguments:
        for number, each in enumerate(value):
            yield from faults(arguments[0], each, f"{path}[{number}]")
    elif isinstance(value, dict) and isinstance(shape, type) and issubclass(shape, BaseModel):
        known = {field.alias or name: field.annotation for name, field in shape.model_fields.items()}
        needed = {field.alias or name for name, field in shape.model_fields.items() if field.is_required()}
        yield from (f"{path}.{key} is missing" for key in needed - value.keys())
        for key, each in value.items():
            if key not in known:
                yield f"{path}.{key}"
            else:
                yield from faults(known[key], each, f"{path}.{key}")


def check(document: dict[str, Any]) -> None:
    """Raises for what the API would refuse, or drop."""
    found = model(document["kind"])
    assert not list(faults(found, document))
    found.from_dict(document)  # type: ignore[attr-defined]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "recipes/r.yaml").write_text(RECIPE)
    (tmp_path / "data/rows.jsonl").write_text(ROW)
    return tmp_path


def job(project: Path, *words: str, **more: Any) -> Job:
    said = work(words or ("train", "recipes/r.yaml"), project, find({}).recipes, project / "models")
    values: dict[str, Any] = {"image": REMOTE, "work": said, "project": project, "groups": (44, 992), "nodes": 2} | more
    return Job(**values)


def documents(made: Job) -> dict[str, dict[str, Any]]:
    text = render(made, FOLDER).text
    assert not edited(text)
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def jobset(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The JobSet's specification, of which the runtime of a TrainJob is a template."""
    spec: dict[str, Any] = (
        found["JobSet"]["spec"] if "JobSet" in found else found["TrainingRuntime"]["spec"]["template"]["spec"]
    )
    return spec


def pod(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = jobset(found)["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return spec


FULL = {
    "secret": "hub",
    "adapter": "rdma/hca_shared",
    "labels": ("amd.com/gpu.family=GFX11", "pool="),
    "storage_class": "fast",
    "processes": 4,
    "variables": {"NCCL_NET_GDR_LEVEL": "0"},
}
PLAIN = {"gpu": False, "groups": (), "nodes": 1, "claim": "mine", "restarts": 0, "image": DIGEST}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [{}, FULL, PLAIN], ids=["usual", "full", "plain"])
def test_the_api_knows_every_field(kind: str, more: dict[str, Any], project: Path) -> None:
    found = documents(job(project, kind=kind, **more))
    kinds = {"ConfigMap", "PersistentVolumeClaim", "TrainingRuntime", "TrainJob"} if kind == "trainjob" else {"JobSet"}
    assert set(found) - {"ConfigMap", "PersistentVolumeClaim"} == kinds - {"ConfigMap", "PersistentVolumeClaim"}
    assert ("PersistentVolumeClaim" in found) != ("claim" in more)
    for document in found.values():
        check(document)
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", document["metadata"]["name"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda pod: pod["containers"][0].update(imagePulPolicy="Always"), "imagePulPolicy"),
        (lambda pod: pod.update(host_network=True), "host_network"),
        (lambda pod: pod["containers"][0].pop("name"), r"containers\[0\]\.name is missing"),
        (lambda pod: pod.update(terminationGracePeriodSeconds="300"), "terminationGracePeriodSeconds"),
        (lambda pod: pod["volumes"][0]["emptyDir"].update(size="1Gi"), r"volumes\[0\]\.emptyDir\.size"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_check_finds_what_is_wrong(kind: str, change: Any, said: str, project: Path) -> None:
    found = documents(job(project, kind=kind))
    change(pod(found))
    with pytest.raises((AssertionError, ValueError), match=said):
        check(found["JobSet" if kind == "jobset" else "TrainingRuntime"])


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_controllers_ask_for_beyond_the_schema(kind: str, project: Path) -> None:
    found = documents(job(project, kind=kind, **FULL))
    replicated = jobset(found)["replicatedJobs"][0]
    container = pod(found)["containers"][0]
    policy = jobset(found)["failurePolicy"]
    # rules of JobSet's and the Trainer's admission
    assert replicated["replicas"] == 1
    longest = f"{'a' * 40}-{replicated['name']}-0-99999-abcde"
    assert len(longest) <= 63
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", policy["rules"][0]["name"])
    assert policy["rules"][0]["action"] in ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts")
    assert policy["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]
    # a policy for failed pods goes with pods that are not started again
    assert pod(found)["restartPolicy"] == "Never"
    assert replicated["template"]["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == "node"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod(found)["volumes"]} == {"shm", "data", "files", "token"}
    env = {each["name"]: each for each in container["env"]}
    assert len(env) == len(container["env"])
    if kind == "trainjob":
        # the Trainer finds by these what it tells of the group, and refuses settings of its own names
        assert (replicated["name"], container["name"]) == ("node", "node")
        labels = replicated["template"]["metadata"]["labels"]
        assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
        assert not [name for name in env if name.startswith("PET_")]
        spec = found["TrainJob"]["spec"]
        assert spec["trainer"] == {"numNodes": 2, "numProcPerNode": 4}
        assert spec["runtimeRef"]["name"] == found["TrainingRuntime"]["metadata"]["name"]
        return
    assert env["PET_MASTER_ADDR"]["value"] == "strix-finetune-node-0-0.strix-finetune"
    assert jobset(found)["network"] == {"enableDNSHostnames": True, "subdomain": "strix-finetune"}
    assert [env[f"PET_{name}"]["value"] for name in ("NNODES", "NPROC_PER_NODE", "MASTER_PORT")] == [
        "2",
        "4",
        str(PORT),
    ]
    spec = replicated["template"]["spec"]
    assert (spec["completionMode"], spec["parallelism"], spec["completions"]) == ("Indexed", 2, 2)


def test_a_pod_has_no_more_than_it_needs(project: Path) -> None:
    spec = pod(documents(job(project, kind="jobset", user="1001:1002", **FULL)))
    container = spec["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"] is True
    who = [spec["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")]
    assert who == [1001, 1002, 1002, [44, 992]]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert spec["automountServiceAccountToken"] is False
    assert container["resources"] == {"limits": {"amd.com/gpu": 4, "rdma/hca_shared": 1}}
    assert spec["nodeSelector"] == {"amd.com/gpu.family": "GFX11", "pool": ""}
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["HF_TOKEN_PATH"] == TOKEN
    assert "HF_TOKEN" not in env
    assert {name: env[name] for name in ENVIRONMENT} == dict(ENVIRONMENT)
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {cache.target for cache in CACHES} <= set(mounts)
    assert mounts["/models"]["readOnly"] is True
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert volumes["token"]["secret"]["defaultMode"] == 0o440
    plain = pod(documents(job(project, kind="jobset", user="0:0", **PLAIN)))
    assert plain["securityContext"]["runAsNonRoot"] is False
    assert not {"hostNetwork", "nodeSelector", "dnsPolicy"} & set(plain)
    assert "resources" not in plain["containers"][0]
    assert plain["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert container["imagePullPolicy"] == "Always"


def test_recipe_and_data_go_along_byte_by_byte(project: Path) -> None:
    (project / "recipes/odd.yaml").write_text(f"  # first\n{RECIPE}  # é\ttab: 'x' \U0001f600\n\n", newline="")
    odd = "\u2028\x85\U0001f600\ufeff" + ROW.rstrip()
    for recipe, rows in (("r", b"\xff\xfe\x00binary"), ("odd", odd.encode())):
        (project / "data/rows.jsonl").write_bytes(rows)
        found = documents(job(project, "train", f"recipes/{recipe}.yaml"))
        check(found["ConfigMap"])
        items = next(each["configMap"] for each in pod(found)["volumes"] if each["name"] == "files")
        assert items["name"] == found["ConfigMap"]["metadata"]["name"]
        paths = {item["path"]: item["key"] for item in items["items"]}
        assert set(paths) == {f"recipes/{recipe}.yaml", "data/rows.jsonl"}
        config = found["ConfigMap"]
        text = (project / f"recipes/{recipe}.yaml").read_bytes().decode()
        assert config["data"][paths[f"recipes/{recipe}.yaml"]] == text
        if recipe == "r":
            assert config["binaryData"] == {paths["data/rows.jsonl"]: "//4AYmluYXJ5"}
        else:
            assert config["data"][paths["data/rows.jsonl"]] == odd
        assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) for key in paths.values())
        assert pod(found)["containers"][0]["args"][1:] == ["node", "train", "run", f"/job/recipes/{recipe}.yaml"]
    # what a controller has seen it does not look at again
    before = documents(job(project))["ConfigMap"]["metadata"]["name"]
    (project / "data/rows.jsonl").write_text(ROW)
    assert documents(job(project))["ConfigMap"]["metadata"]["name"] != before
    # a recipe of ours is in the image
    assert "ConfigMap" not in documents(job(project, "train", "gemma3-4b-lora"))


def test_the_words_of_a_pod(project: Path, tmp_path: Path) -> None:
    """The script of the container, run by bash with a Python that says what it was told."""
    (tmp_path / "python3").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "python3").chmod(0o755)
    runs = tmp_path / "runs"

    def given(*words: str, **env: str) -> list[str]:
        container = pod(documents(job(project, "train", "recipes/r.yaml", *words)))["containers"][0]
        args = [container["args"][0].replace("/workspace", str(tmp_path)), *container["args"][1:]]
        known = {"PATH": f"{tmp_path}:/usr/bin:/bin", **env}
        done = subprocess.run([*container["command"], *args], env=known, capture_output=True, text=True, check=True)
        head, words_ = done.stdout.split("\n--\n")
        assert head == "-m\nstrix_train.joining"
        return words_.splitlines()

    usual = ["train", "run", "/job/recipes/r.yaml"]
    assert given("--set", "logging.project=a $x") == [
        *usual,
        "--set",
        "logging.project=a $x",
        "--run-dir",
        f"{runs}/strix-finetune",
    ]
    uid = {"STRIX_UID": "0a1b2c3d-1111-2222", "STRIX_RESTARTS": "0"}
    assert given(**uid) == [*usual, "--run-dir", f"{runs}/strix-finetune-0a1b2c3d"]
    (runs / "strix-finetune-0a1b2c3d/checkpoints/checkpoint-20").mkdir(parents=True)
    again = given(**uid | {"STRIX_RESTARTS": "2"})
    assert again == [*usual, "--run-dir", f"{runs}/strix-finetune-0a1b2c3d", "--resume"]
    lost = given(STRIX_UID="", STRIX_RESTARTS="1")
    assert lost == [*usual, "--run-dir", f"{runs}/strix-finetune-1"]
    assert given("--run-dir", "mine/one") == [*usual, "--run-dir", f"{tmp_path}/mine/one"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"image": "localhost/strix-finetune:gfx1151"}, "no cluster can pull .*strix-finetune push --to"),
        ({"image": "a b"}, "no name of an image"),
        ({"name": "Mine"}, "no name of a job"),
        ({"name": "under_score"}, "no name of a job"),
        ({"name": "1st"}, "no name of a job"),
        ({"name": "a" * 41}, "at most 40"),
        ({"name": ""}, "no name of a job"),
        ({"claim": "A"}, "no name of a claim"),
        ({"storage": "much"}, "write it like 100Gi"),
        ({"secret": "x y"}, "no name of a secret"),
        ({"labels": ("pool",)}, "write LABEL=VALUE"),
        ({"adapter": "hca"}, "no resource"),
        ({"user": "me"}, "give numbers, UID:GID"),
        ({"groups": ()}, "give --group"),
    ],
)
def test_what_no_cluster_could_run_is_refused(more: dict[str, Any], said: str, project: Path) -> None:
    with pytest.raises(InputError, match=said):
        job(project, **more)


def test_what_cannot_go_along_is_refused(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "rows.jsonl"
    other.write_text(ROW)
    with pytest.raises(InputError, match=r"rows\.jsonl lies outside of .*move it"):
        render(job(project, "train", "recipes/r.yaml", "--set", f"data.train={other}"), FOLDER)
    with pytest.raises(InputError, match=r"lies outside of .*leave --run-dir out"):
        render(job(project, "train", "recipes/r.yaml", "--run-dir", str(other.parent / "x")), FOLDER)
    # a link is followed, and what it leads to goes along
    (project / "data/rows.jsonl").unlink()
    (project / "data/rows.jsonl").symlink_to(other)
    assert ROW in documents(job(project))["ConfigMap"]["data"].values()
    (project / "recipes/r.yaml").write_text(RECIPE.replace("../data", f"{project}/data"))
    with pytest.raises(InputError, match="write paths relative to the recipe"):
        render(job(project), FOLDER)
    (project / "recipes/r.yaml").write_text(RECIPE)
    other.write_text(ROW * 20_000)
    with pytest.raises(InputError, match=r"1\.8 MB of files, most of it data/rows\.jsonl"):
        render(job(project), FOLDER)
    with pytest.raises(InputError, match="runs a recipe and nothing else"):
        Job(REMOTE, Work(("bash",)), project, groups=(1,))


def test_a_model_with_a_bare_name_must_lie_in_the_claim(project: Path) -> None:
    (project / "models/small").mkdir(parents=True)
    (project / "models/small/config.json").write_text(json.dumps({"model_type": "llama"}))
    made = job(project, "train", "recipes/r.yaml", "--set", "model=small")
    assert made.work.models == ("small",)
    assert "# Must lie in the folder models of the claim before: small." in render(made, FOLDER).text
    assert "config.json" not in str(documents(made)["ConfigMap"])


def test_the_command(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(project)
    common = ("emit", "kubernetes", "-t", "gfx1151", "--image", REMOTE, "--group", "44")
    assert main([*common, "--with", "jobset", "--nodes", "2", "-o", "job.yaml", "--", "train", "recipes/r.yaml"]) == 0
    for document in yaml.safe_load_all((project / "job.yaml").read_text()):
        check(document)
    assert main(["emit", "kubernetes", "-t", "cpu", "--", "train", "recipes/r.yaml"]) == 2
    assert "no cluster can pull localhost/strix-finetune:cpu" in capsys.readouterr().err
    assert main([*common, "--with", "podman", "--", "train", "recipes/r.yaml"]) == 2
    assert "take trainjob or jobset" in capsys.readouterr().err
    assert main([*common, "--rdma", "--", "train", "recipes/r.yaml"]) == 2
    assert "--rdma means nothing for kubernetes" in capsys.readouterr().err
