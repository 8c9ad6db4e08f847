"""Malformed recipes and sets of rows, made from good ones: every one must be refused with one sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from strix_train.recipe.names import known_keys
from strix_train.recipe.renamed import ADVICE, RENAMED

HALF = "half \ud83d"
# What is no text with words in it, whatever the key.
NO_TEXT: tuple[Any, ...] = (None, 5, 2.5, True, "", " \n", [], {}, [1], [None], HALF)
NO_ROLE: tuple[Any, ...] = (None, 5, "", "usr", "Assistent", [], {}, "ASSISTANT")

USER, ANSWER = {"role": "user", "content": "Who? é"}, {"role": "assistant", "content": "Me."}
# A good row of each format, its method, and the paths of its parts: texts, roles, others with what they may not be.
GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("sft", {"messages": [USER, ANSWER]}),
    "sharegpt": ("sft", {"conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Me."}]}),
    "prompt-completion": ("sft", {"prompt": "Who? é", "completion": "Me."}),
    "prompt-completion as messages": ("sft", {"prompt": [USER], "completion": [ANSWER]}),
    "alpaca": ("sft", {"instruction": "Who?", "output": "Me."}),
    "text": ("cpt", {"text": "Once there was é."}),
    "preference": ("dpo", {"prompt": "Who?", "chosen": "Me.", "rejected": "You."}),
    "preference as messages": ("dpo", {"prompt": [USER], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "x"}]}),
    "whole conversations": ("reward", {"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "x"}]}),
    "rated": ("kto", {"prompt": "Who?", "completion": "Me.", "label": True}),
    "prompts": ("grpo", {"prompt": "2 + 2?", "answer": "4"}),
}
METHODS = {"grpo": "{kind: grpo, rewards: [match]}"}
Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class Case:
    """One malformed set: its method, its file, and how it came about."""

    name: str
    method: str
    file: str
    content: bytes


def _leaves(value: Any, above: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if isinstance(inner, (dict, list)):
            yield from _leaves(inner, (*above, key))
        else:
            yield (*above, key), inner


def _with(value: Any, path: Path_, new: Any) -> Any:
    made = copy.deepcopy(value)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return made


def _without(value: Any, path: Path_) -> Any:
    made = copy.deepcopy(value)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return made


def _wrong_values(path: Path_) -> tuple[Any, ...]:
    if path[-1] in ("role", "from"):
        return NO_ROLE
    if path[-1] == "label":
        return (None, 5, "maybe", [], {}, "")
    if path[-1] == "answer":
        return (None, "", " ", [], {}, True)
    return NO_TEXT


def bad_rows(name: str) -> Iterator[tuple[str, Any]]:
    """Yield (what was done, row) for a format: each part missing or of a wrong kind, turns lost or out of order."""
    _, good = GOOD[name]
    for path, _ in _leaves(good):
        where = ".".join(map(str, path))
        yield f"{where} missing", _without(good, path)
        for wrong in _wrong_values(path):
            yield f"{where} is {wrong!r}", _with(good, path, wrong)
    for key, value in good.items():
        if isinstance(value, list):
            for wrong in (None, 5, "x" if key in ("messages", "conversations") else True, [], {}, [[]]):
                yield f"{key} is {wrong!r}", {**good, key: wrong}
            if len(value) > 1:
                yield f"{key} reversed", {**good, key: value[::-1]}
                yield f"{key} without its end", {**good, key: value[:-1]}
            yield f"{key} twice its last", {**good, key: [*value, value[-1]]}
    for other, (method, row) in GOOD.items():
        if method != GOOD[name][0] and not (name.startswith(("pref", "whole")) and other.startswith(("pref", "whole"))):
            yield f"a row of {other}", row


def broken_lines(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield (what was done, bytes of one line) for a format: text that is not one JSON object in UTF-8."""
    _, good = GOOD[name]
    line = json.dumps(good, ensure_ascii=False)
    raw = line.encode()
    yield "cut in half", raw[: len(raw) // 2]
    yield "without its end", raw[:-1]
    yield "a comma before its end", raw[:-1] + b",}"
    yield "single quotes", line.replace('"', "'").encode()
    yield "two rows", raw + b" " + raw
    yield "a comma behind", raw + b","
    yield "a list", b"[" + raw + b"]"
    yield "a list of lists", b"[[1], [2]]"
    yield "a text", json.dumps(line).encode()
    yield "a number", b"17"
    yield "null", b"null"
    yield "NaN", raw[:-1] + b', "x": NaN}'
    yield "Python's None", raw[:-1] + b', "x": None}'
    yield "a comment", b"// " + raw
    yield "Latin-1", line.replace("}", ', "x": "\xe9"}', 1).encode("latin-1")
    yield "a raw line break's half", raw.replace(b'": "', b'": "\x01', 1) if b'": "' in raw else b"\x01"
    yield "a lone backslash", raw.replace(b'": "', b'": "\\x', 1)
    yield "nested without end", b'{"a":' * 5000
    yield "zeros", b"\0\0\0\0"
    yield "an empty object", b"{}"


def last(name: str) -> Any:
    """The good row that ends every set of a format: of marked rows it is one that is marked bad."""
    good = GOOD[name][1]
    return {**good, "label": False} if name == "rated" else good


def data_cases() -> Iterator[Case]:
    """Yield every malformed set: JSON Lines with one bad row among good ones, lists, tables, and whole files."""
    for name, (method, good) in GOOD.items():
        line, end = json.dumps(good).encode(), json.dumps(last(name)).encode()
        for index, (what, row) in enumerate(bad_rows(name)):
            bad = json.dumps(row).encode()
            before = [line] * (index % 3)
            yield Case(f"{name}: {what}", method, "d.jsonl", b"\n".join([*before, bad, line, end]))
            if index % 4 == 0:
                listed = b"[" + b",\n".join([*before, bad, line, end]) + b"]"
                yield Case(f"{name} in a list: {what}", method, "d.json", listed)
        for index, (what, raw) in enumerate(broken_lines(name)):
            before = [line] * (1 + index % 2)
            yield Case(f"{name}: {what}", method, "d.jsonl", b"\n".join([*before, raw, line, end]))
    yield from _files()


def _files() -> Iterator[Case]:
    line = json.dumps(GOOD["messages"][1]).encode()
    pair = b'"Who?","Me."\n'
    for name, content in {
        "empty.jsonl": b"",
        "spaces.jsonl": b" \n\n",
        "utf16.jsonl": json.dumps(GOOD["messages"][1]).encode("utf-16"),
        "list.jsonl": b"[" + line + b"]",
        "lines.jsonl": b"[\n" + line + b"\n]",
        "wrapped.jsonl": b'{"train": [' + line + b"]}",
        "empty.json": b"",
        "nothing.json": b"[]",
        "comma.json": b"[" + line + b",]",
        "commas.json": b"[" + line + b",," + line + b"]",
        "nocomma.json": b"[" + line + b" " + line + b"]",
        "open.json": b"[" + line,
        "closed.json": b"[" + line + b"]]",
        "one.json": json.dumps(GOOD["messages"][1], indent=1).encode(),
        "columns.json": b'{"data": [' + line + b"]}",
        "text.json": b'"x"',
        "empty.csv": b"",
        "header.csv": b"prompt,completion\n",
        "short.csv": b"prompt,completion\n" + pair + b'"Who?"\n',
        "long.csv": b"prompt,completion\n" + pair + b'"Who?","Me.","You."\n',
        "quote.csv": b"prompt,completion\n" + pair + b'"Who?","Me.\n',
        "quotes.csv": b"prompt,completion\n" + pair + b'"Who?","Me."x\n',
        "twice.csv": b"prompt,prompt\n" + pair,
        "nameless.csv": b"prompt,\n" + pair,
        "cell.csv": b"prompt,completion\n" + pair + b'"Who?",""\n',
        "latin.csv": b"prompt,completion\n" + pair + b'"caf\xe9","Me."\n',
        "other.csv": b"frage,antwort\n" + pair,
        "semicolon.csv": b"prompt;completion\nWho?;Me.\n",
        "tabs.tsv": b"prompt\tcompletion\nWho?\n",
        "notes.txt": b"Once there was.\n",
        "rows.xlsx": b"PK",
        "rows": line,
        "rows.jsonl.gz": line,
        "rows.parquet": line,
    }.items():
        yield Case(f"the file {name}", "sft", name, content)


RECIPE: dict[str, Any] = {
    "model": "m",
    "data": {"train": "good.jsonl", "format": "auto"},
    "method": {"kind": "sft"},
    "adapter": {"kind": "lora", "r": 8, "alpha": 16, "dropout": 0.1, "targets": "all-linear"},
    "schedule": {"steps": 3, "batch": 1, "learning_rate": 1e-4, "scheduler": "linear", "seed": 1},
    "evaluation": {"split": 1},
    "checkpoints": {"every": 5, "keep": 1},
    "precision": "bf16",
}
# For keys of the recipe above: what they may not be.
WRONG: dict[str, tuple[Any, ...]] = {
    "model": (None, 5, "", [], {}, True, "$HOME/m", "~/m", "nope", "a/b/c", "good.jsonl"),
    "data": (None, 5, True, [], {}, [5], [{"pth": "x"}], {"train": {}}),
    "data.train": (None, 5, "", "nope.jsonl", ".", "$X.jsonl", "x.xlsx", {"path": "good.jsonl", "weight": 0}),
    "data.format": ("chatml", "auto ", 5, None, "text", "preference"),
    "data.template": ("nope.jinja", "", 5, "chtml"),
    "data.columns": ({"foo": "bar"}, {"prompt": 5}, [], "x"),
    "data.roles": ({"bot": "robot"}, {"": "user"}, 5),
    "data.faulty": ("ignore", True),
    "method": ("dpoo", "rlhf", 5, [], {"beta": 1}, {"kind": "sft", "beta": 0.1}, {"kind": "grpo"}, "pt"),
    "adapter": ("qlor", "none", 5, [], {"kind": "full", "r": 8}, {"kind": "x"}),
    "adapter.r": (0, -1, 4.5, "8", None, [], 10**9, True),
    "adapter.dropout": (1, -0.1, "x", None, float("nan"), float("inf")),
    "adapter.targets": ([], "q_proj", [5], [""], 5),
    "schedule": (None, {}, 5, "x", {"steps": 1, "epochs": 1}),
    "schedule.steps": (0, -5, 1.5, "ten", None, True),
    "schedule.batch": (0, 2.5, "2", None),
    "schedule.learning_rate": (0, -1e-4, 2, "1e-4x", None, float("nan"), float("inf")),
    "schedule.scheduler": ("cosin", 5, None, "polynomial"),
    "schedule.seed": (-1, 2**32, 1.5, "x"),
    "schedule.max_length": (0, 7, "2k"),
    "schedule.warmup": (-1, "10%"),
    "evaluation.split": (0, -1, 1.5, "10%", 5, True),
    "checkpoints.every": (-1, 2.5, "often"),
    "checkpoints.keep": (0, None),
    "precision": ("bf", "float16", 16, None),
    "backend": ("unslot", None, 5),
    "strategy": ("fdsp", "zero", "deepspeed", 5),
    "export": ("ggf", [], 5, {"to": "gguf", "quantization": "q2"}),
    "logging": ({"to": "tensorbord"}, 5, {"to": 5}),
    "responses_only": ("yes", 1, None),
    "questions": ([], {}, [{"prompt": "x"}], "nope.jsonl", {"max_new_tokens": 5}),
    "output": ("", 5, None),
}


def _typo(word: str) -> str:
    return word[:1] + word[2:] if len(word) > 3 else word + "z"


def recipe_cases() -> Iterator[tuple[str, str]]:
    """Yield (what was done, text) of malformed recipes: wrong values, mistyped keys, other front ends' keys."""
    for key, values in WRONG.items():
        for value in values:
            yield f"{key} is {value!r}", yaml.safe_dump(_set(key, value), sort_keys=False)
    for key in known_keys():
        *above, last = key.split(".")
        if len(above) > 1 or _typo(last) in {known.rsplit(".", 1)[-1] for known in known_keys()}:
            continue
        yield f"{key} mistyped", yaml.safe_dump(_set(".".join([*above, _typo(last)]), 1), sort_keys=False)
    for key in (*RENAMED, *ADVICE):
        yield f"{key} of another front end", yaml.safe_dump({**RECIPE, key: 1}, sort_keys=False)
    for key in RECIPE:
        if key in ("model", "data", "schedule"):
            yield f"{key} missing", yaml.safe_dump({name: RECIPE[name] for name in RECIPE if name != key})
    text = yaml.safe_dump(RECIPE, sort_keys=False)
    yield from {
        "empty": "",
        "a list": "- model\n",
        "a word": "train\n",
        "two documents": f"{text}---\n{text}",
        "a tab": text.replace("  ", "\t"),
        "a key twice": f"{text}model: other\n",
        "a colon in a text": "model: a: b\n",
        "not closed": "model: [\n",
        "an alias": "model: *x\n",
        "a tag": text.replace("model: m", "model: !!python/name:os.system m"),
        "a forbidden character": text.replace("model: m", "model: m\x01"),
        "json5": '{"model": "m", // comment\n}',
    }.items()


def _set(key: str, value: Any) -> dict[str, Any]:
    made = copy.deepcopy(RECIPE)
    inner = made
    *above, last = key.split(".")
    for part in above:
        if not isinstance(inner.get(part), dict):
            inner[part] = {}
        inner = inner[part]
    inner[last] = value
    return made
