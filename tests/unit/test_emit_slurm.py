"""The batch script, with programs that stand in for Slurm and for what runs containers, and say what they were told."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from strix_finetune.caches import ENVIRONMENT, TOKEN
from strix_finetune.cli import main
from strix_finetune.emit import edited
from strix_finetune.errors import InputError
from strix_finetune.jobs import Work, network, variables, work
from strix_finetune.paths import find
from strix_finetune.recipefacts import RecipeFacts
from strix_finetune.slurm import RUNTIMES, Job, render

FOLDER = find({}).toolbox
REMOTE = "registry.example.org/me/strix-finetune:gfx1151"
TRAIN = Work(("train", "run", "/p/r.yaml", "--set", "x=$y"), trains=True, output="/p/runs")
# each says what it was told, and srun does it as the second of two nodes would
PROGRAM = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" END >>"$SAID"
case ${0##*/} in
scontrol)
  case $* in
  *hostnames*) printf 'one\\ntwo\\n' ;;
  *"node one"*) echo "NodeName=one Arch=x NodeAddr=10.0.0.1 NodeHostName=one" ;;
  *"node two"*) echo "NodeName=two Arch=x NodeAddr=10.0.0.2 NodeHostName=two" ;;
  esac ;;
srun)
  while [ "${1#--}" != "$1" ]; do shift; done
  export SLURM_NODEID=1 SLURMD_NODENAME=two
  "$@" </dev/null ;;
scancel) ;;
*)
  [ "$1" != pull ] || { : >"$2"; exit 0; }
  printf '%s\\0' place "$PET_NODE_RANK" "$PET_MASTER_ADDR" "$STRIX_PEER" END >>"$SAID"
  [ -z "${BATCH:-}" ] || { kill -INT "$BATCH"; sleep 0.2; }
  exit "${CODE:-0}" ;;
esac
"""


def job(**more: Any) -> Job:
    values: dict[str, Any] = {"image": REMOTE, "work": TRAIN, "project": Path("/p"), "nodes": 2} | more
    return Job(**values)


def ran(made: Job, tmp_path: Path, *words: str, **env: str) -> tuple[int, dict[str, list[list[str]]]]:
    """The exit code of the script, and what each program was told, call by call."""
    tools, said = tmp_path / "tools", tmp_path / "said"
    tools.mkdir(exist_ok=True)
    for name in ("scontrol", "srun", "scancel", "podman", "apptainer", "python3"):
        (tools / name).write_text(PROGRAM)
        (tools / name).chmod(0o755)
    said.unlink(missing_ok=True)
    script = tmp_path / "job.sbatch"
    text = render(made, FOLDER).text
    script.write_text(text.replace("\nwords=(", "\nexport BATCH=$$\nwords=(", 1) if "SIGNALLED" in env else text)
    known = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path / "home"), "SAID": str(said), "SLURM_JOB_ID": "217"}
    known |= {"SLURM_JOB_NODELIST": "one,two", "SLURM_JOB_NAME": "j", "XDG_RUNTIME_DIR": str(tmp_path)} | env
    done = subprocess.run(["bash", str(script), *words], env=known, cwd=tmp_path, capture_output=True, text=True)
    calls: dict[str, list[list[str]]] = {}
    call: list[str] = []
    for word in said.read_text().split("\0")[:-1]:
        if word != "END":
            call.append(word)
            continue
        calls.setdefault(call[0], []).append(call[1:])
        call = []
    return done.returncode, calls


def after(argv: list[str], flag: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == flag]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("gpu", [True, False])
def test_slurm_reads_the_head_and_bash_the_rest(runtime: str, gpu: bool, tmp_path: Path) -> None:
    text = render(job(runtime=runtime, gpu=gpu, processes=2, project=Path("/a b")), FOLDER).text
    assert not edited(text)
    head = text[: text.index("\nset -euo")].splitlines()
    options = [line.removeprefix("#SBATCH ") for line in head if line.startswith("#SBATCH ")]
    assert all(line.startswith("#") for line in head)
    assert {'--chdir="/a b"', "--nodes=2", "--ntasks-per-node=1", "--signal=B:INT@120", "--requeue"} <= set(options)
    assert ("--gres=gpu:2" in options) == gpu
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "{{" not in text
    assert "{%" not in text


def test_podman_runs_one_container_on_each_node(tmp_path: Path) -> None:
    code, said = ran(
        job(gpu=False, token="/t", variables={"NCCL_IB_DISABLE": "1"}), tmp_path, "--set", "a b", NCCL_DEBUG="INFO"
    )
    assert code == 0
    (argv,) = said["podman"]
    assert argv[:6] == ["run", "--rm", "--name", "strix-217-1", "--replace", "--interactive"]
    assert after(argv, "--network") == ["host"]
    passed = after(argv, "--env")
    assert {"PET_MASTER_ADDR", "PET_NODE_RANK", "STRIX_PEER", "NCCL_DEBUG", "NCCL_IB_DISABLE"} <= set(passed)
    assert {f"{name}={value}" for name, value in ENVIRONMENT.items()} <= set(passed)
    assert not [each for each in passed if each.startswith(("STRIX_PLACE", "HOME", "PATH", "SLURM"))]
    mounts = after(argv, "--mount")
    assert "type=bind,source=/p,target=/p" in mounts
    assert f"type=bind,source=/t,target={TOKEN},readonly" in mounts
    assert f"type=bind,source={tmp_path}/home/.cache/huggingface,target=/hub" in mounts
    ends = argv[argv.index(REMOTE) + 1 :]
    assert ends[:5] == ["python3", "-m", "strix_train.joining", "--attended", "--"]
    assert ends[5:] == [*TRAIN.words, "--set", "a b", "--run-dir", "/p/runs/j-217"]
    # the first node is named by the address that Slurm knows, and gets to know another one
    assert said["place"] == [["1", "10.0.0.1", "10.0.0.2"]]
    (step,) = said["srun"]
    assert {"--kill-on-bad-exit=1", "--wait=0", "--ntasks-per-node=1"} <= set(step)


def test_what_a_killed_client_left_is_removed(tmp_path: Path) -> None:
    code, said = ran(job(gpu=False), tmp_path, CODE="9")
    assert code == 9
    assert [argv[0] for argv in said["podman"]] == ["run", "rm"]
    assert said["podman"][1][-1] == "strix-217-1"
    assert len(ran(job(gpu=False), tmp_path, CODE="130")[1]["podman"]) == 1


def test_podman_without_root_keeps_groups_and_finds_a_folder_for_its_state(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "id").write_text("#!/bin/sh\necho 1000\n")
    (tools / "id").chmod(0o755)
    for gpu, groups in ((True, ["keep-groups"]), (False, [])):
        (argv,) = ran(job(gpu=gpu), tmp_path, XDG_RUNTIME_DIR="", TMPDIR=str(tmp_path))[1]["podman"]
        assert after(argv, "--userns") == ["keep-id"]
        assert after(argv, "--group-add") == groups
        assert ("/dev/kfd" in after(argv, "--device")) == gpu
    assert (tmp_path / "podman-run-1000").stat().st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_else_is_not_used_for_the_state_of_podman(tmp_path: Path) -> None:
    """All can write to /tmp, and the name is easily guessed."""
    tools, place = tmp_path / "tools", tmp_path / "podman-run-1000"
    tools.mkdir()
    (tools / "id").write_text("#!/bin/sh\necho 1000\n")
    (tools / "id").chmod(0o755)
    (tmp_path / "theirs").mkdir(mode=0o755)
    place.symlink_to(tmp_path / "theirs")
    code, said = ran(job(gpu=False), tmp_path, XDG_RUNTIME_DIR="", TMPDIR=str(tmp_path))
    assert (code, "podman" in said) == (1, False)
    assert (tmp_path / "theirs").stat().st_mode & 0o777 == 0o755
    if os.geteuid() == 0:
        place.unlink()
        place.mkdir()
        os.chown(place, 12345, 12345)
        code, said = ran(job(gpu=False), tmp_path, XDG_RUNTIME_DIR="", TMPDIR=str(tmp_path))
        assert (code, "podman" in said) == (1, False)


def test_apptainer_keeps_the_rocm_of_the_image(tmp_path: Path) -> None:
    code, said = ran(job(runtime="apptainer", image="images/x.sif"), tmp_path, OMP_NUM_THREADS="4")
    assert code == 0
    (argv,) = said["apptainer"]
    assert argv[0] == "exec"
    assert "--rocm" not in argv
    assert {"--cleanenv", "--no-home"} <= set(argv)
    assert "OMP_NUM_THREADS=4" in after(argv, "--env")
    assert "PET_NODE_RANK=1" in after(argv, "--env")
    assert argv[argv.index("/p/images/x.sif") + 1 :][:2] == ["python3", "-m"]
    assert "--attended" not in argv
    # an image of a registry is converted once, before the nodes start
    file = tmp_path / "home/.cache/strix-finetune/registry.example.org_me_strix-finetune_gfx1151.sif"
    for calls in (["pull", "exec"], ["exec"]):
        code, said = ran(job(runtime="apptainer"), tmp_path)
        assert code == 0
        assert [argv[0] for argv in said["apptainer"]] == calls
        assert str(file) in said["apptainer"][-1]
    assert file.is_file()


def test_pyxis_gets_its_flags_from_srun(tmp_path: Path) -> None:
    code, said = ran(job(runtime="pyxis", rdma=True), tmp_path)
    assert code == 0
    made, step = said["srun"]
    assert "mkdir" in made
    flags = dict(word.removeprefix("--").split("=", 1) for word in step if word.startswith("--container-"))
    assert flags["container-image"] == "registry.example.org#me/strix-finetune:gfx1151"
    assert flags["container-workdir"] == "/p"
    assert "--no-container-mount-home" in step
    mounts = flags["container-mounts"].split(",")
    assert {"/p:/p", "/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri", "/dev/infiniband:/dev/infiniband"} <= set(mounts)
    assert f"{tmp_path}/home/.cache/strix-finetune/models:/models:ro" in mounts
    assert "HF_HOME=/hub" in step
    (inside,) = said["python3"]
    assert inside == ["-m", "strix_train.joining", "--", *TRAIN.words, "--run-dir", "/p/runs/j-217"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_who_was_asked_to_stop_has_not_failed(runtime: str, tmp_path: Path) -> None:
    image = "x.sif" if runtime == "apptainer" else REMOTE
    made = job(runtime=runtime, image=image, gpu=False)
    assert ran(made, tmp_path, CODE="130")[0] == 0
    assert ran(made, tmp_path, CODE="3")[0] == 3


def test_a_job_that_is_started_again_goes_on(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    made = job(gpu=False, work=Work(("train", "run", "r.yaml"), trains=True, output=str(runs)))

    def given(restarts: int) -> list[str]:
        (argv,) = ran(made, tmp_path, SLURM_RESTART_COUNT=str(restarts))[1]["podman"]
        return argv[argv.index("r.yaml") + 1 :]

    assert given(0) == ["--run-dir", f"{runs}/j-217"]
    # it had no checkpoint: a new folder, and that one is found the next time
    assert given(1) == ["--run-dir", f"{runs}/j-217-1"]
    (runs / "j-217-1/checkpoints/checkpoint-5").mkdir(parents=True)
    assert given(2) == ["--run-dir", f"{runs}/j-217-1", "--resume"]
    named = job(gpu=False, work=Work(("train", "run", "r.yaml"), trains=True, run=str(tmp_path / "mine")))
    (argv,) = ran(named, tmp_path)[1]["podman"]
    assert argv[-2:] == ["--run-dir", str(tmp_path / "mine")]


@pytest.mark.parametrize(("checkpoint", "code", "requeued"), [(True, 0, True), (False, 130, False)])
def test_only_what_came_forward_is_queued_again(checkpoint: bool, code: int, requeued: bool, tmp_path: Path) -> None:
    """The signal comes while the step runs: the stand-in sends it, as Slurm does near the time limit."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "status.json").write_text(json.dumps({"state": "interrupted"}, indent=2))
    if checkpoint:
        (run / "checkpoints/checkpoint-2").mkdir(parents=True)
    made = job(gpu=False, work=Work(("train", "run", "r.yaml"), trains=True, run=str(run)))
    ended, said = ran(made, tmp_path, CODE="130", SIGNALLED="1")
    assert ended == code
    assert said["scancel"] == [["--signal=INT", "217"]]
    assert (["requeue", "217"] in said["scontrol"]) == requeued


def test_another_network_has_other_names(tmp_path: Path) -> None:
    _, said = ran(job(suffix="-ib", gpu=False), tmp_path)
    assert said["place"] == [["1", "one-ib", "two-ib"]]
    assert not [call for call in said["scontrol"] if "node" in call]


def test_what_the_recipe_names_outside_is_mounted() -> None:
    facts = RecipeFacts("/p/r.yaml", (Path("/p/r.yaml"), Path("/data/rows.jsonl")), (Path("/big/runs"),))
    made = job(work=Work(("train",), facts, True, output="/big/runs"))
    assert ("/data/rows.jsonl", "/data/rows.jsonl", True) in made.mounts
    assert ("/big/runs", "/big/runs", False) in made.mounts
    assert len([source for source, _, _ in made.mounts if source.startswith("/p")]) == 1
    assert made.writes == ("/big/runs",)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"runtime": "apptainer", "image": "localhost/x:1"}, r"give its file with --image FILE\.sif"),
        ({"runtime": "pyxis", "image": "localhost/x:1"}, r"give its file with --image FILE\.sqsh"),
        ({"image": "a b"}, "no name of an image"),
        ({"name": "-x"}, "no name of a job"),
        ({"suffix": "$(id)"}, "no end of a host's name"),
        ({"project": Path("/a,b")}, "no mount can hold"),
        ({"token": '/a"b'}, "no mount can hold"),
    ],
)
def test_what_no_script_could_hold_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        job(**more)


def test_the_words_of_a_job(tmp_path: Path) -> None:
    folders = find({})

    def of(*words: str) -> Work:
        return work(words, tmp_path, folders.recipes, tmp_path / "models")

    found = of("train", "gemma3-4b-lora", "--run-dir", "mine", "--set", "schedule.seed=3")
    assert found.words == (
        "train",
        "run",
        "/opt/strix-finetune/recipes/gemma3-4b-lora.yaml",
        "--set",
        "schedule.seed=3",
    )
    assert (found.trains, found.run, found.output) == (True, str(tmp_path / "mine"), "")
    assert of("train", "run", "gemma3-4b-lora").output == str(tmp_path / "runs")
    assert not of("train", "estimate", "gemma3-4b-lora").trains
    assert of("python3", "x.py").words == ("python3", "x.py")
    for words, said in (
        ((), "write it last, behind --"),
        (("train", "run"), "names no recipe"),
        (("a\nb",), "control"),
    ):
        with pytest.raises(InputError, match=said):
            of(*words)
    with pytest.raises(InputError, match="does not exist"):
        of("train", "nothing.yaml")


def test_what_is_said_of_the_network() -> None:
    assert network("gfx1151", gpu=True, rdma=False) == {"NCCL_IB_DISABLE": "1", "NCCL_NET_GDR_LEVEL": "0"}
    assert network("gfx942", gpu=True, rdma=True) == {"NCCL_IB_TIMEOUT": "23", "NCCL_IB_RETRY_CNT": "7"}
    assert network("cpu", gpu=False, rdma=False) == {}
    assert variables(["NCCL_IB_HCA=rocep194s0:1", "X="]) == {"NCCL_IB_HCA": "rocep194s0:1", "X": ""}
    for word in ("X", "1=2", "X=a b", "X=$(id)", "X=é"):
        with pytest.raises(InputError, match="write NAME=VALUE"):
            variables([word])


def test_a_variable_is_given_and_may_be_given_again(tmp_path: Path) -> None:
    made = job(gpu=False, variables={"NCCL_IB_HCA": "rocep194s0:1", "MINE": "1"})
    (argv,) = ran(made, tmp_path)[1]["podman"]
    assert {"NCCL_IB_HCA", "MINE"} <= set(after(argv, "--env"))
    assert 'export MINE="${MINE:-1}"' in render(made, FOLDER).text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["emit", "slurm", "-t", "cpu", "--nodes", "2", "-o", "x.sbatch", "--", "train", "gemma3-4b-lora"]) == 0
    text = (tmp_path / "x.sbatch").read_text()
    assert f'#SBATCH --chdir="{tmp_path}"' in text
    assert "localhost/strix-finetune:cpu" in text
    assert os.access(tmp_path / "x.sbatch", os.X_OK)
    assert main(["emit", "slurm", "-t", "cpu"]) == 2
    assert "what the job runs is not said" in capsys.readouterr().err
    assert main(["emit", "slurm", "--device", "/dev/kfd", "--", "true"]) == 2
    assert "--device means nothing for slurm" in capsys.readouterr().err
    assert main(["emit", "compose", "--nodes", "2"]) == 2
    assert "--nodes means nothing for compose" in capsys.readouterr().err
