"""Rows as tokens: columns, plain text in blocks, and packing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_train.data.rows import Document
from strix_train.encode import IGNORED, Encoded, Span
from strix_train.errors import Place
from strix_train.tokens import Column, Counts, blocks, pack, packed

PLACE = Place("d.txt", 1)
_BOS, _EOS = 1, 0


class Letters:
    """A tokenizer whose tokens are characters."""

    has_template = False
    bos, eos = "<", ">"

    def render(self, messages: Sequence[dict[str, Any]], *, answer_next: bool, tools: Any = None) -> str:
        raise AssertionError

    def tokens(self, text: str) -> tuple[list[int], list[Span]]:
        return [ord(letter) for letter in text], [(at, at + 1) for at in range(len(text))]

    def is_end(self, token: int) -> bool:
        return token == ord(">")


def words(rows: list[list[int]]) -> list[str]:
    return ["".join(map(chr, row)) for row in rows]


def column(*rows: Sequence[int]) -> Column:
    made = Column()
    for row in rows:
        made.append(row)
    return made


def test_documents_follow_one_another_with_an_end_between() -> None:
    rows = [Document("abc", PLACE), Document("de>", PLACE), Document("f", PLACE)]
    assert words(list(blocks(rows, Letters(), 4, joined=True))) == ["<abc", "><de", "><f>"]
    assert words(list(blocks(rows, Letters(), 4, joined=False))) == ["<abc", ">", "<de>", "<f>"]


def test_a_document_in_pieces_is_one_document() -> None:
    rows = [Document("abc", PLACE, ends=False), Document("def", PLACE), Document("g", PLACE)]
    assert words(list(blocks(rows, Letters(), 100, joined=True))) == ["<abcdef><g>"]


@given(st.lists(st.text(alphabet="abc", max_size=30), min_size=1, max_size=12), st.integers(2, 9), st.booleans())
def test_no_letter_is_lost_or_seen_twice(texts: list[str], size: int, joined: bool) -> None:
    rows = list(blocks([Document(text, PLACE) for text in texts], Letters(), size, joined=joined))
    assert "".join(words(rows)) == "".join(f"<{text}>" for text in texts)
    assert all(0 < len(row) <= size for row in rows)
    if joined:
        assert all(len(row) == size for row in rows[:-1])


_LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=120)


@given(_LENGTHS)
def test_packing_keeps_every_row_whole(lengths: list[int]) -> None:
    bins = pack(lengths, 20)
    assert sorted(number for numbers in bins for number in numbers) == list(range(len(lengths)))
    sizes = [sum(lengths[number] for number in numbers) for numbers in bins]
    assert all(size <= 20 for size in sizes)
    # no two bins would fit into one
    assert len(bins) < 2 or sum(sorted(sizes)[:2]) > 20
    assert pack(lengths, 20) == bins


def test_packing_wastes_little() -> None:
    lengths = [1 + (index * 37) % 200 for index in range(5000)]
    bins = pack(lengths, 2048)
    assert sum(lengths) / (len(bins) * 2048) > 0.99


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=20))
def test_packed_rows_can_be_told_apart(rows: list[list[int]]) -> None:
    labels = [[IGNORED if token % 2 else token for token in row] for row in rows]
    made = packed({"input_ids": column(*rows), "labels": column(*labels)}, 12)
    found = []
    for index in range(len(made["input_ids"])):
        ids, marks, positions = (made[name][index] for name in ("input_ids", "labels", "position_ids"))
        assert len(ids) == len(marks) == len(positions) <= 12
        starts = [at for at, position in enumerate(positions) if position == 0]
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            assert list(positions[start:end]) == list(range(end - start))
            assert marks[start] == IGNORED
            found.append((list(ids[start:end]), list(marks[start + 1 : end])))
    assert sorted(found) == sorted((row, label[1:]) for row, label in zip(rows, labels, strict=True))


def test_counts() -> None:
    counts = Counts()
    assert counts.take(Encoded([1, 2, 3], [IGNORED, 2, 3], 3))
    assert counts.take(Encoded([1, 2], [IGNORED, 2], 9))
    assert not counts.take(Encoded([1, 2], [IGNORED, IGNORED], 12))
    assert (counts.rows, counts.learned, counts.tokens, counts.lost, counts.cut) == (2, 3, 5, 1, 1)
    assert (counts.longest, counts.longest_seen) == (3, 12)


@pytest.mark.parametrize(
    ("labels", "first", "end"), [([IGNORED, 2, IGNORED, 4, IGNORED], 1, 4), ([IGNORED], 1, 0), ([5, 6], 0, 2)]
)
def test_where_the_answer_stands(labels: list[int], first: int, end: int) -> None:
    row = Encoded(list(range(len(labels))), labels, len(labels))
    assert (row.first, row.end) == (first, end)


def test_columns_are_flat() -> None:
    made = column([1, 2], [], [3])
    assert len(made) == 3
    assert [list(made[index]) for index in range(3)] == [[1, 2], [], [3]]
    assert made.lengths() == [2, 0, 1]
    assert re.fullmatch(r"array\('i', \[1, 2, 3\]\)", repr(made.values))
