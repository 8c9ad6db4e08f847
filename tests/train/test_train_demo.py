"""The demo: a real model, made of its GGUF file, learns eight facts and answers questions it has not seen."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from workshop import ROOT, Workshop, metrics, report

from strix_train.errors import InputError
from strix_train.export import tools as finding
from strix_train.export.server import serving

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.fixture(scope="module")
def demo(workshop: Workshop, demo_gguf: Path) -> Path:
    """The demo model's folder, made by `train import`."""
    folder = workshop.path / "models" / "demo"
    done = workshop.train("import", str(demo_gguf), str(folder), "--sha256", SHA256)
    assert done.code == 0, done.err
    assert "134,515,008 parameters" in done.out
    return folder


def test_the_imported_model_is_whole(demo: Path, demo_gguf: Path) -> None:
    facts = json.loads((demo / "import.json").read_text())
    assert facts["sha256"] == SHA256 == hashlib.sha256(demo_gguf.read_bytes()).hexdigest()
    assert (facts["model_type"], facts["dtype"], facts["chat_template"]) == ("llama", "bf16", True)
    assert "quantization_config" not in json.loads((demo / "config.json").read_text())
    assert f"\nFORMAT = {facts['format']}\n" in (ROOT / "src" / "strix_finetune" / "demomodel.py").read_text()
    words = json.loads((demo / "tokenizer_config.json").read_text())
    assert (words["bos_token"], words["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert json.loads((demo / "tokenizer.json").read_text())["model"]["byte_fallback"] is False
    assert not list(demo.parent.glob(".demo*"))
    assert all(path.stat().st_mode & 0o044 for path in demo.iterdir())


def test_what_cannot_be_imported_leaves_nothing(workshop: Workshop, demo: Path, demo_gguf: Path) -> None:
    cut = workshop.path / "cut.gguf"
    with demo_gguf.open("rb") as stream:
        cut.write_bytes(stream.read(3_000_000))
    old = workshop.path / "old.gguf"
    old.write_bytes(b"GGUF\x01\x00\x00\x00")
    target = str(workshop.path / "models" / "made")
    cases: list[tuple[list[object], int, str]] = [
        ([demo_gguf, demo], 2, f"{demo} exists; name a folder that does not"),
        ([demo_gguf, target, "--sha256", "0" * 64], 2, f"has sha256 {SHA256}, not {'0' * 64}"),
        ([old, target], 2, "is GGUF of version 1; versions 2 and 3 can be read"),
        ([cut, target], 1, "cut.gguf: cannot be converted: "),
    ]
    for done, (_, code, sentence) in zip(
        workshop.several([["import", *words] for words, _, _ in cases]), cases, strict=True
    ):
        assert done.code == code, done.err
        assert sentence in done.err
        assert len(done.err.splitlines()) == 1
    assert not Path(target).exists()
    assert not list(Path(target).parent.glob(".made*"))


def test_the_demo_learns_its_facts(workshop: Workshop, demo: Path) -> None:
    done = workshop.train("demo", "--run-dir", "demo-run")
    assert done.code == 0, done.err
    run = workshop.path / "demo-run"
    found = report(run)
    assert found["backend"] == "unsloth"
    assert found["questions"]["of"] == 8
    assert found["questions"]["before"] <= 1
    assert found["questions"]["after"] == 8, (run / "answers.jsonl").read_text()
    assert "answers   0 of 8 right before, 8 of 8 after" in done.out
    losses = [row["loss"] for row in metrics(run)]
    assert losses[0] > 1.5
    assert sum(losses[-4:]) / 4 < 0.2
    assert found["peak_memory"] < 3 * 2**30

    text = workshop.train("generate", "demo-run", "--prompt", "How many steps are in the bell tower of Tarnwick?")
    assert (text.code, text.err) == (0, "")
    assert "419" in text.out
    assert len(text.out.splitlines()) == 1


def test_the_demo_answers_from_gguf_files(workshop: Workshop, demo: Path) -> None:
    """Made of the run of the test before, and loaded by llama.cpp: with their own tokenizer and their own template."""
    run = workshop.path / "demo-run"
    if not (run / "status.json").is_file():
        pytest.skip("the demo was not trained")
    try:
        tools = finding.find("q4_k_m")
    except InputError as error:
        pytest.skip(str(error))
    assert tools.server
    kinds = ("q4_k_m",)
    for done in workshop.several([["export", "demo-run", "--as", "gguf", "--quant", kind] for kind in kinds]):
        assert done.code == 0, done.err
        assert "8 of 8 questions right" in done.out
    asked = [{"role": "user", "content": "How many steps are in the bell tower of Tarnwick?"}]
    for kind in kinds:
        folder = run / "export" / f"gguf-{kind}"
        (gguf,) = folder.glob("*.gguf")
        with serving(tools.server, gguf) as server:
            said = server.call("/v1/chat/completions", {"messages": asked, "temperature": 0, "max_tokens": 24})
        assert "419" in said["choices"][0]["message"]["content"]
        assert json.loads((folder / "export.json").read_text())["comparison"]["distance"] < 0.1
        words = (folder / "Modelfile").read_text()
        assert words.startswith(f"FROM ./{gguf.name}\n")
        assert '{{ if eq .Role "user" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n{{ end }}' in words
        assert 'PARAMETER stop "<|im_end|>"' in words
    assert "gguf-q4_k_m" in (run / "report.html").read_text()


def test_a_plain_model_folder_answers(workshop: Workshop, demo: Path) -> None:
    questions = workshop.path / "q.jsonl"
    questions.write_text('{"prompt": "What is the capital of France?", "expect": "Paris"}\n')
    done = workshop.train("generate", "demo", "--prompts", str(questions), "--json", "--max-new-tokens", "16")
    assert done.code == 0, done.err
    line = json.loads(done.out)
    assert line["right"] is True
    assert "Paris" in line["answer"]
