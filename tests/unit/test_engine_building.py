"""The build request, Podman's stream, and how a failure is told; records as the engines really sent them."""

from __future__ import annotations

import io
import json
import tarfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune.engine.base import BuildEvent, BuildRequest, StepDone, StepLog, StepStarted
from strix_finetune.engine.building import ContextStream, follow, parameters, records
from strix_finetune.engine.legacy import StreamDecoder
from strix_finetune.engine.places import line_of, read_dockerfile
from strix_finetune.errors import BuildFailed, EngineError, Place

DOCKERFILE = """# a comment
FROM localhost/x:1

RUN --mount=type=cache,target=/c first \\
  # in between
  && second \\
     third
run   lower   case
COPY a b /dest/
"""


def context(dockerfile: str = DOCKERFILE) -> Callable[[], Iterator[bytes]]:
    def stream() -> Iterator[bytes]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            info = tarfile.TarInfo("./Dockerfile")
            info.size = len(dockerfile.encode())
            tar.addfile(info, io.BytesIO(dockerfile.encode()))
        yield from (buffer.getvalue()[at : at + 700] for at in range(0, len(buffer.getvalue()), 700))

    return stream


def request(dockerfile: str = DOCKERFILE, network: str | None = None) -> BuildRequest:
    return BuildRequest(context(dockerfile), {"b": "2", "a": "1"}, network=network)


def ignore(_event: BuildEvent) -> None:
    pass


def test_the_query_is_untagged_and_stable() -> None:
    query = parameters(request(), "docker")
    assert "t" not in query
    assert query["version"] == "2"
    assert query["labels"] == '{"a": "1", "b": "2"}'
    assert "nocache" not in query
    assert "jobs" not in query
    assert parameters(request(), "podman")["layers"] == "1"


def test_buildkit_is_not_told_the_name_of_its_own_network() -> None:
    assert "networkmode" not in parameters(request(network="bridge"), "docker")
    assert parameters(request(network="host"), "docker")["networkmode"] == "host"


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=8), max_size=3), max_size=5), st.data())
def test_records_are_found_however_they_were_cut(values: list[dict[str, str]], data: st.DataObject) -> None:
    separator = data.draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"]))
    raw = separator.join(json.dumps(value).encode() for value in values)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    pieces = [raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert list(records(pieces)) == values


def test_records_that_are_no_json_are_skipped_and_objects_in_one_line_are_all_read() -> None:
    assert list(records([b'garbage\n{"a": 1}{"b": 2}\n[1]\n'])) == [{"a": 1}, {"b": 2}]


def test_an_image_id_is_the_result_of_buildkit_and_of_podman() -> None:
    assert follow([{"id": "moby.image.id", "aux": {"ID": "sha256:abc"}}], request(), ignore) == "sha256:abc"
    assert follow([{"stream": "Successfully built 0123456789ab\n"}], request(), ignore) == "sha256:0123456789ab"


def test_a_stream_without_a_result_is_an_error() -> None:
    with pytest.raises(EngineError, match="without a result"):
        follow([{"id": "moby.buildkit.trace", "aux": b64encode(b"\xff\xff").decode()}], request(), ignore)


def podman_records(dockerfile_step: str, error: str) -> list[dict[str, str]]:
    return [
        {"stream": "STEP 1/2: FROM localhost/x:1\n"},
        {"stream": f"STEP 2/2: {dockerfile_step}\n"},
        {"stream": "some output\n"},
        {"error": error, "errorDetail": error},
    ]


def test_podman_s_failing_run_is_told_with_line_and_exit_code() -> None:
    step = "RUN --mount=type=cache,target=/c first   && second    third"
    error = f'building at STEP "{step}": while running runtime: exit status 139'
    with pytest.raises(BuildFailed) as caught:
        follow(podman_records(step, error), request(), ignore)
    assert caught.value.problems[0].place == Place(Path("Dockerfile"), 4)
    assert "was killed by SIGSEGV (exit code 139)" in str(caught.value)
    assert caught.value.log_tail == ("some output",)


def test_podman_s_unknown_instruction_is_told_without_its_go_structures() -> None:
    error = 'building at STEP "BLAH ": Build error: Unknown instruction: "BLAH" &imagebuilder.Step{Env:[]string{}}\n'
    with pytest.raises(BuildFailed) as caught:
        follow(podman_records("BLAH x", error), request("FROM localhost/x:1\nBLAH x\n"), ignore)
    assert str(caught.value) == 'Dockerfile:2: Unknown instruction: "BLAH"'


def test_docker_s_parse_error_is_told_with_its_line_once() -> None:
    error = (
        "failed to solve with frontend dockerfile.v0: failed to create LLB definition: "
        "dockerfile parse error line 3: unknown instruction: ECHO"
    )
    with pytest.raises(BuildFailed) as caught:
        follow([{"errorDetail": {"message": error}, "error": error}], request(), ignore)
    assert str(caught.value) == "Dockerfile:3: unknown instruction: ECHO"


def test_a_missing_local_parent_is_not_told_as_a_network_fault() -> None:
    error = (
        "failed to solve with frontend dockerfile.v0: failed to create LLB definition: failed to do request: "
        'Head "http://localhost/v2/x/manifests/1": dial tcp 127.0.0.1:80: connect: connection refused'
    )
    with pytest.raises(BuildFailed, match="not in the engine's store; build or pull it first"):
        follow([{"error": error}], request(), ignore)


def test_podman_s_stream_becomes_steps() -> None:
    clock = count().__next__
    decoder = StreamDecoder(clock=lambda: float(clock()))
    events = [
        *decoder.feed("STEP 1/3: FROM scratch\nSTEP 2/3: COPY a"),
        *decoder.feed(" /a\n--> Using cache 0123456789abcdef\nSTEP 3/3: RUN x\nhel"),
        *decoder.feed("lo\nCOMMIT\n--> 0123456789a\n" + "a" * 64 + "\nSuccessfully built aaaaaaaaaaaa\n"),
        *decoder.finish(),
    ]
    assert [type(event) for event in events] == [
        StepStarted, StepDone, StepStarted, StepDone, StepStarted, StepLog, StepDone,
    ]  # fmt: skip
    assert events[3] == StepDone("1.2", "COPY a /a", True, 0.0)
    assert events[5] == StepLog("1.3", "hello")
    assert decoder.image == "aaaaaaaaaaaa"


def test_stages_that_podman_builds_at_the_same_time_stay_apart() -> None:
    decoder = StreamDecoder()
    events = decoder.feed(
        "[1/2] STEP 1/2: FROM a\n[2/2] STEP 1/2: FROM b\n[1/2] STEP 2/2: RUN x\n[2/2] STEP 2/2: RUN y\n"
    )
    assert [event.step for event in events if isinstance(event, StepStarted)] == ["1.1", "2.1", "1.2", "2.2"]
    decoder.finish('building at STEP "RUN x": while running runtime: exit status 1')
    assert decoder.failed is not None
    assert decoder.failed.name == "RUN x"


@given(st.text())
def test_any_text_goes_through_podman_s_decoder(text: str) -> None:
    decoder = StreamDecoder()
    decoder.feed(text)
    decoder.finish(text)


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ("[2/4] RUN --mount=type=cache,target=/c first   && second      third", 4),
        ("[stage-0 2/4] RUN first && second third", 4),
        ("RUN lower case", 8),
        ("[4/4] COPY a b /dest/", 9),
        ("RUN something else", None),
        ("", None),
    ],
)
def test_the_line_of_a_step(step: str, line: int | None) -> None:
    assert line_of(DOCKERFILE, step) == line


def test_the_dockerfile_is_read_back_out_of_the_context() -> None:
    assert read_dockerfile(context(), "Dockerfile") == DOCKERFILE
    assert read_dockerfile(context(), "Other") == ""
    assert read_dockerfile(lambda: iter([b"no tar"]), "Dockerfile") == ""


def test_an_error_of_the_context_is_kept_apart() -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        yield b""
        raise OSError(28, "No space left on device")

    stream = ContextStream(broken)
    sent = []
    with pytest.raises(OSError, match="No space left"):
        sent += list(stream)
    assert isinstance(stream.error, OSError)
    stream = ContextStream(lambda: iter([b"a", b"", b"b"]))
    assert list(stream) == [b"a", b"b"]
