"""Every key that tomllib sees has the line on which it was written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune.tomlpos import Positions, split_key

Path = tuple[str | int, ...]

BARE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
bare = st.text(BARE, min_size=1, max_size=5)
odd = st.text("ab \"'\\=[]{}#.,é\t", max_size=5)
comments = st.sampled_from(["", "", " # plain", ' # ] = "x" [[y]]', " # 'it''s", '  # """', " # '''"])
gaps = st.sampled_from(["", "", " ", "\t"])
simple = st.sampled_from(
    ["1", "0x1f", "1_000", "3.5e2", "inf", "true", "false", "1979-05-27 07:32:00Z", "07:32:00"]
) | st.sampled_from(['""', "''", '"a]b#c=d"', "'a\"b\\'", '"\\"]\\\\"', '"\\u0041"', '"{"', "'}'"])
# texts with their own line breaks; the number of lines is counted where they are written
long_strings = st.sampled_from(
    ['"""\na = 1\n[b]\n"""', "'''\nc = 2\n[[d]]\n'''", '"""x\\\n  y"""', '"""a""quoted"" end"""']
) | st.sampled_from(['"""ends with a quote\n""""', "'''two\n'''''", '"""\\"""\n# no comment\n"""', '""""""', "''''''"])


class Writer:
    """Writes TOML while noting the line of each key path that it is the first to mention."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.text = ""
        self.lines: dict[Path, int] = {}

    @property
    def line(self) -> int:
        return self.text.count("\n") + 1

    def note(self, path: Path) -> None:
        for size in range(1, len(path) + 1):
            self.lines.setdefault(path[:size], self.line)

    def key(self, name: str) -> str:
        forms = [json.dumps(name, ensure_ascii=self.draw(st.booleans()))]
        if name and set(name) <= set(BARE):
            forms.append(name)
        if "'" not in name:
            forms.append(f"'{name}'")
        return self.draw(st.sampled_from(forms))

    def dotted(self, names: list[str]) -> str:
        dot = f"{self.draw(gaps)}.{self.draw(gaps)}"
        return dot.join(self.key(name) for name in names)

    def filler(self) -> None:
        self.text += self.draw(st.sampled_from(["", "", "\n", "# a comment = [\n", '  # """\n\n', "\t\n"]))

    def value(self, path: Path, depth: int, *, one_line: bool = False) -> None:
        kinds = ["simple"] + ([] if one_line else ["long"]) + (["array", "inline"] if depth else [])
        kind = self.draw(st.sampled_from(kinds))
        if kind == "simple":
            self.text += self.draw(simple)
        elif kind == "long":
            self.text += self.draw(long_strings)
        elif kind == "array":
            self.array(path, depth, one_line=one_line)
        else:
            self.inline(path, depth)

    def array(self, path: Path, depth: int, *, one_line: bool) -> None:
        def pause() -> None:
            self.text += self.draw(st.sampled_from(["", " "] if one_line else ["", " ", "\n", " # ], x\n", "\n\n  "]))

        self.text += "["
        count = self.draw(st.integers(0, 3))
        for index in range(count):
            pause()
            self.note((*path, index))
            self.value((*path, index), depth - 1, one_line=one_line)
            pause()
            if index < count - 1 or self.draw(st.booleans()):
                self.text += ","
        pause()
        self.text += "]"

    def inline(self, path: Path, depth: int) -> None:
        self.text += "{"
        names = self.draw(st.lists(bare | odd, max_size=3, unique=True))
        for number, name in enumerate(names):
            self.text += (", " if number else " ") + self.key(name) + self.draw(gaps) + "=" + self.draw(gaps)
            self.note((*path, name))
            # a value may go over several lines even inside an inline table; its text must not break the line itself
            self.value((*path, name), depth - 1, one_line=self.draw(st.booleans()))
            self.text += self.draw(gaps)
        self.text += "}"

    def body(self, path: Path, names: list[str]) -> None:
        for name in names:
            self.filler()
            parts = [name, *self.draw(st.lists(bare | odd, max_size=2))]
            self.text += self.draw(gaps) + self.dotted(parts) + self.draw(gaps) + "=" + self.draw(gaps)
            self.note((*path, *parts))
            self.value((*path, *parts), 2)
            self.text += self.draw(comments) + "\n"

    def header(self, path: Path, names: list[str], opening: str, closing: str) -> None:
        self.filler()
        inner = f"{self.draw(gaps)}{self.dotted(names)}{self.draw(gaps)}"
        self.text += f"{self.draw(gaps)}{opening}{inner}{closing}"
        self.note(path)
        self.text += self.draw(comments) + "\n"

    def tables(self, path: Path, shown: list[str], depth: int, taken: set[str]) -> None:
        """Sub-tables of the table `path`, which headers call `shown`."""
        for name in self.draw(st.lists((bare | odd).filter(lambda name: name not in taken), max_size=2, unique=True)):
            called = [*shown, name]
            if self.draw(st.booleans()):
                for index in range(self.draw(st.integers(1, 3))):
                    self.header((*path, name, index), called, "[[", "]]")
                    self.contents((*path, name, index), called, depth)
            elif depth and self.draw(st.booleans()):
                # [a.b] without an [a] before it, and perhaps one after it
                inner = self.draw(bare | odd)
                self.header((*path, name, inner), [*called, inner], "[", "]")
                self.contents((*path, name, inner), [*called, inner], depth - 1)
                if self.draw(st.booleans()):
                    self.header((*path, name), called, "[", "]")
            else:
                self.header((*path, name), called, "[", "]")
                self.contents((*path, name), called, depth)

    def contents(self, path: Path, shown: list[str], depth: int) -> None:
        names = self.draw(st.lists(bare | odd, max_size=3, unique=True))
        self.body(path, names)
        if depth:
            self.tables(path, shown, depth - 1, set(names))


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[Path, int]]:
    writer = Writer(draw)
    writer.contents((), [], 2)
    return writer.text, writer.lines


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


@given(documents())
def test_every_key_that_tomllib_sees_has_its_line(document: tuple[str, dict[Path, int]]) -> None:
    text, lines = document
    positions = Positions(text)
    seen = list(paths(tomllib.loads(text)))
    assert set(seen) == set(lines), "the generator and tomllib must agree on what there is"
    assert {path: positions.line(path) for path in seen} == lines


@given(documents())
def test_windows_line_ends_change_no_line(document: tuple[str, dict[Path, int]]) -> None:
    text, lines = document
    positions = Positions(text.replace("\n", "\r\n"))
    assert {path: positions.line(path) for path in lines} == lines


@given(st.text(max_size=200) | st.text("ab.=[]{}\"'\\#\n ,", max_size=60))
def test_any_text_is_survived(text: str) -> None:
    Positions(text)


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("[a] # see [b]\nx = 1", ("a", "x"), 2),
        ('["a]b"] # [c]\nx = 1', ("a]b", "x"), 2),
        ('[["a]]b"]]\nx = 1\n[["a]]b"]]\nx = 2', ("a]]b", 1, "x"), 4),
        ('"a\\u0062" = 1', ("ab",), 1),
        ('\n"a\\"b".c = 1', ('a"b', "c"), 2),
        ("a = [\n  [1,\n   2],\n  3]\nb = 1", ("a", 0, 1), 3),
        ("a = [\n  [1,\n   2],\n  3]\nb = 1", ("a", 1), 4),
        ("a = { b = [\n1,\n2], c = 3 }\nd = 1", ("a", "c"), 3),
        ("[[x]]\n[x.y]\nz = 1\n[[x]]\n[[x.w]]\n[[x.w]]\nq = 1", ("x", 1, "w", 1, "q"), 7),
        ("[[x]]\n[x.y]\nz = 1\n[[x]]\n[x.y]\nz = 1", ("x", 1, "y", "z"), 6),
        # a table that is written on both before and behind its parent
        ("[a.b]\nx = 1\n[a]\ny = 1", ("a",), 1),
    ],
)
def test_places_that_went_wrong_before(text: str, path: Path, line: int) -> None:
    tomllib.loads(text)
    assert Positions(text).line(path) == line


def test_a_key_that_is_not_there_has_the_line_of_what_encloses_it() -> None:
    positions = Positions("a = 1\n[b]\nc = 1\n")
    assert positions.line(("b", "missing", 3)) == 2
    assert positions.line(("nowhere",)) is None
    assert positions.line(()) is None


def test_a_long_file_is_read_in_linear_time() -> None:
    import time

    def cost(entries: int) -> float:
        text = "".join(f'[[t]]\nname = "{number}"\nitems = [\n  "a",\n  "b",\n]\n' for number in range(entries))
        began = time.process_time()  # what else runs on the machine does not count
        Positions(text)
        return time.process_time() - began

    cost(100)
    few, many = (min(cost(entries) for _ in range(3)) for entries in (400, 4000))
    assert many < 40 * max(few, 1e-4)


@given(st.lists(bare | odd, min_size=1, max_size=4), st.data())
def test_a_dotted_key_is_split_as_it_was_written(names: list[str], data: st.DataObject) -> None:
    assert split_key(Writer(data.draw).dotted(names)) == tuple(names)
