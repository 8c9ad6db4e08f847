"""What a look at the rows shows, gathered while they stream by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strix_train.data.load import DataSet
from strix_train.data.rows import Continuation, Conversation, Preference, Prompt, Rated, Row, question
from strix_train.data.sample import Sample

# Rows that are tokenised to learn how long rows are, and how long texts among them may be altogether.
SAMPLED = 256


@dataclass(slots=True)
class Look:
    """Counts of one set. Lengths are in characters; a row is long when it may have more than `most` tokens.

    `good`: of marked rows, those that are marked good.

    `shapes`: the roles of conversations in their order, with the first row of each. `long`: a sample of long rows;
    no other row can be too long, since a token is at least one byte.
    """

    most: int
    rows: int = 0
    turns: int = 0
    longest: int = 0
    good: int = 0
    shapes: dict[tuple[str, ...], Conversation] = field(default_factory=dict)
    asks: set[int] = field(default_factory=set)
    some: Sample[Row] = field(default_factory=lambda: Sample(SAMPLED))
    long: Sample[Row] = field(default_factory=lambda: Sample(SAMPLED))

    def see(self, row: Row) -> None:
        """Take the next row into account."""
        self.rows += 1
        texts = self._texts(row)
        length = sum(map(len, texts))
        if length > self.longest:
            self.longest = length
        self.some.add(row)
        # a character is four bytes at most, and a template adds some tokens to each text
        size = length if all(map(str.isascii, texts)) else 4 * length
        if size + 64 + 16 * len(texts) > self.most:
            self.long.add(row)
        asked = question(row)
        if asked:
            self.asks.add(hash(asked.strip()))

    def _texts(self, row: Row) -> list[str]:
        """Return the texts that become one row of tokens: of a pair, the longer one's."""
        if isinstance(row, Conversation):
            self.turns += len(row.turns)
            shape = tuple([turn.role for turn in row.turns])
            if shape not in self.shapes:
                self.shapes[shape] = row
            return [turn.content for turn in row.turns]
        if isinstance(row, Continuation):
            self.turns += 2
            return [row.prompt, row.completion]
        if isinstance(row, Preference):
            chosen = self._texts(row.chosen)
            turns = self.turns
            rejected = self._texts(row.rejected)
            self.turns = turns
            return max(chosen, rejected, key=lambda texts: sum(map(len, texts)))
        if isinstance(row, Rated):
            self.good += row.good
            return self._texts(row.row)
        if isinstance(row, Prompt):
            self.turns += len(row.turns)
            return [turn.content for turn in row.turns]
        return [row.text]


def repeated(sets: Sequence[DataSet]) -> int:
    """Return how many rows say what another one says already."""
    seen: set[int] = set()
    for each in sets:
        seen.update(each.digests)
    return sum(len(each) for each in sets) - len(seen)


def shared(train: Sequence[DataSet], evaluation: Sequence[DataSet]) -> int:
    """Return how many evaluation rows are also training rows."""
    seen: set[int] = set()
    for each in train:
        seen.update(each.digests)
    return sum(content in seen for each in evaluation for content in each.digests)
