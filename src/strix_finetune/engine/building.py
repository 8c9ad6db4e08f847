"""One build: the request as both engines take it, and their answer read to the end."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from strix_finetune.engine.base import BuildEvent, BuildRequest, EngineKind
from strix_finetune.engine.buildkit import FailedStep, StatusDecoder
from strix_finetune.engine.failures import cure_of, one_line
from strix_finetune.engine.legacy import StreamDecoder
from strix_finetune.engine.places import line_of, read_dockerfile
from strix_finetune.errors import BuildFailed, EngineError, EngineUnavailable, Place, Problem, StrixError
from strix_finetune.signals import how_it_ended

MAX_RECORD = 16 * 1024 * 1024
_PARSE_LINE = re.compile(r"(?:parse error (?:on )?line|Dockerfile:|on line|at line) ?(\d+)", re.IGNORECASE)
_EXIT = re.compile(r"(?:exit code:|exit status|returned a non-zero code:) (\d+)")
_LOCAL_PARENT = re.compile(r"registry localhost|Head \"https?://localhost/")
_CHAIN = re.compile(
    r"^(?:failed to solve(?: with frontend \S+)?|failed to create LLB definition|failed to compute cache key|"
    r"(?:error )?building at STEP \".*?\"|dockerfile parse error (?:on )?line \d+|error building image|Build error): "
)
_SYNTAX = re.compile(
    r"dockerfile parse error|unknown instruction|unknown flag|requires (?:at least|exactly|either)|no build stage|"
    r"no FROM statement|only supports the|no contents in|file with no instructions|missing .* argument|"
    r"syntax error|cannot be empty",
    re.IGNORECASE,
)


def parameters(request: BuildRequest, kind: EngineKind) -> dict[str, str]:
    """The query of POST /build. No `t`: the result stays untagged."""
    params = {
        "version": "2",  # BuildKit; Podman ignores it
        "dockerfile": request.dockerfile,
        "labels": json.dumps(dict(request.labels), sort_keys=True),
        "rm": "1",
        "forcerm": "1",
    }
    if request.build_args:
        params["buildargs"] = json.dumps(dict(request.build_args), sort_keys=True)
    # BuildKit knows no other name for its own network.
    if request.network and request.network not in ("bridge", "default"):
        params["networkmode"] = request.network
    if not request.use_cache:
        params["nocache"] = "1"
    if kind == "podman":
        params |= {"layers": "1", "jobs": "0"}
    return params


class ContextStream:
    """The context as a request body. An error of the caller's own stream is kept, so that it is not
    mistaken for one of the connection."""

    def __init__(self, open_stream: Callable[[], Iterator[bytes]]) -> None:
        self._open = open_stream
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            for block in self._open():
                if block:  # an empty chunk would end a chunked body
                    yield block
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise


def records(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """JSON objects of a stream, one a line or run together, however it was cut."""
    decoder = json.JSONDecoder()
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_RECORD:
            raise EngineError("the container engine sent a record of more than 16 MiB")
        for line in lines:
            yield from _objects(decoder, line)
    yield from _objects(decoder, rest)


def _objects(decoder: json.JSONDecoder, line: bytes) -> Iterator[dict[str, Any]]:
    text = line.decode("utf-8", "replace").strip()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except ValueError:
            return
        if isinstance(value, dict):
            yield value
        text = text[end:].lstrip()


def error_of(record: dict[str, Any]) -> str:
    """The message of an error record, or the empty string."""
    detail = record.get("errorDetail")
    if isinstance(detail, dict) and detail.get("message"):
        return str(detail["message"])
    return str(record.get("error") or "")


def follow(answer: Iterable[dict[str, Any]], request: BuildRequest, on_event: Callable[[BuildEvent], None]) -> str:
    """Read the records of one build, give out its events, and return the image id.

    Raises BuildFailed on an error record and EngineError when the stream ends without a result.
    """
    status, stream = StatusDecoder(), StreamDecoder()
    image = error = ""
    for record in answer:
        events: list[BuildEvent] = []
        aux = record.get("aux")
        if record.get("id") == "moby.buildkit.trace" and isinstance(aux, str):
            try:
                events = status.feed(b64decode(aux))
            except BadBase64:
                continue
        elif isinstance(aux, dict) and aux.get("ID"):
            image = str(aux["ID"])
        elif isinstance(record.get("stream"), str):
            events = stream.feed(record["stream"])
        error = error or error_of(record)
        for event in events:
            on_event(event)
    for event in (*status.finish(), *stream.finish(error)):
        on_event(event)
    if error:
        raise failure(error, status.failed or stream.failed, request)
    image = image or stream.image
    if not image:
        raise EngineError(Problem("the container engine ended the build without a result", cure="check that it runs"))
    return image if image.startswith("sha256:") else f"sha256:{image}"


def failure(error: str, step: FailedStep | None, request: BuildRequest) -> BuildFailed:
    """The sentence for a build that the engine gave up, with the line that it stands on."""
    name = step.name if step else ""
    words = _plain_words(error)
    tail = step.tail if step else ()
    line = _PARSE_LINE.search(error)
    place = Place(Path(request.dockerfile), int(line[1]) if line else _line_of(request, name))
    code = _EXIT.search(error) or (_EXIT.search(step.error) if step else None)
    if code and name:
        ended = f"the step '{one_line(name)}' {how_it_ended(int(code[1]))}"
        return BuildFailed(Problem(ended, place, cure_of("\n".join(tail))), log_tail=tail)
    if line or _SYNTAX.search(error):
        return BuildFailed(Problem(words, place))
    if _LOCAL_PARENT.search(words):
        cure = "build or pull it first"
        return BuildFailed(Problem("the image that it is built FROM is not in the engine's store", place, cure))
    words = f"the step '{one_line(name)}' failed: {words}" if name else f"the build failed: {words}"
    return BuildFailed(Problem(words, place, cure_of(words)), log_tail=tail)


def refused(error: EngineError, request: BuildRequest) -> EngineError:
    """A build that the engine refused outright (Podman parses the file before it answers) is a failed build."""
    if isinstance(error, BuildFailed | EngineUnavailable) or not _SYNTAX.search(str(error)):
        return error
    return failure(error.problems[0].message.removeprefix("could not build the image: "), None, request)


def _line_of(request: BuildRequest, step: str) -> int | None:
    if not step:
        return None
    # A second reading is for the message only: its own faults do not matter.
    with suppress(StrixError, OSError):
        return line_of(read_dockerfile(request.context, request.dockerfile), step)
    return None


def _plain_words(error: str) -> str:
    """An engine's message without its call chain and without dumps of its own structures."""
    text = one_line(error.partition(" &imagebuilder.Step{")[0])
    while True:
        shorter = _CHAIN.sub("", text)
        if shorter == text:
            return text
        text = shorter
