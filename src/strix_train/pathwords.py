"""Words that name files: what they cannot be, before anything is looked for."""

from __future__ import annotations

import os

# bytes of one name of a path, and of a whole one, on the file systems of Linux (limits.h)
NAME, PATH = 255, 4095
UNEXPANDED = "holds '$' or '~', which a recipe does not expand"


def is_unexpanded(word: str) -> bool:
    """Whether a word holds what a shell would replace and a recipe does not."""
    return "$" in word or word.startswith("~")


def longest(word: str) -> int:
    """Return the bytes of the longest name in a path."""
    return max(map(size, word.split("/")))


def size(word: str) -> int:
    """Return the bytes of a word as the file system has it; half a character, which it cannot have, is three."""
    try:
        return len(os.fsencode(word))
    except UnicodeEncodeError:
        return len(word.encode("utf-8", "surrogatepass"))
