"""Recipes of `train`: what is read, and the sentence for everything that is not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_train.errors import InputError
from strix_train.recipe import jsonschema, places
from strix_train.recipe.adapter import Full, LowRank
from strix_train.recipe.load import check, load
from strix_train.recipe.method import Grpo
from strix_train.recipe.names import known_keys
from strix_train.recipe.places import Located
from strix_train.recipe.renamed import ADVICE, RENAMED, VALUES
from strix_train.recipe.schema import Recipe

ROOT = Path(__file__).resolve().parents[2]
GOOD = "model: m\ndata: rows.jsonl\nschedule: {steps: 3}\n"


def read(tmp_path: Path, text: str, *settings: str) -> Recipe:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    return load(path, settings).recipe


def sentences(tmp_path: Path, text: str, *settings: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, *settings)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]


def test_a_short_recipe_has_spelt_out_defaults(tmp_path: Path) -> None:
    recipe = read(tmp_path, GOOD)
    assert [source.path for source in recipe.data.train] == ["rows.jsonl"]
    assert recipe.data.format == "auto"
    assert recipe.adapter.r == 16
    assert recipe.adapter.targets == "all-linear"
    assert recipe.schedule.steps == 3
    assert recipe.schedule.epochs is None
    assert recipe.backend == "auto"
    assert recipe.responses_only is True
    assert recipe.questions is None


@pytest.mark.parametrize(
    ("written", "value"),
    [("5e-5", 5e-5), ("1E-3", 1e-3), ("0.0002", 2e-4), (".5", 0.5), ("1.e-4", 1e-4), ("1", 1.0), ("2.5e-1", 0.25)],
)
def test_numbers_are_numbers(tmp_path: Path, written: str, value: float) -> None:
    recipe = read(tmp_path, f"model: m\ndata: r\nschedule: {{steps: 1_000, learning_rate: {written}}}\n")
    assert recipe.schedule.learning_rate == value
    assert recipe.schedule.steps == 1000


@given(st.floats(min_value=1e-12, max_value=1.0, exclude_min=True))
def test_any_number_reads_as_python_writes_it(number: float) -> None:
    assert places.parse(f"a: {number!r}", "x").value == {"a": number}
    assert places.parse(f"a: {number:e}", "x").value["a"] == pytest.approx(number, rel=1e-5)


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "010x", "1:30", "0x1F", "1.2.3", "e5", "2026-11-30", "+"])
def test_words_stay_words(word: str) -> None:
    assert places.parse(f"[{word} ]", "x").value == [word]


def test_special_values() -> None:
    value = places.parse("{a: null, b: ~, c: , d: true, e: False, f: .nan, g: -.inf, h: 'true', i: \"5\"}", "x").value
    assert value["a"] is value["b"] is value["c"] is None
    assert (value["d"], value["e"], value["h"], value["i"]) == (True, False, "true", "5")
    assert math.isnan(value["f"])
    assert value["g"] == -math.inf


CASES = [
    ("modle: m\n" + GOOD, "r.yaml:1:1: unknown key 'modle'; did you mean 'model'?"),
    (GOOD + "max_seq_length: 5\n", "r.yaml:4:1: unknown key 'max_seq_length'; it is called 'schedule.max_length' here"),
    (GOOD + "lora_r: 5\n", "r.yaml:4:1: unknown key 'lora_r'; it is called 'adapter.r' here"),
    (
        GOOD + "learning_rate: 1\n",
        "r.yaml:4:1: unknown key 'learning_rate'; it belongs in another section: 'schedule.learning_rate'",
    ),
    (GOOD + "adapter: {rnak: 5}\n", "r.yaml:4:11: unknown key 'rnak'; did you mean 'adapter.r'?"),
    (GOOD + "backend: unslot\n", "r.yaml:4:1: 'backend' is 'unslot'; it may be auto, unsloth or hf"),
    (
        GOOD + "responses_only: yes\n",
        "r.yaml:4:1: 'responses_only' is 'yes'; it must be true or false, written true or false",
    ),
    (GOOD + "adapter: {r: 0}\n", "r.yaml:4:11: 'adapter.r' is 0; it must be greater than or equal to 1"),
    (GOOD + "adapter: {r: 4.5}\n", "r.yaml:4:11: 'adapter.r' is 4.5; it must be a whole number"),
    (
        GOOD + "adapter: {targets: []}\n",
        (
            "r.yaml:4:11: adapter.targets: is neither all-linear nor a list of module names; "
            "write all-linear, or [q_proj, v_proj]"
        ),
    ),
    (GOOD + "questions: [{prompt: a, expect: 4}]\n", "r.yaml:4:25: 'questions[1].expect' is 4; it must be a text"),
    (GOOD + "questions: []\n", "r.yaml:4:1: 'questions' is an empty list; write at least one entry or remove the key"),
    (
        GOOD + "questions: {max_new_tokens: 4}\n",
        "r.yaml:4:1: questions: exactly one of 'ask' and 'file' is needed; keep one",
    ),
    (GOOD + "model: other\n", "r.yaml:4:1: key 'model' is given twice; remove one of the two"),
    (
        "model: m\ndata: r\nschedule: {steps: 1, epochs: 2}\n",
        "r.yaml:3:1: schedule: both 'steps' and 'epochs' are given; give exactly one of them",
    ),
    (
        "model: m\ndata: r\nschedule: {batch: 2}\n",
        "r.yaml:3:1: schedule: neither 'steps' nor 'epochs' is given; give exactly one of them",
    ),
    (
        "model: m\ndata: r\nschedule: {steps: 1, learning_rate: .nan}\n",
        "r.yaml:3:22: 'schedule.learning_rate' is nan; it must be a finite number",
    ),
    ("model: ''\ndata: r\nschedule: {steps: 1}\n", "r.yaml:1:1: 'model' is empty; write a value or remove the key"),
    ("model: m\nschedule: {steps: 1}\n", "r.yaml: 'data' is missing; a recipe needs it"),
    (
        "model: m\ndata:\nschedule: {steps: 1}\n",
        "r.yaml:2:1: 'data' is nothing; it must be a section with keys of its own",
    ),
    (GOOD + "method: pt\n", "r.yaml:4:1: 'method' is 'pt'; it is called 'cpt' here"),
    (
        GOOD + "method: {kind: sft, beta: 1}\n",
        "r.yaml:4:21: unknown key 'beta'; method sft has no such key: it belongs to dpo, orpo, kto and grpo",
    ),
    (GOOD + "method: {beta: 1}\n", "r.yaml:4:1: 'method.kind' is missing; 'method' needs it"),
    (
        GOOD + "adapter: {kind: full, r: 8}\n",
        (
            "r.yaml:4:23: unknown key 'r'; adapter full has no such key: "
            "it belongs to lora, rslora, dora, qlora and lora8bit"
        ),
    ),
    (GOOD + "load_in_4bit: true\n", "r.yaml:4:1: unknown key 'load_in_4bit'; write adapter: qlora"),
    (
        GOOD + "hf_token: x\n",
        "r.yaml:4:1: unknown key 'hf_token'; a recipe holds no secrets: set HF_TOKEN in the environment",
    ),
    (
        GOOD + "evaluation: {split: 1.5}\n",
        "r.yaml:4:14: evaluation.split: is 1.5, neither a share below 1 nor a whole number of rows; write 0.05, or 200",
    ),
    (
        GOOD.replace("rows.jsonl", "{train: a, eval: b}") + "evaluation: {split: 0.1}\n",
        "r.yaml: both data.eval and evaluation.split name rows for evaluation; keep one of the two",
    ),
    ("", "r.yaml: is empty; `train recipes` lists recipes to start from"),
    ("- a\n", "r.yaml:1: does not hold keys and values; begin with `model: …`"),
    (
        "model: [\n",
        (
            "r.yaml:2:1: is not valid YAML: while parsing a flow node expected the node content, "
            "but found '<stream end>'; close the bracket, and put commas between entries"
        ),
    ),
    (
        "model: a: b\n",
        "r.yaml:1:9: is not valid YAML: mapping values are not allowed here; quote a text that holds ': '",
    ),
    (
        "model:\n\tname: x\n",
        (
            "r.yaml:2:1: is not valid YAML: while scanning for the next token found character '\\t' that "
            "cannot start any token; indent with spaces, not tabs"
        ),
    ),
    ("a: &x [*x]\n", "r.yaml:1:4: repeats itself through aliases without end; write it out"),
    (
        "model: !python/name:os.system m\n",
        "r.yaml:1:8: the YAML tag '!python/name:os.system' has no meaning in a recipe; remove it",
    ),
    ("model: m\nseed: !!int abc\n", "r.yaml:2:7: 'abc' is no number; remove the tag"),
    ("model: m\nseed: !!int 0x10\n", "r.yaml:2:7: '0x10' is no number; remove the tag"),
    ("model: m\nseed: !!float x\n", "r.yaml:2:7: 'x' is no number; remove the tag"),
    ("model: m\nresponses_only: !!bool abc\n", "r.yaml:2:17: 'abc' is neither true nor false; remove the tag"),
    *(
        (
            text.replace("LONG", "x" * 300),
            f"{key}: a name of 300 bytes is that of no file; write a path, and put what it holds there",
        )
        for text, key in (
            ("model: LONG\ndata: r\n", "r.yaml:1:1: model"),
            ("model: m\ndata: LONG\n", "r.yaml:2:1: data"),
            ("model: m\ndata: [a, {path: dir/LONG}]\n", "r.yaml:2:12: data[2].path"),
            ("model: m\ndata: {train: a, template: LONG}\n", "r.yaml:2:18: data.template"),
            ("model: m\ndata: r\nquestions: LONG\n", "r.yaml:3:1: questions"),
            ("model: m\ndata: r\noutput: LONG\n", "r.yaml:3:1: output"),
        )
    ),
    ("model: m\ndata: r\noutput: ~/runs\n", "r.yaml:3:1: output: holds '$' or '~', which a recipe does not expand"),
    ("model: m\ndata: r\noutput: $HOME/r\n", "r.yaml:3:1: output: holds '$' or '~', which a recipe does not expand"),
]


@pytest.mark.parametrize(("text", "sentence"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_one_sentence_with_place_and_cure(tmp_path: Path, text: str, sentence: str) -> None:
    assert any(found.startswith(sentence) for found in sentences(tmp_path, text))


def test_all_faults_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = sentences(tmp_path, "bakcend: hf\nmodel: 5\ndata: r\nschedule: {steps: -1, batch: x}\n")
    assert [line.split(": ")[0] for line in found] == ["r.yaml:1:1", "r.yaml:2:1", "r.yaml:4:12", "r.yaml:4:23"]


def test_a_recipe_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"model: m\n# gr\xfc\xdfe\n")
    with pytest.raises(InputError, match=r"r.yaml:2:5: byte 0xfc is not UTF-8; save the file as UTF-8"):
        load(path)


def test_a_recipe_that_is_huge(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(InputError, match="larger than 1 MiB"):
        load(path)


def test_aliases_cannot_blow_up() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
    )
    with pytest.raises(InputError, match="without end"):
        places.parse(bomb, "x")


def test_set_goes_over_the_file(tmp_path: Path) -> None:
    recipe = read(
        tmp_path, GOOD, "schedule.learning_rate=5e-5", "backend=hf", "data.eval=e.jsonl", "adapter.targets=[q_proj]"
    )
    assert recipe.schedule.learning_rate == 5e-5
    assert recipe.backend == "hf"
    assert [source.path for source in [*recipe.data.train, *(recipe.data.eval or [])]] == ["rows.jsonl", "e.jsonl"]
    assert recipe.adapter.targets == ["q_proj"]


def test_set_spells_shorthands_out(tmp_path: Path) -> None:
    recipe = read(tmp_path, "model: m\ndata: [a.jsonl, b.jsonl]\nschedule: {steps: 1}\n", "data.packing=true")
    assert [source.path for source in recipe.data.train] == ["a.jsonl", "b.jsonl"]
    assert recipe.data.packing is True
    text = "model: m\ndata: a.jsonl\nschedule: {steps: 1}\nmethod: {kind: grpo, rewards: [number, match]}\n"
    method = read(tmp_path, text, "method.rewards[1].weight=2").method
    assert isinstance(method, Grpo)
    assert [(each.kind, each.weight) for each in method.rewards] == [("number", 2.0), ("match", 1.0)]
    exported = read(tmp_path, f"{GOOD}export: [adapter, gguf]\n", "export.quantization=q8_0").export
    assert exported is not None
    assert (exported.to, exported.quantization) == (["adapter", "gguf"], "q8_0")


def test_set_replaces_a_whole_section_and_can_unset(tmp_path: Path) -> None:
    recipe = read(tmp_path, GOOD, "schedule.steps=null", "schedule.epochs=2")
    assert (recipe.schedule.steps, recipe.schedule.epochs) == (None, 2.0)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("schedule.stepz=3", "--set schedule.stepz=3: unknown key 'stepz'; did you mean 'schedule.steps'?"),
        ("schedule.steps=x", "--set schedule.steps=x: 'schedule.steps' is 'x'; it must be a whole number"),
        ("steps", "--set steps: is not KEY=VALUE; for example --set schedule.steps=100"),
        (".=3", "--set .=3: is not KEY=VALUE; for example --set schedule.steps=100"),
        ("model=[", "--set model=[: the value is not valid YAML; close the bracket, and put commas between entries"),
        (
            "data.train[3].weight=1",
            "--set data.train[3].weight=1: 'data.train' has 1 entries; entries are counted from 1",
        ),
        ("schedule[1]=1", "--set schedule[1]=1: 'schedule' is not a list here; entries are counted from 1"),
    ],
)
def test_a_bad_set_names_itself(tmp_path: Path, setting: str, sentence: str) -> None:
    assert sentences(tmp_path, GOOD, setting) == [sentence]


def test_every_renamed_key_leads_to_a_real_one() -> None:
    assert set(RENAMED.values()) <= set(known_keys())
    top = {key for key in known_keys() if "." not in key}
    assert not {*RENAMED, *ADVICE} & top
    assert not set(RENAMED) & set(ADVICE)
    assert set(VALUES) <= {"method", *known_keys()}


def test_the_published_schema_is_the_one_in_use() -> None:
    """docs/recipe.schema.json is written by `train schema`."""
    assert json.loads((ROOT / "docs" / "recipe.schema.json").read_text()) == jsonschema.schema()


def test_the_schema_takes_what_people_write() -> None:
    """Editors must accept every shorthand that `train` accepts."""
    found = jsonschema.schema()
    kinds = {
        key: _kinds(found, found["properties"][key]) for key in ("data", "method", "adapter", "questions", "export")
    }
    assert kinds == {
        "data": {"string", "array", "object"},
        "method": {"string", "object"},
        "adapter": {"string", "object"},
        "questions": {"string", "array", "object", "null"},
        "export": {"string", "array", "object", "null"},
    }
    assert set(found["required"]) == {"model", "data", "schedule"}
    assert found["additionalProperties"] is False
    assert found["$defs"]["Schedule"]["properties"]["learning_rate"]["type"] == "number"


def _kinds(schema: dict[str, Any], value: dict[str, Any]) -> set[str]:
    if "$ref" in value:
        return _kinds(schema, schema["$defs"][value["$ref"].rsplit("/", 1)[-1]])
    parts = value.get("anyOf") or value.get("oneOf") or []
    return {value["type"]} if "type" in value else {kind for part in parts for kind in _kinds(schema, part)}


def test_sets_of_rows_in_every_way(tmp_path: Path) -> None:
    for written in ("[a.jsonl, {path: b.csv, weight: 0.5}]", "{train: [a.jsonl, {path: b.csv, weight: 0.5}]}"):
        recipe = read(tmp_path, f"model: m\ndata: {written}\nschedule: {{steps: 1}}\n")
        assert [(source.path, source.weight) for source in recipe.data.train] == [("a.jsonl", 1.0), ("b.csv", 0.5)]


def test_methods_and_adapters_in_every_way(tmp_path: Path) -> None:
    for written in ("dpo", "{kind: dpo}", "{kind: dpo, beta: 0.1}"):
        assert read(tmp_path, f"{GOOD}method: {written}\n") == read(tmp_path, f"{GOOD}method: dpo\n")
    assert read(tmp_path, f"{GOOD}adapter: full\n").adapter == Full(kind="full")
    assert read(tmp_path, f"{GOOD}adapter: {{r: 4}}\n").adapter == LowRank(kind="lora", r=4)
    assert read(tmp_path, f"{GOOD}method: {{kind: grpo, rewards: match}}\n").method.kind == "grpo"


def test_set_reaches_into_lists(tmp_path: Path) -> None:
    text = "model: m\ndata: [a.jsonl, b.jsonl]\nschedule: {steps: 1}\n"
    recipe = read(tmp_path, text.replace("[a", "{train: [a").replace("jsonl]", "jsonl]}"), "data.train[2].weight=0.5")
    assert [source.weight for source in recipe.data.train] == [1.0, 0.5]
    assert read(tmp_path, GOOD, "data.train[1].weight=2").data.train[0].weight == 2.0
    assert (
        read(tmp_path, GOOD, "method.kind=dpo", "method.beta=5e-2").method
        == read(tmp_path, GOOD + "method: {kind: dpo, beta: 0.05}\n").method
    )


def test_the_resolved_recipe_reads_back(tmp_path: Path) -> None:
    import yaml

    recipe = read(tmp_path, GOOD + "questions: [{prompt: a, expect: b}]\n", "schedule.learning_rate=3e-5")
    text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)
    assert read(tmp_path, text) == recipe


def refusal(work: Callable[[], object]) -> list[str]:
    """Return the sentences of an InputError, or none; any other exception fails the test."""
    try:
        work()
    except InputError as error:
        return [str(problem) for problem in error.problems]
    return []


_KEYS = st.sampled_from([*{key.rsplit(".", 1)[-1] for key in known_keys()}, "modle", "lora_r", "", "x.y"])
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(_KEYS, _VALUES, max_size=8))
def test_no_document_gets_past_with_a_traceback(value: dict[str, Any]) -> None:
    assert all(line.startswith("/r.yaml") for line in refusal(lambda: check(Path("/r.yaml"), Located(value))))


@given(st.text(max_size=200))
def test_no_text_gets_past_with_a_traceback(text: str) -> None:
    found = refusal(lambda: check(Path("/r.yaml"), places.parse(text, "/r.yaml")))
    assert all(line.startswith("/r.yaml") for line in found)
