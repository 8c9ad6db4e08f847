"""The page about a run: what it says, what it must never do, and how charts are drawn."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from strix_train.errors import InputError
from strix_train.report.gather import gather
from strix_train.report.page import html, write
from strix_train.report.svg import NARROW, Series, chart, shown, smooth, thinned, ticks

EVIL = "<script>alert(1)</script><img src=http://x.example/y onerror=z>&\"'"


def jsonl(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(step: int, loss: float | str, **more: Any) -> dict[str, Any]:
    numbers = {"lr": 1e-4, "grad_norm": 1.0, "tokens": 9, "tokens_per_s": 3.0, "seconds": 3.0, "peak_memory": 2**30}
    return {"step": step, "epoch": step / 10, "loss": loss, **numbers, **more}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "demo-1"
    (folder / "export" / "gguf-q8_0").mkdir(parents=True)
    (folder / "recipe.resolved.yaml").write_text("model: demo # " + EVIL)
    jsonl(folder / "metrics.jsonl", *(row(step, 3.0 / step, **{"rewards/margins": step / 9}) for step in range(1, 40)))
    jsonl(folder / "evaluations.jsonl", {"step": 20, "eval_loss": 1.5}, {"step": 39, "eval_loss": 1.25})
    jsonl(
        folder / "samples.jsonl",
        {"step": 10, "prompt": "Say " + EVIL, "answer": "early " + EVIL},
        {"step": 20, "prompt": "Say " + EVIL, "answer": "late"},
    )
    answer = {"prompt": "Where?", "expect": "here"}
    jsonl(
        folder / "answers.jsonl",
        {**answer, "phase": "before", "answer": "there", "right": False},
        {**answer, "phase": "after", "answer": "It is here.", "right": True},
    )
    files = {"demo-q8_0.gguf": {"size": 145 * 10**6}, "Modelfile": {"size": 900}}
    comparison = {"alike": 7, "of": 8}
    (folder / "export" / "gguf-q8_0" / "export.json").write_text(json.dumps({"files": files, "comparison": comparison}))
    report = {
        "model": "demo",
        "method": "sft",
        "steps": 39,
        "rows": 64,
        "seconds": 194.0,
        "eval_loss": 1.25,
        "peak_memory": 3 * 2**29,
        "trainable_parameters": 1000,
        "parameters": 134_515_008,
        "questions": {"before": 0, "after": 1, "of": 1},
        "first_batch": {"learned_tokens": 40, "tokens": 100, "learned_text_of_row_1": "It is here." + EVIL},
    }
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "status.json").write_text(json.dumps({"state": "done", "time": "2026-11-30T01:02:03"}))
    (folder / "versions.json").write_text(
        json.dumps({"python": "3.14", "packages": {"torch": "2.13.0"}, "inputs": {"train_sha256": "ab" * 32}})
    )
    return folder


class Reader(HTMLParser):
    """Collects tags, and whether they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_says_all_of_it(run: Path) -> None:
    reader = read(html(run))
    text = " ".join(" ".join(reader.text).split())
    for words in (
        "demo-1 done 2026-11-30T01:02:03",
        "loss 3.0000 → 0.0769",
        "1,000 of 134,515,008",
        "39 of 39",
        "3 min 14 s",
        "1.50 GiB",
        "0 of 1 before, 1 of 1 after",
        "Where? here there wrong It is here. right",
        "step 10 early",
        "40 of 100 tokens",
        "demo-q8_0.gguf (138.3 MiB)",
        "7 of 8 answers are the model's own",
        "ollama create demo-1 -f Modelfile",
        "torch 2.13.0",
        "rewards/margins",
    ):
        assert words in text, words
    # loss, learning rate, gradient, speed, memory, the method's own
    assert reader.tags.count("svg") == 6


def test_it_loads_nothing_and_text_of_strangers_stays_text(run: Path) -> None:
    text = html(run)
    reader = read(text)
    assert "script" not in reader.tags
    assert "img" not in reader.tags
    assert "link" not in reader.tags
    names = {name for name, _ in reader.attributes}
    assert not names & {"src", "href", "onerror", "srcset"}
    assert "url(" not in text
    assert "@import" not in text
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in reader.attributes
    assert any(EVIL in piece for piece in reader.text)


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    run = tmp_path / "r"
    run.mkdir()
    with pytest.raises(InputError, match="is not a run folder"):
        html(run)
    (run / "recipe.resolved.yaml").write_text("model: demo")
    text = html(run)
    assert "not finished" in text
    assert "<svg" not in text
    (run / "report.json").write_text("{")
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": "nan"}\n{"step": 2, "lo')
    (run / "status.json").write_text(json.dumps({"state": "failed", "reason": "the loss became nan at step 1"}))
    assert "the loss became nan at step 1" in html(run)


def test_it_is_written_whole(run: Path, tmp_path: Path) -> None:
    assert write(run) == run / "report.html"
    assert write(run, tmp_path / "other.html").read_text() == (run / "report.html").read_text()
    assert not list(run.glob(".*"))
    with pytest.raises(InputError, match="cannot be written"):
        write(run, tmp_path / "none" / "x.html")


def test_a_long_run_has_a_short_page(run: Path) -> None:
    jsonl(run / "metrics.jsonl", *(row(step, 2.0 + math.sin(step)) for step in range(1, 20_001)))
    assert len(html(run)) < 120_000


def test_samples_keep_their_order(run: Path) -> None:
    ((prompt, answers),) = gather(run).samples
    assert prompt.startswith("Say ")
    assert [step for step, _ in answers] == [10, 20]


def points(svg: str) -> list[tuple[float, float]]:
    found = re.search(r'points="([^"]+)"', svg)
    assert found
    return [tuple(map(float, pair.split(","))) for pair in found[1].split()]  # type: ignore[misc]


def test_a_line_goes_where_the_numbers_are() -> None:
    svg = chart("t", [Series("s", "line", ((0, 0), (5, 50), (10, 100)))], x_label="x", y_label="y")
    (x0, y0), (x1, y1), (x2, y2) = points(svg)
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert y0 > y2
    assert all(0 <= x <= NARROW[0] and 0 <= y <= NARROW[1] for x, y in points(svg))
    assert ">100</text>" in svg


def test_charts_of_odd_numbers() -> None:
    assert chart("t", [Series("s", "line", ((1, math.nan),))], x_label="", y_label="") == ""
    assert chart("t", [], x_label="", y_label="") == ""
    for values in ([0.0, 0.0], [5e-5, 5e-5], [-3.0, -3.0], [1e12, -1e12], [1.0]):
        svg = chart("t", [Series("s", "line", tuple(enumerate(values, 1)))], x_label="", y_label="")
        assert "nan" not in svg
        assert "inf" not in svg
        read(svg)


def test_thinning_loses_no_spike() -> None:
    many = [(float(x), 1.0) for x in range(10_000)]
    many[7777] = (7777.0, 99.0)
    kept = thinned(many)
    assert len(kept) <= 700
    assert (7777.0, 99.0) in kept
    assert kept == sorted(kept)


def test_the_running_mean() -> None:
    assert smooth([(x, 2.0) for x in range(50)]) == tuple((x, 2.0) for x in range(50))
    assert smooth([(1, 1.0), (2, math.inf), (3, 3.0), (4, 8.0)]) == ((1, 1.0), (3, 4.0), (4, 8.0))
    rising = tuple((float(x), float(x)) for x in range(100))
    assert smooth(rising) == rising  # it lags behind nothing


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(0, 3.2, [0, 1, 2, 3, 4]), (0, 0.00021, [0, 5e-5, 1e-4, 1.5e-4, 2e-4, 2.5e-4]), (-1, 1, [-1, -0.5, 0, 0.5, 1])],
)
def test_axes_have_round_numbers(low: float, high: float, found: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(found)


def test_steps_are_whole_numbers() -> None:
    assert ticks(1, 3, whole=True) == [1, 2, 3]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (5e-5, "5e-05"), (1.5, "1.5"), (4000, "4000"), (12000, "12k"), (3e6, "3M"), (2e9, "2G")],
)
def test_numbers_of_axes(value: float, text: str) -> None:
    assert shown(value) == text


BROWSER = next((found for name in ("chromium-headless-shell", "chromium") if (found := shutil.which(name))), None)


@pytest.mark.skipif(BROWSER is None, reason="no chromium-headless-shell: install Debian's package of that name")
def test_a_browser_shows_it(run: Path, tmp_path: Path) -> None:
    page, picture = write(run), tmp_path / "page.png"
    calm = ["--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1120,1600"]
    seen = ["--enable-logging=stderr", "--screenshot=" + str(picture), page.as_uri()]
    done = subprocess.run([str(BROWSER), *calm, *seen], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # what a page may not do, and does, is said here
    assert not re.search(r"Content Security Policy|Refused to|CONSOLE", done.stderr), done.stderr
    dumped = subprocess.run(
        [str(BROWSER), *calm, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert dumped.stdout.count("<polyline") >= 6
    # curves, tables and text: a blank page of this size is a few kB
    assert picture.stat().st_size > 60_000


def test_the_numbers_of_a_checkpoint_say_so(run: Path) -> None:
    """Also those that an earlier version wrote in place of the result's own."""

    def evaluation(name: str, of: str, loss: str) -> None:
        (run / name).write_text(json.dumps({"summary": {"loss": loss}, "of": of}))

    evaluation("evaluation.json", str(run / "adapter"), "1.5")
    evaluation("evaluation-checkpoint-12.json", str(run / "checkpoints" / "checkpoint-12"), "1.7")
    evaluation("evaluation-checkpoint-4.json", str(run / "checkpoints" / "checkpoint-4"), "1.9")
    assert gather(run).evaluation == [
        ("loss", "1.5"),
        ("loss of checkpoint-4", "1.9"),
        ("loss of checkpoint-12", "1.7"),
    ]
    evaluation("evaluation.json", str(run / "checkpoints" / "checkpoint-20"), "1.6")
    assert gather(run).evaluation[0] == ("loss of checkpoint-20", "1.6")


@pytest.mark.parametrize("word", [".", "/", ".."])
def test_a_page_is_no_folder(run: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.chdir(run)
    with pytest.raises(InputError, match="is a folder; name a file with --to"):
        write(run, Path(word))
    assert not list(run.glob(".*partial"))
