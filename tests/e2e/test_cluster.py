"""Two and three machines train the demo model together, and say within half a minute why they do not."""

from __future__ import annotations

import array
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from strix_finetune.cluster import parcels
from tests.e2e.stranger import Stranger
from tests.machines.desk import HOME, Desk, Machine, stores_of
from tests.machines.machine import Said, inner

IMAGE = "localhost/strix-finetune:cpu"
# what the launcher's user would wait for, and the time that a busy machine of CI may need on top
SECONDS, SLACK = 30, 30
# exact and quick: sums in 32 bits, and no compiler
PLAIN = ("precision=fp32", "backend=hf", "questions=null", "data.eval=null", "schedule.max_length=64")
PORTS = "29400-29419"


@dataclass
class Lab:
    """Three machines; who sits at one of them has the product's command line there."""

    desk: Desk
    program: Path

    @property
    def machines(self) -> list[Machine]:
        return self.desk.machines

    def toml(self, at: Machine, nodes: Sequence[Machine], **keys: str) -> None:
        """Write cluster.toml at a machine; the nodes are reached by ssh, but for that machine itself."""
        lines = [f'image = "{IMAGE}"', f'ports = "{PORTS}"']
        for node in nodes:
            lines += ["[[nodes]]", f'name = "{node.name}"', f'address = "{node.address}"']
            lines += [f'ssh = "{node.name}"'] if node is not at else []
            lines += [f'interface = "{keys[node.name]}"'] if node.name in keys else []
        (at.home / "cluster.toml").write_text("\n".join([*lines, ""]))

    def begin(self, at: Machine, *words: str, **options: int) -> subprocess.Popen[str]:
        env = {"OMP_NUM_THREADS": "1", "HF_TOKEN": "hf_secret_of_the_test"}
        return at.popen(str(self.program), "cluster", *words, env=env, **options)

    def train(self, at: Machine, *words: str, settings: Sequence[str] = ()) -> Said:
        """`cluster train demo`, to its end."""
        process = self.begin(at, "train", "demo", *sets(*PLAIN, *settings), *words)
        out, err = process.communicate(timeout=400)
        assert "Traceback" not in err, err
        assert "hf_secret_of_the_test" not in out + err
        return Said(process.returncode, out, err)

    def well(self, at: Machine, *words: str, settings: Sequence[str] = ()) -> Path:
        """The same for what must end well; returns the run folder on the head."""
        said = self.train(at, *words, settings=settings)
        assert said.code == 0, said.out[-3000:] + said.err
        found = re.search(r"done on \d nodes?: (\S+)", said.err)
        assert found, said.err
        return seen(at, found[1])

    def nothing_left(self) -> None:
        """No container, no process of ours, on any machine."""
        for machine in self.machines:
            if machine.running:
                assert machine.well("podman", "ps", "--all", "--quiet") == ""
                assert not re.findall(r"strix_train|conmon|system service", machine.well("ps", "-eo", "args"))


def seen(machine: Machine, path: str) -> Path:
    """A path below the home of a machine, as this host sees it."""
    return machine.home / Path(path).relative_to(HOME)


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [each["loss"] for line in lines if "loss" in (each := json.loads(line))]


def weights(run: Path) -> dict[str, array.array[float]]:
    """The tensors of an adapter that was saved in 32 bits."""
    data = (run / "adapter/adapter_model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32"
            begin, end = entry["data_offsets"]
            found[name] = array.array("f", data[start + begin : start + end])
    return found


@pytest.fixture(scope="module")
def lab(stranger: Stranger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Machines with the image and the demo model, as somebody has them who followed the README on each."""
    stranger.run("make", "image", "ENGINE=podman", "TARGET=cpu")
    stranger.strix("fetch", "demo", "--engine", "podman", "--target", "cpu")
    stores = stores_of(stranger.run("podman", "info", "--format", "json"))
    with Desk(tmp_path_factory.mktemp("desk"), stores) as desk:
        for name, office, link in (
            ("strix1", "eno1", "enp1s0"),
            ("strix2", "enp3s0", "thunderbolt0"),
            ("strix3", "lan0", "enp9s0f1"),
        ):
            machine = desk.put(name, office=office, link=link)
            machine.start()
            # the first one alone: the others get it from there
            if name == "strix1":
                models = machine.home / ".cache/strix-finetune/models"
                models.mkdir(parents=True)
                source = stranger.home / ".cache/strix-finetune/models/demo"
                subprocess.run(["cp", "-r", str(source), str(models / "demo")], check=True)
        yield Lab(desk, stranger.clone / ".venv/bin/strix-finetune")


@pytest.fixture
def trio(lab: Lab) -> Iterator[tuple[Machine, Machine, Machine]]:
    """All three switched on; whatever a test did, nothing of it is left."""
    for machine in lab.machines:
        if not machine.running:
            machine.start()
    one, two, three = lab.machines
    yield one, two, three
    lab.nothing_left()


@pytest.fixture(scope="module")
def alone(lab: Lab) -> Path:
    """One process with the rows of two: what DDP is held against."""
    one = lab.machines[0]
    lab.toml(one, [one])
    return lab.well(one, "--no-check", settings=("schedule.steps=2", "schedule.batch=4"))


Trio = tuple[Machine, Machine, Machine]


def test_two_machines_learn_what_one_process_would(lab: Lab, alone: Path, trio: Trio) -> None:
    one, two, _ = trio
    lab.toml(one, [one, two])
    run = lab.well(one, settings=("schedule.steps=2", "schedule.batch=2", "strategy=ddp"))
    assert losses(run) == pytest.approx(losses(alone), rel=1e-4)
    assert json.loads((run / "report.json").read_text())["same_weights"] is True
    mine, theirs = weights(alone), weights(run)
    assert mine.keys() == theirs.keys()
    for name, values in mine.items():
        assert max(abs(a - b) for a, b in zip(values, theirs[name], strict=True)) < 2e-4, name
    # the model went there once, and its own cache stayed as it was
    assert len(list((two.home / "strix-finetune/sent").iterdir())) == 1
    assert not (two.home / ".cache/strix-finetune/models/demo").exists()
    kept = sorted(path.name for path in (one.home / ".local/state/strix-finetune/cluster" / run.name).iterdir())
    assert kept == ["strix1.log", "strix2.log"]


def test_three_machines_share_the_weights_and_somebody_elsewhere_gets_the_run(lab: Lab, trio: Trio) -> None:
    """Started at the third one, where the recipe is a file with its own rows beside it."""
    one, two, three = trio
    own_recipe(three.home / "lab", "fsdp", "no")
    models = three.home / ".cache/strix-finetune/models"
    models.mkdir(parents=True, exist_ok=True)
    if not (models / "demo").exists():
        subprocess.run(["cp", "-r", str(one.home / ".cache/strix-finetune/models/demo"), str(models)], check=True)
    lab.toml(three, [one, two, three])
    process = lab.begin(three, "train", "lab/tiny.yaml")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out[-3000:] + err
    found = re.search(r"the run folder of strix1 is here: (\S+);", err)
    assert found, err
    run = seen(three, found[1])
    assert len(losses(run)) == 2
    assert (run / "adapter/adapter_model.safetensors").is_file()
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    assert not (run / "checkpoints").exists()
    assert json.loads((run / "versions.json").read_text())["processes"] == 3


def test_a_machine_that_loses_its_power_ends_all_and_two_go_on(lab: Lab, trio: Trio) -> None:
    one, two, three = trio
    lab.toml(one, [one, two, three])
    settings = ("schedule.steps=5", "schedule.batch=2", "strategy=ddp", "checkpoints.every=1")
    process = lab.begin(one, "train", "demo", "--run", "power", *sets(*PLAIN, *settings))
    checkpoints = one.home / "strix-finetune/runs/power/checkpoints"

    def pull_the_plug() -> None:
        until_there(checkpoints, "checkpoint-*")
        three.kill()

    out, killed = until(process, r"step \d/5", pull_the_plug)
    err = process.communicate(timeout=200)[1]
    took = time.monotonic() - killed
    assert process.returncode == 1, out
    assert re.search(r"error: cluster\.toml:\d+: node strix3 was lost: strix3 does not answer", err), err
    assert took < SECONDS + SLACK
    lab.nothing_left()
    lab.toml(one, [one, two])
    run = lab.well(one, "--no-check", "--run", "power", "--resume", settings=settings)
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    # what was in it when the power went is still there, until the next training in which it takes part
    three.start()
    three.well("podman", "rm", "--all", "--force")


def test_ctrl_c_ends_all_with_a_checkpoint(lab: Lab, trio: Trio) -> None:
    one, two, _ = trio
    lab.toml(one, [one, two])
    settings = (*PLAIN, "schedule.steps=40", "schedule.batch=1", "checkpoints.every=40")
    process = lab.begin(one, "train", "demo", "--no-check", "--run", "stopped", *sets(*settings))
    until(process, r"step \d+/40", lambda: os.kill(inner(process), signal.SIGINT))
    err = process.communicate(timeout=200)[1]
    assert process.returncode == 130, err
    assert "error" not in err
    assert list((one.home / "strix-finetune/runs/stopped/checkpoints").glob("checkpoint-*"))


def until_there(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"{folder} has no {pattern}"
        time.sleep(0.1)


def until(process: subprocess.Popen[str], pattern: str, act: Callable[[], object]) -> tuple[str, float]:
    """Read what it prints until a line matches, then act; the rest is read by nobody. Returns it, and when."""
    assert process.stdout
    said = ""
    patience = threading.Timer(300, process.kill)
    patience.start()
    for line in process.stdout:
        said += line
        if re.search(pattern, line):
            patience.cancel()
            act()
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return said, time.monotonic()
    patience.cancel()
    pytest.fail(f"'{pattern}' was never printed:\n{said}\n{process.stderr.read() if process.stderr else ''}")


Break = Callable[[Lab], Callable[[], object]]


def wrong_interface(lab: Lab) -> Callable[[], object]:
    one, two, _ = lab.machines
    lab.toml(one, [one, two], strix2=one.link)
    return lambda: None


def blocked_ports(lab: Lab) -> Callable[[], object]:
    lab.machines[1].block("29401:65535")
    return lab.machines[1].unblock


def mtu_mismatch(lab: Lab) -> Callable[[], object]:
    for machine in lab.machines[:2]:
        machine.mtu(9000)
    return lambda: [machine.mtu(1500) for machine in lab.machines[:2]]


def another_image(lab: Lab) -> Callable[[], object]:
    two = lab.machines[1]
    build = f"printf 'FROM {IMAGE}\\nLABEL io.strix-finetune.key=another\\n' | podman build --quiet --tag {IMAGE} -"
    two.well("sh", "-c", build)
    return lambda: two.well("podman", "rmi", "--force", IMAGE)


def never_started(lab: Lab) -> Callable[[], object]:
    two = lab.machines[1]
    two.kill()
    return two.start


def port_taken(lab: Lab) -> Callable[[], object]:
    taker = lab.machines[0].take(29400)
    return lambda: (taker.kill(), taker.communicate())


@pytest.mark.parametrize(
    ("breaking", "says"),
    [
        (wrong_interface, r"error: strix2: .*enp1s0"),
        (blocked_ports, r"error: strix1 > strix2: .*port"),
        (mtu_mismatch, r"error: strix\d > strix\d: .*(MTU|packet)"),
        (another_image, r"error: strix2: .*image"),
        (never_started, r"error: strix2: .*strix2"),
        (port_taken, r"error: strix1: .*29400"),
    ],
)
def test_a_fault_is_explained_and_nothing_hangs(lab: Lab, trio: Trio, breaking: Break, says: str) -> None:
    one, two, _ = trio
    lab.toml(one, [one, two])
    heal = breaking(lab)
    try:
        began = time.monotonic()
        said = lab.train(one, settings=("schedule.steps=1", "schedule.batch=1"))
        took = time.monotonic() - began
    finally:
        heal()
    assert (said.code, bool(re.search(says, said.err))) == (1, True), said.out[-2000:] + said.err
    assert took < SECONDS + SLACK


def test_a_wrong_clock_is_told_though_it_does_no_harm(lab: Lab, trio: Trio) -> None:
    """The check alone: what makes the clock wrong here disturbs Python's own waiting, which a real clock would not."""
    one, two, _ = trio
    lab.toml(one, [one, two])
    two.stop()
    two.clock("+3h")
    try:
        two.start()
        process = lab.begin(one, "check", "--brief")
        out = process.communicate(timeout=120)[0]
    finally:
        two.stop()
        two.clock()
    two.start()
    assert process.returncode == 0, out
    assert re.search(r"clock strix2 its clock is 3 h ahead", " ".join(out.split())), out


def test_other_rows_on_one_machine_are_found_before_the_first_step(lab: Lab, trio: Trio) -> None:
    """Somebody has changed what was sent there."""
    one, two, _ = trio
    recipe = own_recipe(one.home / "own", "ddp", "perhaps")
    (sent,) = parcels.gather([recipe.with_name("rows.jsonl")], lambda path, size: None)
    there = two.home / "strix-finetune/sent" / sent.stored
    there.parent.mkdir(parents=True)
    there.write_text((recipe.with_name("rows.jsonl")).read_text().replace("perhaps", "surely"))
    lab.toml(one, [one, two])
    process = lab.begin(one, "train", "own/tiny.yaml", "--no-check")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 2, out + err
    assert re.search(r"error: cluster\.toml:\d+: .*process 1 \(on strix2\) has other rows than process 0; give", err), (
        err
    )
    assert "step 1" not in out


def own_recipe(folder: Path, strategy: str, answer: str) -> Path:
    """A recipe of somebody's own, with its rows beside it."""
    folder.mkdir()
    turns = [({"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": answer}) for n in "abc"]
    rows = [{"messages": turn} for turn in turns]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows * 4))
    recipe = f"model: demo\nadapter: {{kind: lora, r: 4}}\ndata: {{train: rows.jsonl}}\nstrategy: {strategy}\n"
    recipe += "precision: fp32\nbackend: hf\nschedule: {steps: 2, batch: 1, max_length: 64, learning_rate: 1e-3}\n"
    (folder / "tiny.yaml").write_text(recipe)
    return folder / "tiny.yaml"


def test_the_own_name_may_stand_for_the_loopback(lab: Lab, trio: Trio) -> None:
    """gloo would bind 127.0.1.1, and the others wait for it for ever: each node is told its interface."""
    one, two, _ = trio
    lab.toml(one, [one, two])
    for machine in (one, two):
        machine.loopback_hostname()
    try:
        lab.well(one, settings=("schedule.steps=1", "schedule.batch=1"))
    finally:
        for machine in (one, two):
            machine.loopback_hostname(False)
