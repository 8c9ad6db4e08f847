"""Rows where the data libraries are: Parquet and Arrow files, sets of the datasets library, real tokenizers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
from workshop import ROOT, Workshop

from strix_train.data import columnar, hub
from strix_train.data.faults import Faults
from strix_train.data.load import load
from strix_train.data.rows import Conversation
from strix_train.errors import InputError, Place

ROWS = tiny.rows(12)


def table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    return pa.Table.from_pylist(rows)


def write_arrow(path: Path, rows: list[dict[str, Any]], *, stream: bool) -> Path:
    import pyarrow as pa

    made = table(rows)
    open_ = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, open_(sink, made.schema) as writer:
        writer.write_table(made)
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(table(rows), path, row_group_size=5)
    return path


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_columnar_files_hold_the_same_rows(tmp_path: Path, kind: str) -> None:
    plain = load(tiny.write_rows(tmp_path / "d.jsonl", ROWS))
    if kind == "parquet":
        path = write_parquet(tmp_path / "d.parquet", ROWS)
    else:
        path = write_arrow(tmp_path / "d.arrow", ROWS, stream=kind == "stream")
    data = load(path)
    assert data.format == "messages"
    assert data.digests == plain.digests
    assert str(data.rows[6].place) == f"{path} (row 7)"


def test_a_fault_in_a_columnar_file_has_row_and_column(tmp_path: Path) -> None:
    bad = json.loads(json.dumps(ROWS))
    bad[7]["messages"][1]["content"] = None
    with pytest.raises(InputError) as caught:
        load(write_parquet(tmp_path / "d.parquet", bad))
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{tmp_path}/d.parquet (row 8, messages[2].content): the content of message 2")
    assert problem.around == "None"


def test_a_parquet_file_in_capital_letters(tmp_path: Path) -> None:
    assert len(load(write_parquet(tmp_path / "D.PARQUET", ROWS))) == len(ROWS)


def not_utf8(count: int, at: int) -> Any:
    """Texts of which one is no UTF-8, as programs write them that do not look."""
    import pyarrow as pa

    texts = [b"caf\xe9" if index == at else b"ok" for index in range(count)]
    return pa.array(texts, pa.binary()).view(pa.string())


def test_values_that_python_has_none_for(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pairs = pa.StructArray.from_arrays([pa.array(["1"] * 1500)] * 2, names=["a", "a"])
    late = [None] * 1400 + [2**62] + [None] * 99
    for column, rows, sentence in (
        (not_utf8(1500, 1400), "1025-1500", "byte 0xe9 is not UTF-8; write its texts as UTF-8"),
        (not_utf8(1500, 3), "1-1024", "byte 0xe9 is not UTF-8; write its texts as UTF-8"),
        (pa.array(late, pa.timestamp("us")), "1025-1500", "date value out of range; write the column as texts"),
        (pa.array([2**30] * 1500, pa.date32()), "1-1024", "days=1073741824; must have magnitude"),
        (pa.array(late, pa.duration("s")), "1025-1500", "Python int too large to convert to C int; write the"),
        (pa.array([1] * 1500, pa.timestamp("us", "Nowhere/None")), "1-1024", ""),
        (pairs, "1-1024", "Converting to Python dictionary is not supported when duplicate field names"),
    ):
        texts = pa.array(["q"] * 1500)
        pq.write_table(pa.table({"prompt": texts, "completion": texts, "more": column}), tmp_path / "d.parquet")
        with pytest.raises(InputError) as caught:
            load(tmp_path / "d.parquet")
        (problem,) = caught.value.problems
        place = f"{tmp_path}/d.parquet (rows {rows}): the column 'more' cannot be read: "
        assert str(problem).startswith(place + sentence)
        assert problem.cure


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    """pyarrow takes the last one without a word."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = pa.array(["q"])
    pq.write_table(pa.table([texts] * 3, ["prompt", "completion", "completion"]), tmp_path / "d.parquet")
    with pytest.raises(
        InputError, match=r"d\.parquet: the column 'completion' is there twice; write every column once"
    ):
        load(tmp_path / "d.parquet")


def test_fields_that_a_row_lacks_are_no_nulls(tmp_path: Path) -> None:
    """A column of structs has every field that any row has; a template would write null for it."""

    def call(**arguments: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "look", "arguments": arguments}}

    def talk(**arguments: Any) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "tool_calls": [call(**arguments)]},
            {"role": "tool", "content": "t", "name": "look"},
            {"role": "assistant", "content": "a"},
        ]

    def tool(**properties: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "look", "parameters": {"properties": properties}}}

    rows = [
        {"messages": talk(a=1), "tools": [tool(a={"type": "integer"})], "id": None},
        {"messages": talk(b=["x", None]), "tools": [tool(b={"type": "array", "items": {"type": "string"}})], "id": 2},
    ]
    path = write_parquet(tmp_path / "d.parquet", rows)
    assert [record.value for record in columnar.read(path, Faults())] == rows
    for one, two in zip(load(path).rows, load(tiny.write_rows(tmp_path / "d.jsonl", rows)).rows, strict=True):
        assert isinstance(one, Conversation)
        assert isinstance(two, Conversation)
        assert (one.turns, one.tools) == (two.turns, two.tools)


def test_a_message_that_says_null_is_read_as_in_json_lines(tmp_path: Path) -> None:
    call = {"function": {"name": "write", "arguments": {"content": "c"}}}
    other = {"function": {"name": "look", "arguments": {"place": "p"}}}
    talk = [
        {"role": "system", "content": None},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call, other]},
        {"role": "tool", "content": "t"},
        {"role": "assistant", "content": "a"},
    ]
    path = write_parquet(tmp_path / "d.parquet", [{"messages": talk}])
    assert [record.value for record in columnar.read(path, Faults())] == [{"messages": talk}]
    (one,), (two,) = load(path).rows, load(tiny.write_rows(tmp_path / "d.jsonl", [{"messages": talk}])).rows
    assert isinstance(one, Conversation)
    assert isinstance(two, Conversation)
    assert one.turns == two.turns


@pytest.mark.parametrize("name", ["d.parquet", "d.arrow"])
def test_a_broken_columnar_file(tmp_path: Path, name: str) -> None:
    whole = tmp_path / f"whole-{name}"
    write_parquet(whole, ROWS) if name.endswith("parquet") else write_arrow(whole, ROWS, stream=True)
    for content in (b"", b"PAR1", whole.read_bytes()[:-40], b"{}"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=r"is not a whole|cannot be read|holds no rows") as caught:
            load(tmp_path / name)
        assert caught.value.problems[0].cure


def test_the_datasets_library_brings_arrow_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder called owner/name stands for the hub: the library takes it by the same words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "owner" / "name").mkdir(parents=True)
    tiny.write_rows(tmp_path / "owner" / "name" / "train.jsonl", ROWS)
    tiny.write_rows(tmp_path / "owner" / "name" / "test.jsonl", ROWS[:3])
    files = hub.fetch("owner/name", None, "train", Place("r.yaml", 2))
    assert {path.suffix for path in files} == {".arrow"}
    data = load(Path("owner/name"), files=files)
    assert data.digests == load(tmp_path / "owner" / "name" / "train.jsonl").digests
    with pytest.raises(InputError, match=r"r.yaml:2: 'owner/name' cannot be fetched: .*; name another split than 'nop"):
        hub.fetch("owner/name", None, "nope", Place("r.yaml", 2))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=r"r.yaml:2: 'owner/none' cannot be fetched: "):
        hub.fetch("owner/none", None, "train", Place("r.yaml", 2))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_folder_gives_the_tokens_that_transformers_gives(workshop: Workshop, family: str) -> None:
    from transformers import AutoTokenizer

    from strix_train import localtext, template
    from strix_train.encode import encoder
    from strix_train.tokenizer import Adapted

    folder = workshop.path / "models" / family
    theirs = Adapted(AutoTokenizer.from_pretrained(folder))
    ours = localtext.of_folder(folder, template.of_folder(folder))
    assert ours is not None
    assert (ours.bos, ours.eos, ours.has_template) == (theirs.bos, theirs.eos, theirs.has_template)
    encode = [encoder(text, template="auto", responses_only=True, max_length=512) for text in (ours, theirs)]
    path = tiny.write_rows(workshop.path / "same.jsonl", [*ROWS, *tiny.rows(3)])
    for row in load(path).rows:
        assert isinstance(row, Conversation)
        assert encode[0](row) == encode[1](row)


def test_check_counts_tokens_and_loads_no_torch(workshop: Workshop) -> None:
    recipe = workshop.recipe("counted", schedule__max_length=16)
    code = (
        "import sys\nfrom strix_train.__main__ import main\n"
        f"print(main(['check', {str(recipe)!r}]))\n"
        "print([name for name in ('torch', 'transformers', 'datasets', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=workshop.environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tokens: median" in done.stdout
    assert "are longer than max_length" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["0", "[]"]


def test_a_template_and_tools_of_a_real_tokenizer(workshop: Workshop) -> None:
    """Calls of tools are learned as the template writes them, and what tools say is not."""
    from transformers import AutoTokenizer

    from strix_train.encode import IGNORED, encoder
    from strix_train.tokenizer import Adapted

    tokenizer = AutoTokenizer.from_pretrained(workshop.path / "models" / "qwen3")
    tokenizer.chat_template = (
        "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content }}{% for call in m.tool_calls or [] %}<call>{{ call.function.name }}</call>{% endfor %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    calls = [{"type": "function", "function": {"name": "look", "arguments": {}}}]
    row = {
        "messages": [
            {"role": "user", "content": "What follows red?"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "content": "green"},
            {"role": "assistant", "content": "After red comes green."},
        ],
        "tools": [{"type": "function", "function": {"name": "look"}}],
    }
    (talk,) = load(tiny.write_rows(workshop.path / "tools.jsonl", [row])).rows
    assert isinstance(talk, Conversation)
    found = encoder(Adapted(tokenizer), template="auto", responses_only=True, max_length=512)(talk)
    whole = tokenizer.decode(found.ids)
    assert whole.startswith("tools: [")
    learned = tokenizer.decode([label for label in found.labels if label != IGNORED])
    assert learned == "<call>look</call><|im_end|>After red comes green.<|im_end|>"
