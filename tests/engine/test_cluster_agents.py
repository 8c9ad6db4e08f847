"""The agents' containers on each engine: spoken with by lines, and gone at the end, whatever ends it.

The image has no Python; what is called so is a shell that answers as the agent does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from strix_finetune.cluster.agents import LABEL as OURS
from strix_finetune.cluster.agents import Agent, AgentLost, agents, clock_offset
from strix_finetune.cluster.nodes import Node
from strix_finetune.cluster.reach import Reached
from tests.engine.conftest import LABEL, PREFIX, Bench

ANSWERS = """\
#!/bin/sh
test -s "$1" || exit 3
echo '{"id": 0, "value": "ready"}'
echo 'a warning of some library' >&2
n=0
while read -r line; do
  n=$((n + 1))
  case $line in
    *crash*) echo 'what went wrong' >&2; exit 1 ;;
    *) echo "{\\"id\\": $n, \\"value\\": {\\"unix_seconds\\": $(date +%s)}}" ;;
  esac
done
"""


@pytest.fixture
def image(bench: Bench) -> str:
    made = bench.build("FROM {base}\nCOPY --chmod=0755 python3 /bin/python3\n", files={"python3": ANSWERS.encode()})
    name = f"{PREFIX}/agent:1"
    bench.engine.tag(made, name)
    return name


def left(bench: Bench) -> list[str]:
    """The containers of agents of these tests: they have the labels of their image, too."""
    labels = {"label": [f"{OURS}=agent", LABEL]}
    return [found["Id"] for found in bench.engine.api.containers(all=True, filters=labels)]


def gone(bench: Bench) -> bool:
    """Whether no container is left, or all are being removed: an engine that removes one by itself takes its time."""
    until = time.monotonic() + 20
    while left(bench) and time.monotonic() < until:
        time.sleep(0.1)
    return not left(bench)


def node(bench: Bench) -> Reached:
    return Reached(Node("here", 0, address="127.0.0.1"), bench.engine)


def test_agents_answer_and_are_gone(bench: Bench, image: str) -> None:
    with agents([(node(bench), image), (replace(node(bench), node=Node("two", 1)), image)]) as found:
        assert all(isinstance(agent, Agent) for agent in found)
        assert len(left(bench)) == 2
        for agent in found:
            assert isinstance(agent, Agent)
            offset, exact = clock_offset(agent)
            assert abs(offset) < 2 + exact
    assert gone(bench)


def test_an_agent_that_crashes_says_its_last_words(bench: Bench, image: str) -> None:
    with agents([(node(bench), image)]) as (agent,):
        assert isinstance(agent, Agent)
        with pytest.raises(AgentLost, match=r"node here: the agent's container ended \(what went wrong\)"):
            agent.get("crash", 10)
    assert gone(bench)


def test_an_image_without_python_is_an_answer(bench: Bench) -> None:
    with agents([(node(bench), bench.base)]) as (answer,):
        assert not isinstance(answer, Agent)
        assert "python3" in str(answer)
    assert gone(bench)


def test_the_engine_removes_what_a_killed_driver_leaves(bench: Bench, image: str) -> None:
    """The agent's input ends with the driver, and so does the agent."""
    script = (
        "import os, sys, time\nfrom strix_finetune.engine.select import connect\n"
        "from strix_finetune.cluster.agents import agents\nfrom strix_finetune.cluster.nodes import Node\n"
        "from strix_finetune.cluster.reach import Reached\n"
        "here = Reached(Node('here', 0), connect(sys.argv[1], os.environ))\n"
        "with agents([(here, sys.argv[2])]) as found:\n    print(found, flush=True)\n    time.sleep(60)\n"
    )
    url = bench.engine.info.url
    env = {**os.environ, "DOCKER_HOST": url, "CONTAINER_HOST": url}
    command = [sys.executable, "-c", script, bench.engine.info.kind, image]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as driver:
        assert driver.stdout
        assert b"Agent object" in driver.stdout.readline()
        assert len(left(bench)) == 1
        driver.send_signal(signal.SIGKILL)
    assert gone(bench)


def test_labels_are_those_of_a_driver(bench: Bench, image: str) -> None:
    """So that the next start finds what this one could not remove."""
    with agents([(node(bench), image)]):
        (found,) = bench.engine.api.containers(all=True, filters={"label": [f"{OURS}=agent", LABEL]})
        assert found["Labels"]["io.strix-finetune.pid"] == str(os.getpid())
