"""The README's commands, as a stranger types them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.e2e.stranger import TRAINING, Stranger

IMAGE = "localhost/strix-finetune:gfx1151"


def test_make_demo_teaches_the_model(stranger: Stranger) -> None:
    """`make demo` in a fresh clone with an empty home: all held-out questions are answered, and the figures shown."""
    said = stranger.run("make", "demo")
    assert "0 of 8 before, 8 of 8 after" in said
    curve = re.search(r"^loss curve: (\S+)$", said, re.M)
    assert curve
    assert (stranger.clone / curve[1]).read_bytes().startswith(b"\x89PNG")
    assert re.search(rf"^{re.escape(IMAGE)} +[0-9a-f]{{12}} +[\d,.]+ MB", said, re.M)
    assert re.search(r"^time: images \d+ s, model \d+ s, training \d+ s", said, re.M)


def test_a_second_run_and_a_run_without_its_venv_build_nothing(stranger: Stranger) -> None:
    assert "up to date in" in stranger.run("make", "image", f"OVERRIDE={TRAINING}")
    stranger.run("rm", "-rf", ".venv")
    said = stranger.run("make", "image", f"OVERRIDE={TRAINING}")
    assert "building" not in said
    assert IMAGE in said


def test_json_output_is_what_the_documentation_says(stranger: Stranger) -> None:
    said = stranger.strix("plan", "--json", "--override", TRAINING)
    plan = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    # what nobody asked for is named, too, and used where it is there
    planned = {event["layer"]: event["action"] for event in plan}
    assert planned.pop("workbench") in ("not-needed", "reuse")
    assert list(planned)[-1] == "finetune"
    assert {"event", "layer", "action", "reason", "key", "tags"} <= set(plan[0])
    said = stranger.strix("build", "--json", "--override", TRAINING)
    built = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert built[-1]["event"] == "finished"
    assert built[-1]["image"] == IMAGE
    rows = json.loads(stranger.strix("images", "--json"))["images"]
    final = next(row for row in rows if row["name"] == IMAGE)
    assert final["layer"] == "finetune"
    assert final["size"] > 500e6
    assert 0 < final["adds"] < 5e6


def test_docker_run_works_as_anybody(stranger: Stranger) -> None:
    said = stranger.run("docker", "run", "--rm", "--user", "4321:4321", IMAGE, "train", "--help")
    assert "RECIPE" in said
    # CMD is the help, too
    assert "RECIPE" in stranger.run("docker", "run", "--rm", IMAGE)


def test_the_labels_say_what_the_image_is(stranger: Stranger) -> None:
    image = json.loads(stranger.run("docker", "image", "inspect", IMAGE))[0]["Config"]
    labels = image["Labels"]
    assert labels["com.github.containers.toolbox"] == "true"
    assert labels["io.strix-finetune.target"] == "gfx1151"
    assert "CPU" in labels["io.strix-finetune.notice"]
    assert not image.get("Entrypoint")
    held = {entry.split("=")[0] for entry in image["Env"]}
    assert not held & {"LD_PRELOAD", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"}


def test_the_image_has_one_rccl_and_it_is_for_the_target(stranger: Stranger) -> None:
    """No GPU is needed to see which device code a library holds."""
    inside = "find / -xdev -name 'librccl.so*' -type f; ldconfig -p | grep librccl.so.1"
    said = stranger.run("docker", "run", "--rm", IMAGE, "sh", "-c", inside).split("\n")
    assert [line for line in said if line.startswith("/")] == ["/opt/rccl/lib/librccl.so.1.0"]
    assert "librccl.so.1" in said[1]
    copied = ("docker", "run", "--rm", "-v", f"{stranger.home}:/out", IMAGE)
    stranger.run(*copied, "cp", "/opt/rccl/lib/librccl.so.1.0", "/out/librccl.so")
    found = json.loads(stranger.strix("inspect", "--json", "--require", "gfx1151", f"{stranger.home}/librccl.so"))
    assert "gfx1151" in json.dumps(found)
    assert not re.search(r"gfx(?!1151)\d", json.dumps(found))


def test_nothing_is_left_behind(stranger: Stranger) -> None:
    """No container, no mount, no half-written file after all of the above."""
    labelled = ("docker", "ps", "-aq", "--filter", "label=io.strix-finetune.pid")
    assert stranger.run(*labelled).strip() == ""
    mounts = Path("/proc/mounts").read_text()
    assert str(stranger.home) not in mounts
    cache = stranger.home / ".cache" / "strix-finetune"
    assert not [path for path in cache.rglob("*") if re.search(r"\.(part|tmp|\d+)$", path.name) and path.is_file()]
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=stranger.clone, capture_output=True, text=True, check=True
    )
    assert changed.stdout == ""
