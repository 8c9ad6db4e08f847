"""The decoder of BuildKit's progress records, against records encoded here by the protobuf rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strix_finetune.engine.base import StepDone, StepLog, StepStarted
from strix_finetune.engine.buildkit import MAX_STEPS, TAIL_LINES, StatusDecoder, fields
from strix_finetune.engine.lines import MAX_LINE, LineJoiner


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def timestamp(seconds: float) -> bytes:
    whole = int(seconds)
    return field(1, whole) + field(2, round((seconds - whole) * 1e9))


def vertex(
    digest: str,
    name: str,
    *,
    started: float | None = None,
    completed: float | None = None,
    cached: bool = False,
    error: str = "",
) -> bytes:
    body = field(1, digest) + field(2, "sha256:input") + field(3, name)
    if cached:
        body += field(4, 1)
    if started is not None:
        body += field(5, timestamp(started))
    if completed is not None:
        body += field(6, timestamp(completed))
    if error:
        body += field(7, error)
    return field(1, body)


def log(digest: str, text: bytes) -> bytes:
    return field(3, field(1, digest) + field(2, timestamp(1.0)) + field(3, 1) + field(4, text))


def test_a_step_begins_prints_and_ends() -> None:
    decoder = StatusDecoder()
    begun = decoder.feed(vertex("d1", "[2/3] RUN make", started=100.0))
    printed = decoder.feed(log("d1", b"one\ntw") + log("d1", b"o\nthree"))
    ended = decoder.feed(vertex("d1", "[2/3] RUN make", started=100.0, completed=102.5))
    assert begun == [StepStarted("d1", "[2/3] RUN make")]
    assert printed == [StepLog("d1", "one"), StepLog("d1", "two")]
    assert ended == [StepLog("d1", "three"), StepDone("d1", "[2/3] RUN make", False, 2.5)]
    assert decoder.finish() == []


def test_a_vertex_that_is_reported_again_is_one_step() -> None:
    decoder = StatusDecoder()
    record = vertex("d1", "[1/1] RUN x", started=1.0, completed=2.0, cached=True)
    assert decoder.feed(record) == [StepStarted("d1", "[1/1] RUN x"), StepDone("d1", "[1/1] RUN x", True, 1.0)]
    assert decoder.feed(record) == []


def test_housekeeping_is_not_shown() -> None:
    decoder = StatusDecoder()
    name = "[internal] load remote build context"
    assert decoder.feed(vertex("d0", name, started=1.0, completed=2.0)) == []


def test_the_failed_step_keeps_its_last_lines_even_when_they_come_behind_it() -> None:
    decoder = StatusDecoder()
    lines = "".join(f"line {n}\n" for n in range(100)).encode()
    decoder.feed(vertex("d1", "[2/2] RUN false", started=1.0))
    decoder.feed(vertex("d1", "[2/2] RUN false", started=1.0, completed=2.0, error="exit code: 1") + log("d1", lines))
    decoder.feed(log("d1", b"the very last"))
    decoder.finish()
    assert decoder.failed is not None
    assert decoder.failed.name == "[2/2] RUN false"
    assert decoder.failed.error == "exit code: 1"
    assert decoder.failed.tail == (*(f"line {n}" for n in range(100 - TAIL_LINES + 1, 100)), "the very last")


def test_a_step_that_was_cancelled_because_of_another_is_not_the_failed_one() -> None:
    decoder = StatusDecoder()
    decoder.feed(vertex("a", "[a 1/1] RUN sleep", started=1.0, completed=2.0, error="context canceled"))
    decoder.feed(vertex("b", "[b 1/1] RUN false", started=1.0, completed=2.0, error="exit code: 1"))
    assert decoder.failed is not None
    assert decoder.failed.name == "[b 1/1] RUN false"


def test_go_s_zero_time_is_no_time() -> None:
    decoder = StatusDecoder()
    never = field(5, field(1, (1 << 64) - 62135596800))
    assert decoder.feed(field(1, field(1, "d") + field(3, "[1/1] RUN x") + never)) == []


def test_the_number_of_steps_is_bounded() -> None:
    decoder = StatusDecoder()
    events = [
        event
        for n in range(MAX_STEPS + 50)
        for event in decoder.feed(vertex(f"d{n}", f"RUN {n}", started=float(n + 1)))
    ]
    assert len(events) == MAX_STEPS


@given(st.binary(max_size=300))
def test_odd_bytes_never_raise(data: bytes) -> None:
    decoder = StatusDecoder()
    decoder.feed(data)
    decoder.feed(field(1, data) + field(3, data))
    decoder.finish()


@given(st.binary(min_size=1, max_size=60), st.integers(0, 400))
def test_a_record_that_is_damaged_anywhere_never_raises(noise: bytes, at: int) -> None:
    record = vertex("d1", "[1/1] RUN x", started=1.0, completed=2.0, error="e") + log("d1", b"text\n")
    damaged = record[:at] + noise + record[at:]
    decoder = StatusDecoder()
    decoder.feed(damaged)
    decoder.feed(record[: at % len(record)])
    decoder.finish()


@given(st.lists(st.tuples(st.integers(1, 1000), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=40)))))
def test_fields_are_what_was_encoded(pairs: list[tuple[int, int | bytes]]) -> None:
    message = b"".join(field(number, value) for number, value in pairs)
    assert list(fields(message)) == pairs


@given(st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), st.data())
def test_lines_do_not_depend_on_how_the_engine_cut_them(text: str, data: st.DataObject) -> None:
    raw = f"{text}\nsecond\n{text}".encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    joiner = LineJoiner()
    lines: list[str] = []
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        lines += joiner.feed(raw[begin:end])
    assert lines + joiner.flush() == ([text, "second", text] if text else [text, "second"])


def test_a_progress_bar_becomes_its_final_state() -> None:
    assert LineJoiner().feed(b" 10%\r 50%\r100%\r\nnext\n") == ["100%", "next"]


def test_a_line_without_end_does_not_grow_for_ever() -> None:
    joiner = LineJoiner()
    lines = [line for _ in range(10) for line in joiner.feed(b"x" * MAX_LINE)]
    assert sum(map(len, lines)) + sum(map(len, joiner.flush())) == 10 * MAX_LINE
    assert max(map(len, lines)) == MAX_LINE


def test_bytes_that_are_not_utf_8_are_shown_as_such() -> None:
    assert LineJoiner().feed(b"caf\xe9\n") == ["caf\ufffd"]
