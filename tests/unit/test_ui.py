"""Three ways to watch the same events."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune import events
from strix_finetune.events import (
    BlobProgress,
    Event,
    Finished,
    LayerDone,
    LayerPlanned,
    LayerStarted,
    Notice,
    Pulled,
    Pushed,
    SmokeResult,
    StepOutput,
    StepProgress,
    Targeted,
    TargetRow,
    TargetsDone,
    Vendored,
    as_json,
)
from strix_finetune.ui import make_view
from strix_finetune.ui.jsonl import JsonView
from strix_finetune.ui.plain import PlainView, megabytes, plain_lines, printable, shorten, summary

EVENTS: list[tuple[Event, list[str]]] = [
    (Notice("locked anew"), ["locked anew"]),
    (LayerPlanned("a", "reuse", "up to date", "k", ("t",)), ["a: up to date"]),
    (LayerPlanned("a", "build", "rebuild, x changed", "k", ()), ["a: rebuild, x changed"]),
    (LayerPlanned("a", "not-needed", "not needed", "k", ()), []),
    (LayerStarted("a", "why", "/log"), ["a: building, log in /log"]),
    (StepProgress("a", "RUN make"), []),
    (StepProgress("a", "RUN --mount=type=cache,target=/c  make\n  -j", seconds=1.26), ["a:   RUN make -j (1.3 s)"]),
    (StepProgress("a", "RUN make", cached=True, seconds=0.0), ["a:   RUN make (cached)"]),
    (StepOutput("a", "hello"), []),
    (SmokeResult("a", "a/t.sh", "static", "passed", "fine"), ["a:   smoke a/t.sh: ok, fine"]),
    (SmokeResult("a", "a/t.sh", "static", "passed", ""), ["a:   smoke a/t.sh: ok"]),
    (SmokeResult("a", "a/t.sh", "static", "failed", "exit code 1"), ["a:   smoke a/t.sh: FAILED, exit code 1"]),
    (SmokeResult("a", "a/g.sh", "device", "not-run", "no GPU"), ["a:   smoke a/g.sh: not run, no GPU"]),
    (LayerDone("a", "built", 12.34, "sha256:1", 123_456_789), ["a: built in 12.3 s, 123 MB"]),
    (LayerDone("a", "blocked", 0.0, message="not tried, 'b' failed"), ["a: not tried, 'b' failed"]),
    (
        LayerDone("a", "failed", 3.0, message="T:4: no", log_tail=("one", "two")),
        ["a: FAILED after 3.0 s", "a: | one", "a: | two", "error: T:4: no"],
    ),
    (Finished(1, 2, 1, 1, 4.56, ""), ["1 built, 2 up to date, 1 failed, 1 not tried in 4.6 s"]),
    (Finished(0, 3, 0, 0, 0.1, "localhost/x:y"), ["3 up to date in 0.1 s: localhost/x:y"]),
    (Finished(0, 0, 0, 0, 0.0), ["nothing to do in 0.0 s"]),
    (
        Vendored("debian-cpu", "/v", 200, 7 * 10**8, 3, 10**6, 9.96),
        ["/v: debian-cpu is complete, 200 files, 700 MB, 3 of them fetched, in 10.0 s"],
    ),
    (
        Vendored("debian-cpu", "/v", 200, 7 * 10**8, 0, 0, 1.0),
        ["/v: debian-cpu is complete, 200 files, 700 MB, nothing was fetched, in 1.0 s"],
    ),
    (LayerPlanned("a", "pull", "pull, the registry has it", "k", ()), ["a: pull, the registry has it"]),
    (LayerStarted("a", "r/x:a", "", "push"), ["a: pushing, r/x:a"]),
    (BlobProgress("a", f"sha256:{'1' * 64}", "moving", 1, 2), []),
    (BlobProgress("a", f"sha256:{'1' * 64}", "sent", 2_000_000, 2_000_000), ["a:   111111111111 sent, 2 MB"]),
    (BlobProgress("a", f"sha256:{'1' * 64}", "mounted", 2000, 2000), ["a:   111111111111 mounted, 2 kB"]),
    (BlobProgress("a", f"sha256:{'1' * 64}", "present", 2, 2), []),
    (LayerDone("a", "pulled", 2.0, "sha256:1", 5), ["a: pulled in 2.0 s"]),
    (LayerDone("a", "pushed", 2.0, "sha256:1", 5_000_000), ["a: pushed in 2.0 s, 5 MB sent"]),
    (Finished(1, 0, 0, 0, 1.0, "x:y", pulled=2), ["1 built, 2 pulled in 1.0 s: x:y"]),
    (Pushed("r/x", ("a-1", "a"), "sha256:1", 5000, 1.0), ["r/x: a-1, a pushed, 5 kB sent, in 1.0 s"]),
    (Targeted("cpu", Notice("locked anew")), ["cpu: locked anew"]),
    (Targeted("cpu", LayerDone("a", "built", 1.0, "sha256:1", 5_000_000)), ["cpu/a: built in 1.0 s, 5 MB"]),
    (Targeted("cpu", Finished(1, 0, 0, 0, 1.0, "x:y")), ["cpu: 1 built in 1.0 s: x:y"]),
    (
        TargetsDone(
            (
                TargetRow("cpu", "debian", "done", 1, 0, 12, 0, 0, 3.0, "x:y", ""),
                TargetRow("gfx1151", "amd", "failed", 0, 1, 0, 1, 2, 61.25, "", "rocm failed"),
            ),
            61.25,
        ),
        [
            "TARGET   CHANNEL  BUILT  PULLED  UP TO DATE  FAILED  NOT TRIED  SECONDS  RESULT",
            "cpu      debian       1       0          12       0          0      3.0  x:y",
            "gfx1151  amd          0       1           0       1          2     61.2  rocm failed",
        ],
    ),
    (Pulled("r/x", "l/y:a", "sha256:2", "k", "sha256:1", 0, 1.0), ["l/y:a: pulled from r/x, 0 kB received, in 1.0 s"]),
]


@pytest.mark.parametrize(("event", "lines"), EVENTS)
def test_a_plain_log(event: Event, lines: list[str]) -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    view.show(event)
    view.close()
    assert stream.getvalue() == "".join(line + "\n" for line in lines)


def test_every_kind_of_event_is_covered() -> None:
    assert {type(event) for event, _ in EVENTS} == set(typing.get_args(events.Event))


@pytest.mark.parametrize("event", [event for event, _ in EVENTS])
def test_json_lines(event: Event) -> None:
    stream = io.StringIO()
    JsonView(stream).show(event)
    assert stream.getvalue().count("\n") == 1
    value = json.loads(stream.getvalue())
    kind = value.pop("event")
    more = {}
    if isinstance(event, Targeted):
        event, more = event.event, {"target": event.target}
    assert kind == re.sub(r"(?<!^)([A-Z])", r"-\1", type(event).__name__).lower()
    assert value == json.loads(json.dumps(dataclasses.asdict(event))) | more


# the public interface: a field may be added, none renamed or removed
PUBLIC: dict[type[Any], set[str]] = {
    Targeted: {"target"},
    TargetsDone: {"targets", "seconds"},
    Notice: {"message"},
    LayerPlanned: {"layer", "action", "reason", "key", "tags"},
    LayerStarted: {"layer", "reason", "log"},
    StepProgress: {"layer", "step", "cached", "seconds"},
    StepOutput: {"layer", "text"},
    SmokeResult: {"layer", "test", "kind", "state", "detail"},
    LayerDone: {"layer", "outcome", "seconds", "image", "size", "message", "log_tail"},
    Finished: {"built", "reused", "failed", "blocked", "seconds", "image"},
    Vendored: {"lock", "folder", "files", "size", "fetched_files", "fetched_size", "seconds"},
    BlobProgress: {"layer", "digest", "state", "done", "size"},
    Pushed: {"repository", "tags", "digest", "sent", "seconds"},
    Pulled: {"repository", "image", "id", "key", "digest", "received", "seconds"},
}


def test_fields_of_json_events_stay() -> None:
    for event, _ in EVENTS:
        assert set(as_json(event)) >= PUBLIC[type(event)] | {"event"}


def test_json_is_ascii_whatever_a_path_holds() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    JsonView(stream).show(LayerStarted("a", "x 1 → 2", "/home/\udcff/é.log"))
    stream.seek(0)
    assert json.loads(stream.read())["log"] == "/home/\udcff/é.log"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain → text\twith tab", "plain → text\twith tab"),
        ("\x1b[31mred\x1b[0m \x1b[1;38;5;2mgreen\x1b[K", "red green"),
        ("\x1b[2J\x1b[H\x1b[?25l\x1b[999A\x1bM\x1bcgone", "gone"),
        ("\x1b]0;a title\x07text \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "text link"),
        ("\x1bPdevice\x1b\\ok \x1b]never closed", "ok "),
        ("bell\x07 back\x08 nul\x00 csi\x9b", "bell back nul csi"),
        (" 10%\r 20%\r100%", "100%"),
        ("done\r", "done"),
        ("a\r\nb\rc", "a\nc"),
        ("\x1b", ""),
        ("\x1b[", ""),
    ],
)
def test_what_a_build_prints_does_not_steer_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown
    stream = io.StringIO()
    PlainView(stream).show(LayerDone("a", "failed", 1.0, message=text))
    assert stream.getvalue() == f"a: FAILED after 1.0 s\n{printable('error: ' + text)}\n"


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("\x1b[]0;m\\\x07\r\n"), max_size=40))
def test_nothing_unprintable_is_left(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printable(text))
    assert printable(printable(text)) == printable(text)


def test_shorten_and_sizes() -> None:
    assert shorten("RUN  --mount=type=bind,source=a,target=/b --mount=type=cache,target=/c   x \\\n  y") == "RUN x \\ y"
    long = shorten("x" * 300)
    assert (len(long), long[-1]) == (100, "…")
    assert [megabytes(size) for size in (0, 999_999, 1_000_000, 1_500_000_000)] == [
        "0 kB",
        "1000 kB",
        "1 MB",
        "1500 MB",
    ]
    assert summary(Finished(1, 0, 0, 0, 1.0)) == "1 built in 1.0 s"


def test_which_view(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(make_view(json=False), PlainView)
    assert isinstance(make_view(json=True), JsonView)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(make_view(json=True), JsonView)
    view = make_view(json=False)
    view.close()
    assert type(view).__name__ == "LiveView"


def test_the_live_view_shows_what_runs_and_leaves_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    from rich.console import Console

    from strix_finetune.ui.live import LiveView

    view = LiveView()

    def drawn() -> str:
        console = Console(file=io.StringIO(), width=60, force_terminal=False, color_system=None)
        console.print(view._draw())
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    try:
        view.show(StepOutput("early", "before its layer began"))
        view.show(LayerStarted("base", "why", "/log"))
        view.show(StepProgress("base", "RUN \x1b[31mmake\x1b[0m [bold]x[/bold]"))
        view.show(StepOutput("base", "\x1b[2Jline [red]" + "x" * 200))
        text = drawn()
        assert "base    0 s" in text
        assert "RUN make [bold]x[/bold]" in text
        assert "line [red]xxx" in text
        assert "early" not in text
        assert max(map(len, text.splitlines())) <= 60
        view.show(StepProgress("base", "RUN make", seconds=1.0))
        view.show(SmokeResult("base", "t", "static", "passed", ""))
        view.show(LayerDone("base", "built", 2.0, "sha256:1", 10**9))
        assert drawn().strip() == ""
        view.show(LayerDone("other", "failed", 2.0, message="why [not]"))
        view.show(LayerPlanned("third", "reuse", "up to date", "", ()))
    finally:
        view.close()
    written = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sys.stderr.getvalue())  # type: ignore[attr-defined]
    for line in ("base: built in 2.0 s, 1000 MB", "error: why [not]", "third: up to date", "base:   smoke t: ok"):
        assert line in written
    # the cursor is back
    assert "\x1b[?25h" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_plain_lines_of_all_events_are_lines() -> None:
    for event, _ in EVENTS:
        assert all("\n" not in line for line in plain_lines(event))
