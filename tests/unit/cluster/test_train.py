"""A training that is asked to end before it has begun."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strix_finetune.cluster import train
from strix_finetune.cluster.logs import Logs
from strix_finetune.cluster.nodes import Node


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_containers_are_made_starts_none(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Container:
        def __init__(self, *arguments: Any, **options: Any) -> None: ...

        def create(self) -> None:
            os.kill(os.getpid(), number)
            done.append("create")

        def start(self) -> None:
            done.append("start")

        def remove(self) -> None:
            done.append("remove")

    monkeypatch.setattr(train, "Container", Container)
    before = signal.getsignal(number)
    reached: Any = [SimpleNamespace(node=Node(name, rank)) for rank, name in enumerate(("one", "two"))]
    stations: Any = [SimpleNamespace(request=None)] * 2
    logs = Logs(tmp_path, ["one", "two"], lambda line: None)
    with pytest.raises(KeyboardInterrupt):
        train._run(reached, stations, logs, "")
    logs.close()
    assert sorted(done) == ["create", "create", "remove", "remove"]
    assert signal.getsignal(number) is before
