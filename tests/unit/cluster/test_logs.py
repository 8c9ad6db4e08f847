"""The lines of all nodes, merged and kept."""

from __future__ import annotations

import io
from pathlib import Path

from strix_finetune.cluster.logs import Logs


def test_lines_are_whole_and_have_their_node_in_front(tmp_path: Path) -> None:
    shown: list[str] = []
    logs = Logs(tmp_path / "new/logs", ["one", "other"], shown.append)
    logs.of["one"].feed("step 1\nst\u00e9".encode()[:-1])
    logs.of["other"].feed(b"hello\n\n10%\r20%\r\n")
    logs.of["one"].feed("\u00e9".encode()[1:] + b"p 2\nno end")
    logs.close()
    assert shown == [
        "one   | step 1\n",
        "other | hello\n",
        "other |\n",
        "other | 20%\n",
        "one   | st\u00e9p 2\n",
        "one   | no end\n",
    ]
    assert (tmp_path / "new/logs/one.log").read_text() == "step 1\nst\u00e9p 2\nno end"
    assert list(logs.of["one"].last) == ["step 1", "st\u00e9p 2", "no end"]


def test_files_are_kept_also_when_nobody_reads_any_more(tmp_path: Path) -> None:
    def closed(line: str) -> None:
        raise BrokenPipeError

    logs = Logs(tmp_path, ["one"], closed)
    logs.of["one"].feed(b"a\n")
    logs.of["one"].feed(b"b\n")
    logs.close()
    assert (tmp_path / "one.log").read_text() == "a\nb\n"


def test_a_full_disk_is_said_once_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "one.log").symlink_to("/dev/full")
    shown: list[str] = []
    logs = Logs(tmp_path, ["one"], shown.append)
    logs.of["one"].feed(b"a\n")
    logs.of["one"].feed(b"b\n")
    logs.close()
    logs.of["one"].feed(b"too late\n")
    assert shown == [
        f"one | (from here on not in {tmp_path}/one.log: No space left on device)\n",
        "one | a\n",
        "one | b\n",
    ]
    assert list(logs.of["one"].last) == ["a", "b"]


def test_a_terminal_that_knows_fewer_letters_shows_the_others(tmp_path: Path) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")

    def write(line: str) -> None:
        out.write(line)
        out.flush()

    logs = Logs(tmp_path, ["one"], write)
    logs.of["one"].feed("st\u00e9p\nnext\n".encode())
    logs.close()
    assert out.buffer.getvalue() == b"one | st?p\none | next\n"  # type: ignore[attr-defined]
    assert (tmp_path / "one.log").read_text("utf-8") == "st\u00e9p\nnext\n"
