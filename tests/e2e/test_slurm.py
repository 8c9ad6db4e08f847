"""The demo recipe on two nodes of a real Slurm, one Podman container each, through all that its batch script does.

Both nodes are this machine, as Slurm's own tests have it; that there is another network between them is what the tests
of the cluster commands show.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.slurm_cluster import Slurm, available, slurm
from tests.e2e.stranger import Stranger
from tests.e2e.test_podman import IMAGE, TARGET
from tests.e2e.test_podman import podman_env as podman_env

pytestmark = pytest.mark.skipif(not available(), reason="Slurm is not installed, or this is not root")

# a run by which the way is shown
QUICK = ("--set", "schedule.steps=6", "--set", "questions=null", "--set", "checkpoints.every=100")


@pytest.fixture(scope="module")
def cluster(
    stranger: Stranger, podman_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slurm]:
    stranger.run("make", "image", "ENGINE=podman", f"TARGET={TARGET}")
    stranger.strix("fetch", "demo", "--engine", "podman", "--target", TARGET)
    env = stranger.environment({**podman_env, "OMP_NUM_THREADS": "1"})
    with slurm(tmp_path_factory.mktemp("slurm"), env) as made:
        yield made


def submitted(cluster: Slurm, stranger: Stranger, project: Path, *command: str) -> str:
    """The number of the job."""
    script = project / "job.sbatch"
    emit = ("emit", "slurm", "-t", TARGET, "--nodes", "2", "--name", "demo", "--project", str(project))
    stranger.strix(*emit, "-o", str(script), "--", *command)
    cluster.run("sbatch", "--test-only", str(script))
    return cluster.run("sbatch", "--parsable", str(script)).strip()


def containers(cluster: Slurm) -> list[str]:
    return cluster.run("podman", "ps", "--all", "--noheading", "--format", "{{.ID}} {{.Command}}").splitlines()


def test_the_demo_trains_on_two_nodes_and_goes_on_after_the_time_limit(
    cluster: Slurm, stranger: Stranger, tmp_path: Path
) -> None:
    before = containers(cluster)
    job = submitted(cluster, stranger, tmp_path, "train", "demo", *QUICK)
    log, run = tmp_path / f"demo-{job}-node0.log", tmp_path / f"runs/demo-{job}"
    cluster.wait(job, lambda: log.is_file() and "\nstep 1/6" in log.read_text(), 300, tmp_path)
    # what Slurm does two minutes before the limit
    cluster.run("scancel", "--batch", "--signal=INT", job)
    cluster.wait(job, lambda: cluster.state(job) == "PENDING", 120, tmp_path)
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    done = json.loads((run / "status.json").read_text())["step"]
    assert 1 <= done < 6
    assert containers(cluster) == before
    # Slurm would wait two minutes; within the second in which the job was ended, slurmd refuses to start it again
    cluster.run("scontrol", "update", f"jobid={job}", "starttime=now+2")
    cluster.wait(job, lambda: cluster.state(job) == "COMPLETED", 300, tmp_path)
    told = log.read_text()
    assert f"resume    from step {done} of 6" in told
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    assert (run / "adapter/adapter_model.safetensors").is_file()
    # the second node has joined twice, and said nothing more
    joined = (tmp_path / f"demo-{job}-node1.log").read_text()
    assert joined.count("node 1 of 2") == 2
    assert "step" not in joined
    assert f"goes on from {run}" in (tmp_path / f"demo-{job}.log").read_text()
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert containers(cluster) == before


def test_a_node_that_fails_ends_the_others_and_a_killed_client_leaves_nothing(
    cluster: Slurm, stranger: Stranger, tmp_path: Path
) -> None:
    before = containers(cluster)
    fails = """echo "rank $RANK of $WORLD_SIZE by $GLOO_SOCKET_IFNAME"
if [ "$RANK" = 0 ]; then touch there; exec sleep 300; fi
until [ -e there ]; do sleep 0.1; done
exit 7"""
    (tmp_path / "fails.sh").write_text(fails)
    job = submitted(cluster, stranger, tmp_path, "bash", "fails.sh")
    cluster.wait(job, lambda: cluster.state(job) == "FAILED", 120, tmp_path)
    for rank in (0, 1):
        assert f"rank {rank} of 2 by lo" in (tmp_path / f"demo-{job}-node{rank}.log").read_text()
    assert "Exited with exit code 7" in (tmp_path / f"demo-{job}.log").read_text()
    # the container of the first node had a client that was killed
    deadline = time.monotonic() + 30
    while containers(cluster) != before:
        assert time.monotonic() < deadline, containers(cluster)
        time.sleep(0.3)


def test_an_image_that_a_node_does_not_have_is_named(cluster: Slurm, stranger: Stranger, tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    emit = ("emit", "slurm", "-t", TARGET, "--name", "demo", "--project", str(tmp_path), "--image", f"{IMAGE}-other")
    stranger.strix(*emit, "-o", str(script), "--", "true")
    job = cluster.run("sbatch", "--parsable", str(script)).strip()
    cluster.wait(job, lambda: cluster.state(job) == "FAILED", 120, tmp_path)
    said = (tmp_path / f"demo-{job}-node0.log").read_text()
    assert said == f"error: strix1 has no {IMAGE}-other; load it there, or push it and emit this with --image\n"
