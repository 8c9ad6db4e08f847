"""Builds on real Docker and real Podman: the subset of the Dockerfile language that the layers use."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strix_finetune.engine.base import BuildEvent, BuildRequest, StepDone, StepLog, StepStarted
from strix_finetune.engine.select import connect
from strix_finetune.errors import BuildFailed, EngineError, FetchFailed, Place
from tests.engine.conftest import LABEL

if TYPE_CHECKING:
    from tests.engine.conftest import Bench

pytestmark = pytest.mark.engine


def logs(events: list[BuildEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, StepLog)]


def test_a_build_is_untagged_labelled_and_on_its_parent(bench: Bench) -> None:
    image_id = bench.build(f"FROM {{base}}\nRUN echo built > /proof && echo {time.time()} to the log\n")
    assert image_id.startswith("sha256:")
    image = bench.engine.image(image_id)
    assert image is not None
    assert image.tags == ()
    assert image.labels[LABEL] == "layer"
    assert image.size > 0
    assert [line.partition(" ")[2] for line in logs(bench.events)] == ["to the log"]
    names = [event.name for event in bench.events if isinstance(event, StepStarted)]
    assert any("RUN echo built" in name for name in names)
    result, output = bench.run("cat", "/proof", image=image_id)
    assert (result.exit_code, output) == (0, "built\n")


def test_every_step_that_begins_ends(bench: Bench) -> None:
    bench.build(f"FROM {{base}}\nRUN echo {time.time()}\nRUN sleep 0.3\n")
    begun = [event.step for event in bench.events if isinstance(event, StepStarted)]
    ended = [event.step for event in bench.events if isinstance(event, StepDone)]
    assert sorted(begun) == sorted(ended)
    slept = [event for event in bench.events if isinstance(event, StepDone) and "sleep 0.3" in event.name]
    assert [0.2 < event.seconds < 10 for event in slept] == [True]


def test_the_second_build_comes_from_the_cache(bench: Bench) -> None:
    dockerfile = f"FROM {{base}}\nCOPY data /data\nRUN echo {time.time()} > /stamp\n"
    first = bench.build(dockerfile, {"data": b"same"})
    second = bench.build(dockerfile, {"data": b"same"})
    assert second == first
    cached = [event.cached for event in bench.events if isinstance(event, StepDone) and "RUN" in event.name]
    assert cached == [True]
    assert bench.build(dockerfile, {"data": b"other"}) != first
    assert [e.cached for e in bench.events if isinstance(e, StepDone) and "RUN" in e.name] == [False]


def test_a_build_without_cache_runs_again(bench: Bench) -> None:
    dockerfile = "FROM {base}\nRUN date +%s%N > /stamp; cat /stamp\n"
    bench.build(dockerfile)
    stamp = logs(bench.events)
    bench.build(dockerfile, use_cache=False)
    assert logs(bench.events)
    assert logs(bench.events) != stamp


def test_a_changed_label_does_not_run_the_steps_again(bench: Bench) -> None:
    from tests.engine.conftest import context

    text = f"FROM {bench.base}\nRUN echo {time.time()} > /stamp\n"
    events: list[BuildEvent] = []
    bench.engine.build(BuildRequest(context(text), {LABEL: "a"}), events.append)
    events.clear()
    image = bench.engine.build(BuildRequest(context(text), {LABEL: "b"}), events.append)
    assert [event.cached for event in events if isinstance(event, StepDone) and "RUN" in event.name] == [True]
    found = bench.engine.image(image)
    assert found is not None
    assert found.labels[LABEL] == "b"


def test_stages_are_built_at_the_same_time_and_copied_from(bench: Bench) -> None:
    stamp = time.time_ns()
    stage = f"RUN date +%s.%N > /NAME; sleep 3; date +%s.%N >> /NAME; echo {stamp} >> /NAME\n"
    image = bench.build(
        f"FROM {{base}} AS one\n{stage.replace('NAME', 'one')}"
        f"FROM {{base}} AS two\n{stage.replace('NAME', 'two')}"
        "FROM {base}\nCOPY --from=one /one /\nCOPY --from=two /two /\n"
    )
    words = bench.run("cat", "/one", "/two", image=image)[1].split()
    assert (words[2], words[5]) == (str(stamp), str(stamp))
    (begin_one, end_one), (begin_two, end_two) = map(float, words[:2]), map(float, words[3:5])
    assert max(begin_one, begin_two) < min(end_one, end_two), "the stages ran one after the other"


def test_a_cache_mount_survives_and_is_in_no_layer(bench: Bench) -> None:
    target = f"/cache-{time.time_ns()}"
    step = f"RUN --mount=type=cache,id={target},target={target} echo x >> {target}/f; wc -l < {target}/f; echo "
    bench.build("FROM {base}\n" + step + "first\n")
    assert logs(bench.events)[0].strip() == "1"
    image = bench.build("FROM {base}\n" + step + "second\n")
    assert logs(bench.events)[0].strip() == "2"
    assert bench.run("test", "-e", f"{target}/f", image=image)[0].exit_code == 1


def test_a_bind_mount_of_the_context_and_of_another_stage(bench: Bench) -> None:
    stamp = str(time.time())
    bench.build(
        f"FROM {{base}} AS other\nRUN mkdir /made && echo from-stage {stamp} > /made/f\n"
        "FROM {base}\n"
        "RUN --mount=type=bind,source=folder,target=/mnt cat /mnt/file\n"
        "RUN --mount=type=bind,from=other,source=/made,target=/mnt cat /mnt/f\n",
        {"folder/file": f"from-context {stamp}\n".encode()},
    )
    assert logs(bench.events) == [f"from-context {stamp}", f"from-stage {stamp}"]


def test_network_and_proxy_arguments_reach_a_step_but_no_layer(bench: Bench) -> None:
    image = bench.build(
        f"FROM {{base}}\nRUN echo {time.time()}; echo proxy=$http_proxy\n",
        build_args={"http_proxy": "http://proxy.invalid:3128"},
        network="host",
    )
    assert "proxy=http://proxy.invalid:3128" in logs(bench.events)
    assert "http_proxy" not in str(bench.engine.api.inspect_image(image)["Config"]["Env"])


def test_a_failing_step_is_told_with_line_exit_code_and_last_lines(bench: Bench) -> None:
    with pytest.raises(BuildFailed) as caught:
        bench.build(
            "FROM {base}\n\n# why\nRUN for n in 0 1 2 3 4 5 6 7 8 9; do for m in 0 1 2 3 4 5 6 7 8 9; do \\\n"
            "      echo line $n$m; done; done; \\\n    exit 3\n"
        )
    error = caught.value
    assert error.problems[0].place == Place(Path("Dockerfile"), 4)
    assert "exit code 3" in str(error)
    assert "for n in 0 1 2" in str(error)
    assert "\n" not in str(error)
    assert error.log_tail == tuple(f"line {n}" for n in range(60, 100))


def test_a_step_that_crashes_is_told_by_its_signal(bench: Bench) -> None:
    with pytest.raises(BuildFailed, match="was killed by SIGSEGV"):
        bench.build("FROM {base}\nRUN sh -c 'kill -SEGV $$'; exit $?\n")


@pytest.mark.parametrize(
    ("dockerfile", "line"),
    [
        ("FROM {base}\nBLAH x\n", 2),
        ("FROM {base}\nRUN true\nCOPY a\n", 3),
        ("FROM {base}\n\nENV\n", 3),
    ],
)
def test_a_syntax_error_is_told_with_its_line(bench: Bench, dockerfile: str, line: int) -> None:
    with pytest.raises(BuildFailed) as caught:
        bench.build(dockerfile)
    assert caught.value.problems[0].place == Place(Path("Dockerfile"), line)
    assert "\n" not in str(caught.value)


def test_a_parent_that_is_not_there_is_told_so(bench: Bench) -> None:
    with pytest.raises(BuildFailed, match="not in the engine's store"):
        bench.build("FROM localhost/strix-engine-test/never-built:1\n")


def test_a_file_that_the_context_lacks_is_named(bench: Bench) -> None:
    with pytest.raises(BuildFailed, match="COPY missing"):
        bench.build("FROM {base}\nCOPY missing /\n")


def test_the_context_is_streamed_not_held(bench: Bench) -> None:
    sent = 0
    block = b"\0" * (1 << 20)

    def stream() -> Iterator[bytes]:
        nonlocal sent
        info = tarfile.TarInfo("Dockerfile")
        text = f"FROM {bench.base}\nCOPY big /big\n".encode()
        info.size = len(text)
        yield info.tobuf() + text.ljust(512, b"\0")
        info = tarfile.TarInfo("big")
        info.size = 64 << 20
        yield info.tobuf()
        for _ in range(64):
            sent += 1
            yield block
        yield b"\0" * 1024

    image = bench.engine.build(BuildRequest(stream, {LABEL: "layer"}), lambda event: None)
    assert sent == 64
    assert bench.run("wc", "-c", "/big", image=image)[1].split()[0] == str(64 << 20)


def test_a_fault_of_the_context_is_told_as_the_context_s(bench: Bench) -> None:
    def cut_off() -> Iterator[bytes]:
        yield b"\0" * 100
        raise FetchFailed("the download was cut off")

    def unreadable() -> Iterator[bytes]:
        yield b"\0" * 100
        raise PermissionError(13, "Permission denied", "secret")

    with pytest.raises(FetchFailed, match="cut off"):
        bench.engine.build(BuildRequest(cut_off, {}), lambda event: None)
    with pytest.raises(EngineError, match=r"the build context could not be read: .*Permission denied"):
        bench.engine.build(BuildRequest(unreadable, {}), lambda event: None)


def test_docker_s_refusal_is_told_even_while_we_still_send(docker_bench: Bench) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(4096):
            sent += 1
            yield b"\0" * 65536

    with pytest.raises(EngineError, match="network mode"):
        docker_bench.engine.build(BuildRequest(endless, {}, network="no-such-network"), lambda event: None)
    assert sent < 4096


def test_an_interrupted_build_ends_in_the_engine_too(bench: Bench) -> None:
    engine = connect(bench.engine.info.kind, os.environ)
    seconds = f"4{time.time_ns() % 10**6:06d}"

    def stop(event: BuildEvent) -> None:
        if isinstance(event, StepLog):
            raise KeyboardInterrupt

    from tests.engine.conftest import context

    request = BuildRequest(context(f"FROM {bench.base}\nRUN echo begun; sleep {seconds}\n"), {})
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.build(request, stop)
    finally:
        engine.close()
    deadline = time.monotonic() + 60
    while _sleeping(seconds):
        assert time.monotonic() < deadline, "the step still runs"
        time.sleep(0.1)


def _sleeping(seconds: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == b"sleep\0" + seconds.encode() + b"\0":
                return True
        except OSError:
            continue
    return False


def test_contexts_are_plain_tar_streams() -> None:
    from tests.engine.conftest import context

    data = b"".join(context("FROM scratch\n", {"a": b"b"})())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["Dockerfile", "a"]
