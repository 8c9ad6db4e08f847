"""Who supervises hears how a container ended, whatever went wrong while it was followed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strix_finetune.cluster import containers
from strix_finetune.cluster.containers import Container


class Engine:
    """An engine and a node of which one thing fails."""

    def __init__(self, answer: Any) -> None:
        self.engine, self.api, self.answer = self, self, answer
        self.killed: list[str] = []

    def drain(self, on_data: Any, deadline: None) -> bool:
        return True

    def wait(self, name: str, timeout: None) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def inspect_container(self, name: str) -> Any:
        return {"State": {"OOMKilled": True}}

    def kill(self, name: str, signal: str) -> None:
        self.killed.append(signal)

    def lost(self) -> str:
        return "gone"


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ({"StatusCode": 137}, (137, True, "")),
        ({}, (None, False, "gone")),
        (RuntimeError("of a library"), (None, False, "gone")),
        (["no mapping"], (None, False, "gone")),
    ],
)
def test_the_end_is_told_whatever_it_is(answer: Any, end: tuple[int | None, bool, str]) -> None:
    ends: list[tuple[int | None, bool, str]] = []
    engine: Any = Engine(answer)
    container = Container(
        engine,
        None,
        token="",
        on_output=lambda data: None,
        on_end=lambda *said: ends.append(said),  # type: ignore[arg-type]
    )
    container._link = engine
    container._follow()
    assert ends == [end]


def test_a_signal_waits_for_a_process_that_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_BIRTH", 30.0)
    engine: Any = Engine({})
    output: list[bytes] = []
    container = Container(engine, None, token="", on_output=output.append, on_end=lambda *said: None)  # type: ignore[arg-type]
    sender = threading.Thread(target=container.signal, args=("SIGINT",))
    sender.start()
    sender.join(0.2)
    assert engine.killed == []
    container.signal("SIGKILL")
    assert engine.killed == ["SIGKILL"]
    container._hear(b"node 0 of 2\n")
    sender.join(10)
    assert engine.killed == ["SIGKILL", "SIGINT"]
    assert output == [b"node 0 of 2\n"]
