"""Files of rows: JSON, CSV, TSV, text, packed files, folders with splits, and sets of the hub."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strix_train.data import document, hub, prose
from strix_train.data.faults import SHOWN, Faults
from strix_train.data.files import local
from strix_train.data.load import Shape, load
from strix_train.data.rows import Continuation, Document
from strix_train.errors import InputError, Place

ROW = '{"prompt": "q", "completion": "a"}'
PLACE = Place("r.yaml", 1)


def write(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pairs(path: Path) -> list[tuple[str, str, int]]:
    rows = load(path).rows
    assert all(isinstance(row, Continuation) for row in rows)
    return [(row.prompt, row.completion, row.place.line) for row in rows if isinstance(row, Continuation)]


def sentence(path: Path, method: str = "sft") -> str:
    with pytest.raises(InputError) as caught:
        load(path, Shape(method=method))
    (problem,) = caught.value.problems
    assert problem.cure, problem
    return str(problem).replace(f"{path.parent}/", "")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (f"[{ROW}, {ROW}]", [1, 1]),
        (f"[\n{ROW},\n\n  {ROW}\n]\n", [2, 4]),
        (f"\ufeff[{ROW}]", [1]),
        (f"{ROW}\n{ROW}\n", [1, 2]),
        (ROW, [1]),
        (json.dumps([json.loads(ROW)] * 3, indent=2), [2, 6, 10]),
    ],
)
def test_json(tmp_path: Path, content: str, lines: list[int]) -> None:
    assert pairs(write(tmp_path, "d.json", content)) == [("q", "a", line) for line in lines]


def test_a_json_list_is_read_in_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [{"prompt": f"ü{'x' * (7 * index % 50)}", "completion": '"]},[{\\'} for index in range(40)]
    path = write(tmp_path, "d.json", json.dumps(values, ensure_ascii=False, indent=1))
    whole = pairs(path)
    assert [row[0] for row in whole] == [value["prompt"] for value in values]
    for size in (1, 2, 3, 7, 64, 1000):
        monkeypatch.setattr(document, "_CHUNK", size)
        monkeypatch.setattr(document._Window.more, "__defaults__", (size,))
        assert pairs(path) == whole


@pytest.mark.parametrize("indent", [None, 0, 3])
@pytest.mark.parametrize("size", [1, 5, 97, 1 << 20])
def test_the_place_of_every_entry_is_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, size: int
) -> None:
    """Wherever a window ends: the places are those that a count from the beginning of the file gives."""
    values = [{"prompt": f"{index} ü“{'x' * (7 * index % 50)}", "completion": "a"} for index in range(30)]
    text = "\n\n " + json.dumps(values, ensure_ascii=False, indent=indent).replace("}, {", "},\r\n  { ")
    path = write(tmp_path, "d.json", text)
    monkeypatch.setattr(document, "_CHUNK", size)
    monkeypatch.setattr(document._Window.more, "__defaults__", (size,))
    places = [record.place() for record in document.read(path, Faults())]
    starts = [index for index, character in enumerate(text) if character == "{"]
    assert [(place.line, place.column) for place in places] == [
        (text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)) for start in starts
    ]
    # so are those of faults, at the first line of the file and behind many others
    write(tmp_path, "d.json", text.replace('"a"', "None", 1) if size == 5 else text[: starts[-1]] + "{'")
    with pytest.raises(InputError) as caught:
        list(document.read(path, Faults()))
    wrong = text.index('"a"') if size == 5 else starts[-1] + 1
    line, column = text.count("\n", 0, wrong) + 1, wrong - text.rfind("\n", 0, wrong)
    assert caught.value.problems[0].place == Place(str(path), line, column)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"[\n  {ROW},\n]", "d.json:3:1: a comma with no entry behind it; remove the comma"),
        (f"[,{ROW}]", "d.json:1:2: a comma with no entry behind it"),
        (f"[\n{ROW}\n{ROW}\n]", "d.json:3:1: a comma is missing; write a comma between two entries"),
        (f"[\n{ROW},\n{ROW}", "d.json:3:35: the list does not end; the file is cut off: end it with ]"),
        (f"[{ROW[:-3]}", "d.json:1:32: is not valid JSON: Unterminated string"),
        (f"[{ROW[:-5]}", "d.json:1:31: is not valid JSON: Expecting value"),
        (f"[{ROW}] x", "d.json:1:38: text after the end of the list; remove it"),
        ("[{'prompt': 1}]", "d.json:1:3: is not valid JSON: Expecting property name"),
        ("[]", "d.json:1:2: holds no rows"),
        ("", "d.json:1:1: holds no rows"),
        ("x", "d.json:1:1: begins with 'x'"),
        ("[NaN]", "d.json:1:2: is not valid JSON: NaN is not JSON; write null or a number"),
        ("[1]", "d.json:1:2: entry 1 is a number, not an object"),
        (f"[[{ROW}]]", "d.json:1:2: entry 1 is a list, not an object"),
        ('{\n"prompt": "q",\n"completion": "a"\n}', "d.json:1:1: is one JSON object over many lines, not a list"),
        (f'{{"train": [{ROW}]}}', "the rows are inside 'train': write that list alone"),
        ('[{"prompt": "q",\n "completion": null}]', "d.json:2:16: 'completion' is null; it must be a text"),
        (
            b"[\n\n" + ROW.encode().replace(b"q", b"h\xfc") + b"]",
            "d.json:3:14: byte 0xfc is not UTF-8; save the file as",
        ),
        (f"[{ROW}]".encode("utf-16"), "d.json:1: is UTF-16; save the file as UTF-8: iconv -f UTF-16 -t UTF-8 d.json"),
        ("[" + '{"a":' * 100_000, "d.json:1:2: is nested too deeply"),
    ],
)
def test_broken_json(tmp_path: Path, content: str | bytes, expected: str) -> None:
    assert expected in sentence(write(tmp_path, "d.json", content))


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("d.csv", "prompt,completion\nq,a\n", [("q", "a", 2)]),
        ("d.csv", '\ufeffprompt,completion,id\r\n"q, ""r""",a,1\r\n', [('q, "r"', "a", 2)]),
        ("d.csv", 'prompt,completion\n"one\ntwo",a\n\nq,b\n', [("one\ntwo", "a", 2), ("q", "b", 5)]),
        ("d.tsv", "prompt\tcompletion\nq, r\ta\n", [("q, r", "a", 2)]),
        ("d.csv", ",prompt,completion\n0,q,a\n1,r,b\n", [("q", "a", 2), ("r", "b", 3)]),
        ("d.csv", "prompt,completion,\nq,a,\n", [("q", "a", 2)]),
    ],
)
def test_tables(tmp_path: Path, name: str, content: str, rows: list[tuple[str, str, int]]) -> None:
    assert pairs(write(tmp_path, name, content)) == rows


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("prompt,completion\nq,a\nq\n", "d.csv:3:1: has 1 cells and the first line names 2 columns; quote a text"),
        (
            'prompt,completion\nq,"a\nq,b\n',
            "d.csv:2: is not valid CSV: unexpected end of data; a quote that begins here",
        ),
        ('prompt,completion\nq,"a"b\n', "d.csv:2: is not valid CSV: ',' expected after '\"'; double a quote"),
        ("prompt,prompt\nq,a\n", "d.csv:1: the column 'prompt' is there twice; the first line names every column once"),
        ("prompt,,\nq,a,b\n", "d.csv:1: two columns have no name; the first line names every column once"),
        (",prompt,,prompt\n0,q,a,b\n", "d.csv:1: the column 'prompt' is there twice"),
        (" ,\nq,a\n", "d.csv:1: two columns have no name"),
        ('" "\nq\n', "d.csv:1: no column has a name"),
        (",prompt,completion\n0,q,\n", "d.csv:2:5: 'completion' is empty"),
        ("prompt,completion\n", "d.csv: holds no rows; the first line names the columns"),
        ("", "d.csv: holds no rows"),
        ('prompt,completion\n"x\ny",\n', "d.csv:3:4: 'completion' is empty"),
        (b"prompt,completion\nq,a\ncaf\xe9,b\n", "d.csv:3:4: byte 0xe9 is not UTF-8; save the file as UTF-8: iconv"),
        ("question,answer\nq,a\n", "d.csv:2:1: the format of the first row is not known; name the columns"),
    ],
)
def test_broken_tables(tmp_path: Path, content: str | bytes, expected: str) -> None:
    assert expected in sentence(write(tmp_path, "d.csv", content))


def test_rows_that_are_not_utf8_are_left_out_however_many(tmp_path: Path) -> None:
    rows = b"".join(b"q%d,caf\xe9\n" % index for index in range(2 * SHOWN)) + b"q,a\n"
    data = load(write(tmp_path, "d.csv", b"prompt,completion\n" + rows), Shape(skip=True))
    assert (len(data), data.skipped, len(data.notes)) == (1, 2 * SHOWN, SHOWN)
    assert "d.csv:2:7: byte 0xe9 is not UTF-8" in str(data.notes[0])


@pytest.mark.parametrize("skip", [False, True])
def test_the_names_of_columns_are_not_left_out(tmp_path: Path, skip: bool) -> None:
    """The first row would be taken for them."""
    path = write(tmp_path, "d.csv", b"prompt,completion,caf\xe9\nprompt,completion,b\nq,a,b\n")
    with pytest.raises(InputError) as caught:
        load(path, Shape(skip=skip))
    (problem,) = caught.value.problems
    assert "d.csv:1:22: byte 0xe9 is not UTF-8; save the file as UTF-8" in str(problem)


def test_text_is_read_in_pieces_between_paragraphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"Line {index}.\n" + ("\n" if index % 5 == 4 else "") for index in range(100))
    path = write(tmp_path, "d.txt", text)
    monkeypatch.setattr(prose, "PIECE", 200)
    data = load(path, Shape(method="cpt"))
    rows = [row for row in data.rows if isinstance(row, Document)]
    assert "".join(row.text for row in rows) == text
    assert len(rows) > 3
    assert [row.ends for row in rows] == [False] * (len(rows) - 1) + [True]
    assert all(row.text.endswith("\n\n") for row in rows)
    assert rows[1].place.line == rows[0].text.count("\n") + 1
    assert "holds no text; write the text to learn into it" in sentence(write(tmp_path, "e.txt", " \n\n"), "cpt")


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_packed_files(tmp_path: Path, ending: str, pack: Any) -> None:
    assert pairs(write(tmp_path, f"d.jsonl.{ending}", pack(f"{ROW}\n".encode()))) == [("q", "a", 1)]
    cut = write(tmp_path, f"e.jsonl.{ending}", pack(f"{ROW}\n".encode() * 9)[:-9])
    assert "cannot be read: " in sentence(cut)
    assert "cannot be read: " in sentence(write(tmp_path, f"f.jsonl.{ending}", ROW))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("D.JSONL.GZ", gzip.compress(f"{ROW}\n".encode())),
        ("D.Jsonl.Bz2", bz2.compress(f"{ROW}\n".encode())),
        ("D.JSON.XZ", lzma.compress(f"[{ROW}]".encode())),
        ("D.TSV", b"prompt\tcompletion\nq\ta\n"),
        ("D.TSV.GZ", gzip.compress(b"prompt\tcompletion\nq\ta\n")),
        ("v1.tsv.csv", b"prompt,completion\nq,a\n"),
    ],
)
def test_endings_in_capital_letters(tmp_path: Path, name: str, content: bytes) -> None:
    assert [pair[:2] for pair in pairs(write(tmp_path, name, content))] == [("q", "a")]


def test_a_folder_and_its_splits(tmp_path: Path) -> None:
    for name in ("data/train-00001.jsonl", "data/train-00000.jsonl", "data/test-00000.jsonl", ".cache/x.jsonl"):
        write(tmp_path, name, ROW)
    write(tmp_path, "dataset_info.json", "{}")
    write(tmp_path, "README.md", "# hello")
    names = [path.name for path in local(tmp_path, None, "train", PLACE)]
    assert names == ["train-00000.jsonl", "train-00001.jsonl"]
    assert [path.name for path in local(tmp_path, None, "eval", PLACE)] == ["test-00000.jsonl"]
    assert [path.name for path in local(tmp_path, "test", "train", PLACE)] == ["test-00000.jsonl"]
    with pytest.raises(InputError, match=r"r.yaml:1: the folder .* has no split 'valid'; it has train, test"):
        local(tmp_path, "valid", "train", PLACE)


def test_a_folder_of_splits_as_folders(tmp_path: Path) -> None:
    write(tmp_path, "train/a.csv", "x")
    write(tmp_path, "validation/b.csv", "x")
    assert [path.name for path in local(tmp_path, None, "train", PLACE)] == ["a.csv"]
    assert [path.name for path in local(tmp_path, None, "eval", PLACE)] == ["b.csv"]


def test_a_folder_without_names_of_splits(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl"):
        write(tmp_path, name, ROW)
    files = local(tmp_path, None, "train", PLACE)
    assert [path.name for path in files] == ["a.jsonl", "b.jsonl"]
    data = load(tmp_path, files=files)
    assert len(data) == 2
    assert len(data.sha256) == 64
    with pytest.raises(InputError, match="its files name no splits: remove 'split'"):
        local(tmp_path, "train", "train", PLACE)
    write(tmp_path, "c.csv", "x")
    with pytest.raises(InputError, match=r"holds \.csv and \.jsonl files; keep one kind"):
        local(tmp_path, None, "train", PLACE)


def test_what_map_leaves_beside_a_data_set_is_not_read(tmp_path: Path) -> None:
    names = ("data-00000-of-00001.arrow", "cache-0a1b2c.arrow", "cache-0a1b2c_00000_of_00002.arrow")
    for name in (*names, "state.json", "dataset_info.json"):
        write(tmp_path, name, b"{}")
    assert [path.name for path in local(tmp_path, None, "train", PLACE)] == ["data-00000-of-00001.arrow"]
    write(tmp_path, "rows/cache-1.jsonl", ROW)
    assert [path.name for path in local(tmp_path / "rows", None, "train", PLACE)] == ["cache-1.jsonl"]


def test_a_folder_that_holds_no_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no rows; rows are read from \.jsonl"):
        local(tmp_path, None, "train", PLACE)
    write(tmp_path, "config.json", "{}")
    (tmp_path / "config.json").rename(tmp_path / "model.gguf")
    with pytest.raises(InputError, match="holds no rows; that is a model"):
        local(tmp_path, None, "train", PLACE)


def test_endings(tmp_path: Path) -> None:
    for name, cure in (
        ("d.jsnl", "rename it to end with .jsonl"),
        ("d.xlsx", "rows are read from"),
        ("d", "has no ending"),
        ("d.parquet.gz", "is packed twice"),
    ):
        with pytest.raises(InputError, match=cure):
            local(write(tmp_path, name, ROW), None, "train", PLACE)
    with pytest.raises(InputError, match="is a file, which has no splits; remove 'split'"):
        local(write(tmp_path, "d.jsonl", ROW), "train", "train", PLACE)


def test_what_is_a_hub_id() -> None:
    assert hub.is_hub_id("tatsu-lab/alpaca")
    assert not any(map(hub.is_hub_id, ("alpaca", "a/b/c", "../x", "./a", "a b/c")))


def test_a_set_of_the_hub_comes_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(word: str, subset: str | None, *, split: str) -> Any:
        asked.append((word, subset, split))
        if split == "nope":
            raise ValueError("Unknown split \"nope\". Should be one of ['train'].\nmore")
        return SimpleNamespace(cache_files=[{"filename": str(tmp_path / "a.arrow")}])

    fake = SimpleNamespace(load_dataset=load_dataset, disable_progress_bars=lambda: None)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert hub.fetch("o/n", "main", "train", PLACE) == (tmp_path / "a.arrow",)
    assert asked == [("o/n", "main", "train")]
    with pytest.raises(InputError, match=r"r.yaml:1: 'o/n' cannot be fetched: Unknown split .*; name another split"):
        hub.fetch("o/n", None, "nope", PLACE)
    with pytest.raises(InputError, match=r"r.yaml:1: 'train\[:10%\]' is a part of a split; name the split train, and"):
        hub.fetch("o/n", None, "train[:10%]", PLACE)
    assert [word for *_, word in asked] == ["train", "nope"]
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="the datasets library is not here"):
        hub.fetch("o/n", None, "train", PLACE)


def test_without_pyarrow_parquet_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path, "d.parquet", b"PAR1")
    assert "is read by pyarrow, which is not installed here; save the rows as JSON Lines" in sentence(path)


def test_a_broken_line_of_text_is_told(tmp_path: Path) -> None:
    faults = Faults()
    list(prose.read(write(tmp_path, "d.txt", b"caf\xe9\nok\n"), faults))
    assert str(faults.problems[0]).endswith(
        "d.txt:1:4: byte 0xe9 is not UTF-8; save the file as UTF-8: iconv -f WINDOWS-1252 -t UTF-8 d.txt"
    )
