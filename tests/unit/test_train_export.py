"""Exports without a model: where tools are found, what is compared, what a failure leaves, and llama.cpp's protocol."""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from strix_train import scorer
from strix_train.errors import InputError, TrainError
from strix_train.export import merge, probes, tools, work
from strix_train.export.probes import Comparison, Probe, Reply, compare
from strix_train.export.server import serving
from strix_train.export.work import Wish, default_target, export
from strix_train.generate import Source, find_source
from strix_train.names import ModelName
from strix_train.recipe.load import load
from strix_train.recipe.schema import Question
from strix_train.refusals import refusals


def question(prompt: str, expect: str = "") -> Question:
    return Question.model_construct(prompt=prompt, expect=expect, system=None)


def probe(answer: str = "It is here.", expect: str = "", sureness: float = -0.5) -> Probe:
    return Probe(question("Where?", expect), "Where?", (1, 2, 3), (7, 6), (sureness, -0.1), answer)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "r-1"
    (folder / "adapter").mkdir(parents=True)
    model = tmp_path / "base"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (folder / "recipe.resolved.yaml").write_text(f"model: {model}\n")
    config = {"r": 8, "base_model_name_or_path": "/somewhere/of/mine/base"}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "adapter" / "tokenizer.json").write_text("{}")
    (folder / "adapter" / "training_args.bin").write_text("no business of anybody's")
    return folder


def test_a_run_a_checkpoint_and_an_adapter_can_be_named(run: Path) -> None:
    assert find_source(str(run)).adapter == run / "adapter"
    assert find_source(str(run)).run == run
    checkpoint = run / "checkpoints" / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    (checkpoint / "adapter_config.json").write_text("{}")
    found = find_source(str(checkpoint))
    assert (found.adapter, found.run, found.base.source) == (checkpoint, run, str(run.parents[1] / "base"))
    (run / "adapter" / "adapter_config.json").unlink()
    with pytest.raises(InputError, match="has no adapter yet, nor a model; finish it with --resume"):
        find_source(str(run))
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    whole = find_source(str(run))
    assert (whole.base.source, whole.adapter) == (str(run / "model"), None)


def test_what_is_made_of_a_checkpoint_has_its_name(run: Path) -> None:
    """Beside the result's own export, in whose place it would be taken for it."""
    whole = run / "checkpoints" / "checkpoint-5"
    half = run / "checkpoints" / "checkpoint-9"
    for folder, file in ((whole, "config.json"), (half, "adapter_config.json"), (run / "model", "config.json")):
        folder.mkdir(parents=True)
        (folder / file).write_text("{}")
    for word, part in ((run, ""), (run / "adapter", ""), (run / "model", ""), (whole, whole.name), (half, half.name)):
        source = find_source(str(word))
        assert source.part == part
        assert default_target(source, "gguf", "f16") == run / "export" / (f"{part}-gguf-f16" if part else "gguf-f16")
        assert default_target(source, "merged", "f16") == run / "export" / (f"{part}-merged" if part else "merged")


def test_an_adapter_is_sent_away_without_paths_of_ours(run: Path) -> None:
    source = find_source(str(run))
    made = export(Wish(source, "adapter", "q8_0", default_target(source, "adapter", "q8_0")), lambda text: None)
    assert made.folder == run / "export" / "adapter"
    assert sorted(made.files) == ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"]
    config = json.loads((made.folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == source.base.word
    facts = json.loads((made.folder / "export.json").read_text())
    assert facts["files"]["adapter_model.safetensors"]["size"] == 7
    assert len(facts["files"]["adapter_model.safetensors"]["sha256"]) == 64
    with pytest.raises(InputError, match="exists; remove it, or name another folder with --to"):
        export(Wish(source, "adapter", "q8_0", made.folder), lambda text: None)


def test_a_failure_leaves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(work.shutil, "copyfile", fail)
    source = find_source(str(run))
    with pytest.raises(OSError, match="No space"):
        export(Wish(source, "adapter", "q8_0", run / "export" / "x"), lambda text: None)
    assert list((run / "export").iterdir()) == []


def weights_file(path: Path, count: int, kind: str = "F32") -> None:
    """Write the header of a safetensors file."""
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": kind, "shape": [count // 4, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def test_a_model_trained_whole_is_written_as_the_one_it_was_made_from(run: Path) -> None:
    base = run.parents[1] / "base"
    (base / "config.json").write_text('{"model_type": "llama", "dtype": "bfloat16"}')
    (run / "adapter" / "adapter_config.json").unlink()
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text('{"dtype": "float32"}')
    weights_file(run / "model" / "model.safetensors", 4000)
    source = find_source(str(run))
    assert merge.format_of(source) == "bfloat16"
    assert merge.size_of(source) == (4000, 8000)
    (base / "config.json").unlink()  # gone, as may be
    assert merge.format_of(source) == "float32"
    assert merge.size_of(source) == (4000, 16000)


def test_the_room_of_an_export_is_counted_in_weights(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = run.parents[1] / "base"
    (base / "config.json").write_text('{"model_type": "llama", "dtype": "float32"}')
    weights_file(base / "model.safetensors", 2**30)
    (base / "other.safetensors").write_bytes(b"x" * 5000)  # a broken one is its reader's to tell
    source = find_source(str(run))
    assert merge.size_of(source) == (2**30, 2**32)
    weights_file(base / "other.safetensors", 2**20, "U8")  # 4 bits each
    assert merge.size_of(source)[0] == 2**30 + 2**21
    (base / "other.safetensors").unlink()
    monkeypatch.setattr(work.shutil, "disk_usage", lambda path: type("U", (), {"free": 2**20}))
    for kind, quant, needed in (
        ("merged", "f16", "4.00"),
        ("gguf", "f16", "6.00"),
        ("gguf", "q8_0", "5.06"),
        ("gguf", "q4_k_m", "6.61"),
    ):
        with pytest.raises(TrainError, match=re.escape(f"the export needs about {needed} GiB")):
            export(Wish(source, kind, quant, run / "a"), lambda text: None)  # type: ignore[arg-type]


def test_what_cannot_be_made_is_said_first(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(ModelName("m", str(run.parents[1] / "base"), True), None, run)
    with pytest.raises(InputError, match="there is no adapter; write --as merged"):
        export(Wish(source, "adapter", "q8_0", run / "a"), lambda text: None)
    weights_file(run.parents[1] / "base" / "model.safetensors", 4000)
    monkeypatch.setattr(work.shutil, "disk_usage", lambda path: type("U", (), {"free": 10_000}))
    with pytest.raises(TrainError, match=r"GiB left and the export needs about 0\.00 GiB while it is made; make"):
        export(Wish(source, "gguf", "q8_0", run / "a"), lambda text: None)
    assert not (run / "a").exists()


def test_a_reward_model_is_told_by_its_run_its_adapter_or_its_own_kind(run: Path) -> None:
    base = run.parents[1] / "base"
    source = find_source(str(run))
    assert not scorer.is_scorer(source)
    for file, text in (
        (run / "recipe.resolved.yaml", f"model: {base}\nmethod: {{kind: reward, center: 0.0}}\n"),
        (run / "recipe.resolved.yaml", f"model: {base}\nmethod: reward\n"),
        (run / "adapter" / "adapter_config.json", '{"task_type": "SEQ_CLS"}'),
        (base / "config.json", '{"architectures": ["LlamaForSequenceClassification"]}'),
    ):
        kept = file.read_text()
        file.write_text(text)
        assert scorer.is_scorer(source)
        with pytest.raises(
            InputError, match=r"is a reward model, .* so there is no export of it as gguf; load it with"
        ):
            export(Wish(source, "gguf", "q8_0", run / "a"), lambda text: None)
        file.write_text(kept)
    assert not (run / "a").exists()


def test_tools_are_found_and_never_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(tools, "_PLACES", (str(tmp_path / "none"),))
    with pytest.raises(InputError, match=r"no convert_hf_to_gguf\.py here, .*; use an image with the layer export, or"):
        tools.find("q8_0")
    (tmp_path / "convert_hf_to_gguf.py").touch()
    monkeypatch.setenv("STRIX_LLAMA_CPP", str(tmp_path))
    assert tools.find("q8_0") == tools.Tools(tmp_path, None, None)
    with pytest.raises(InputError, match="there is no llama-quantize here, which q4_k_m needs; take --quant q8_0"):
        tools.find("q4_k_m")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "llama-quantize"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert tools.find("q4_k_m").quantize == program


def test_a_converter_that_fails_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "convert_hf_to_gguf.py").write_text(
        "import os, sys\nprint(os.environ['PYTHONPATH'].split(':')[1][-7:])\n"
        "raise NotImplementedError('Architecture XForCausalLM not supported!')"
    )
    with pytest.raises(TrainError, match=r"converter failed: NotImplementedError: Architecture XForCausalLM not supp"):
        tools.convert(tools.Tools(tmp_path, None, None), tmp_path, tmp_path / "x.gguf", "f16")
    assert "gguf-py" in capfd.readouterr().err


def test_comparing_is_about_numbers() -> None:
    same = compare(
        [probe(), probe(expect="here")],
        [Reply((-0.5, None), "It is  here."), Reply((-0.6, -0.1), "It is here.")],
    )
    assert same == Comparison(pytest.approx(0.1 / 3), 2, 2, 1, 1)
    assert str(same) == "2 of 2 answers are the model's own, log-probabilities differ by 0.033, 1 of 1 questions right"
    probes.check("x.gguf", "q8_0", same)
    other = compare([probe(expect="here")], [Reply((-7.5,), "Nowhere.")])
    assert (other.alike, other.right) == (0, 0)
    with pytest.raises(
        TrainError, match=r"x\.gguf does not answer like the trained model, so it was not kept: .* 7\.00"
    ):
        probes.check("x.gguf", "q4_k_m", other)
    assert compare([probe()], [Reply((math.nan,), "")]).distance == math.inf
    assert compare([probe()], [Reply((None,), "")]).distance == math.inf


def test_what_a_run_asked_is_asked_again(run: Path) -> None:
    assert [each.prompt for each in probes.questions_of(run, run)] == [
        "Once upon a time",
        "The capital of France is",
        "1 2 3 4 5",
    ]
    line = {"prompt": "Where?", "expect": "here", "system": "Be brief.", "answer": "x"}
    text = "".join(json.dumps({**line, "phase": phase}) + "\n" for phase in ("before", "after"))
    (run / "answers.jsonl").write_text(text)
    (found,) = probes.questions_of(run, run / "adapter")
    assert (found.prompt, found.expect, found.system) == ("Where?", "here", "Be brief.")


SERVER = """
    import json, sys
    from http.server import BaseHTTPRequestHandler, HTTPServer
    words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    if "broken" in words["--model"]:
        print("llama_model_load: error loading model: invalid magic characters")
        sys.exit(1)
    class Handler(BaseHTTPRequestHandler):
        def answer(self, value):
            data = json.dumps(value).encode()
            self.send_response(200); self.end_headers(); self.wfile.write(data)
        def do_GET(self):
            self.answer({"status": "ok"})
        def do_POST(self):
            wish = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                self.answer({"tokens": [1, 2, len(wish["content"])]})
            elif self.path == "/apply-template":
                self.answer({"prompt": "<" + wish["messages"][0]["content"] + ">"})
            else:
                listed = [{"id": 5, "logprob": -0.2}, {"id": 7, "logprob": -1.75}, {"id": 8, "logprob": -9.0}]
                value = {"content": " so ", "tokens": [5, 6, 8]}
                said = [{"id": 5, "top_logprobs": listed}, {"id": 8, "top_logprobs": listed}]
                self.answer(value | {"completion_probabilities": said if wish["prompt"] != [8] else []})
        def log_message(self, *args): pass
    HTTPServer(("127.0.0.1", int(words["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(SERVER))
    path.chmod(0o755)
    return path


def test_the_server_is_asked_for_the_same_token(program: Path, tmp_path: Path) -> None:
    with serving(program, tmp_path / "m.gguf") as server:
        assert server.tokens("abc") == [1, 2, 3]
        assert server.rendered([{"role": "user", "content": "x"}]) == "<x>"

        def sure(*said: int, prompt: int = 1) -> tuple[float | None, ...]:
            asked = Probe(question("?"), "?", (prompt,), said, (-0.1,) * len(said), "x")
            reply = server.reply(asked)
            assert reply.answer == "so"
            return reply.sureness

        # 6 is a part of a letter: nothing is listed for it
        assert sure(5, 6, 8) == (-0.2, None, -9.0)
        assert sure(5, 7, 8) == (-0.2, -20.0)
        assert sure(7, 6, 8) == (-1.75,)
        assert sure(4) == (-20.0,)
        assert sure(5, prompt=8) == (None,)
    with pytest.raises(TrainError, match="does not answer /health"):
        server.call("/health", timeout=1)


def test_a_file_that_llama_does_not_load(program: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    sentence = r"does not load broken\.gguf: llama_model_load: error loading model: invalid"
    with pytest.raises(TrainError, match=sentence), serving(program, broken):
        pass


def test_no_server_outlives_a_failure(program: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), serving(program, tmp_path / "m.gguf"):
        raise RuntimeError
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(program).encode() in line for line in lines)


@pytest.mark.parametrize("wish", ["[adapter, merged]", "{to: adapter}", "adapter"])
def test_an_adapter_is_not_wished_of_a_model_that_is_trained_whole(tmp_path: Path, wish: str) -> None:
    """It would be refused after the training."""
    recipe = tmp_path / "r.yaml"
    text = "model: m\ndata: d.jsonl\nschedule: {steps: 1}\nadapter: {kind: KIND}\nexport: "
    recipe.write_text(text.replace("KIND", "full") + wish + "\n")
    (found,) = refusals(load(recipe, []))
    assert str(found).endswith(
        "r.yaml:5:1: adapter full trains every weight of the model, so that there is no adapter to export; "
        "write merged in place of adapter"
    )
    recipe.write_text(text.replace("KIND", "full") + "merged\n")
    assert refusals(load(recipe, [])) == []
    recipe.write_text(text.replace("KIND", "dora") + wish + "\n")
    assert refusals(load(recipe, [])) == []
