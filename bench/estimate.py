"""`train estimate` beside what was measured: our runs on an H200, and kyuz0's public table for a Strix Halo."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strix_train import names
from strix_train.estimate import advice, configs, header, lean, machines, shapes, speed
from strix_train.estimate.memory import GIB, Wish

MEASURED = json.loads(Path(__file__).with_name("measured.json").read_text(encoding="utf-8"))
# Tokens of kyuz0's rows, and whether layers are computed again: rows are quotes, so that the longest batch decides,
# and peft's preparation of a quantized model recomputes unless it is told not to.
CASES = ((128, False), (512, False), (512, True))
H200 = machines.named("h200")
# What is fitted when the runs of a shape are left out, from round values; the other rates are of kernels by themselves.
BEGIN = {"share": 0.6, "plain": 0.5, "unsloth": 0.6, "lean": 0.6, "start": 5e-5, "turn": 0.01} | {
    "unsloth_starts": 60.0,
    "lean_starts": 60.0,
}


@dataclass(frozen=True)
class Row:
    """One measured run and its estimate; `size` and `measured` in GiB or GB, `seconds` of a step (0: unknown).

    `ours`: a run of `train`, and not of another program.
    """

    name: str
    size: float
    measured: float
    seconds: float
    measured_seconds: float
    ours: bool = True

    @property
    def error(self) -> float:
        """How far the estimate of the memory is off, as a share of what was measured; 0 where it was not."""
        return self.size / self.measured - 1 if self.measured else 0.0

    @property
    def time_error(self) -> float:
        """The same for the time."""
        return self.seconds / self.measured_seconds - 1 if self.measured_seconds else 0.0


def wish(run: dict[str, Any]) -> Wish:
    """Return a run of the file as a wish."""
    config = configs.known()[run["model"]]
    shape = shapes.of_config(config["text_config"] if run.get("text") else config)
    able = run["backend"] == "hf" and run["adapter"] in lean.ADAPTERS and lean.able(shape)
    leanly = run.get("lean", able)
    return Wish(
        shape,
        adapter=run["adapter"],
        backend=run["backend"],
        rows=run["rows"],
        length=run["length"],
        accumulation=run["accumulation"],
        offload=leanly or run["backend"] == "unsloth",
        chunked=not run.get("plain", False),
        lean=leanly,
    )


def h200() -> Iterator[Row]:
    """Yield the runs on the H200."""
    for run in MEASURED["runs"]:
        found = advice.estimate(wish(run), H200)
        assert found.speed
        ours = run["who"].startswith("train")
        yield Row(_name(run), found.parts.total / GIB, run["gib"], found.speed.seconds, run["seconds"], ours)


def _name(run: dict[str, Any]) -> str:
    size = f"{run['model'].rpartition('/')[2]} {run['adapter']} {run['rows']}x{run['length']}x{run['accumulation']}"
    return f"{run['who']:<26}{size}"


def held_out() -> Iterator[Row]:
    """Yield the timed runs, each with the time that follows from the runs of all other shapes."""
    timed = [(run["model"], wish(run), run) for run in MEASURED["runs"] if run["seconds"]]
    for shape in dict.fromkeys(model for model, _, _ in timed):
        values = fit([(each, run["seconds"]) for model, each, run in timed if model != shape])
        for model, each, run in timed:
            if model == shape:
                ours = run["who"].startswith("train")
                yield Row(_name(run), 0.0, 1.0, _seconds(each, values), run["seconds"], ours)


def fit(runs: Sequence[tuple[Wish, float]]) -> dict[str, float]:
    """Return the values with which runs are met best, by steps that shrink; what no run tells stays what it was."""
    values, step = dict(BEGIN), 0.2

    def off(some: dict[str, float]) -> float:
        return statistics.mean(abs(math.log(_seconds(each, some) / seconds)) for each, seconds in runs)

    best = off(values)
    while step > 0.01:
        tried = [values | {key: value * by} for key, value in values.items() for by in (1 + step, 1 / (1 + step))]
        error, found = min(((off(each), each) for each in tried), key=lambda pair: pair[0])
        if error < best - 1e-4:
            best, values = error, found
        else:
            step /= 2
    return values


def _seconds(each: Wish, values: dict[str, float]) -> float:
    rates = replace(speed.RATES, **{key: value for key, value in values.items() if key != "share"})
    found = speed.of(each, replace(H200, share=values["share"]), rates)
    assert found
    return found.seconds


def cpu() -> Iterator[Row]:
    """Yield the runs on a CPU: what is compared is the whole process. Its times depend on what else ran."""
    shape = shapes.of_config(configs.known()[MEASURED["cpu"]["model"]])
    for run in MEASURED["cpu"]["runs"]:
        keys = {"adapter", "backend", "rows", "length", "bits", "master", "recompute"}
        more = {"recompute": False} | {key: value for key, value in run.items() if key in keys}
        found = advice.estimate(Wish(shape, accumulation=1, gpu=False, **more), machines.cpu())
        how = ", ".join(f"{key} {value}" for key, value in run.items() if key in ("bits", "master", "recompute"))
        name = f"{run['backend']:<9}{run['adapter']} {run['rows']}x{run['length']} {how}"
        yield Row(name, found.needed / GIB, run["gib"], 0.0, 1.0)


def halo(length: int, recompute: bool) -> Iterator[Row]:
    """Yield the cells of kyuz0's table, for batches of rows that are all `length` tokens long."""
    for cell in MEASURED["kyuz0"]["cells"]:
        shape = shapes.of_config(configs.known()[cell["model"]])
        found = advice.estimate(
            Wish(
                shape,
                adapter=cell["adapter"],
                rows=4,
                length=length,
                accumulation=1,
                master=2,
                recompute=recompute,
                eager=True,
                chunked=False,
            ),
            machines.named("strix-halo"),
        )
        assert found.speed
        # the same preparation holds what is not quantized in 32 bits
        quantized = cell["adapter"] in ("lora8bit", "qlora")
        more = 2 * (shape.weights - shape.linear_weights - shape.pictures) if quantized else 0
        name = f"{cell['model'].rpartition('/')[2]:<16}{cell['adapter']}"
        yield Row(name, (found.needed + more) / 1e9, cell["gb"], found.speed.seconds, cell["minutes"] * 60 / 400)


def main() -> None:
    """Print the comparisons."""
    rows, apart = [*h200()], {row.name: row for row in held_out()}
    head = f"{'estimate':>10}{'measured':>10}"
    print(f"{'H200: run':<66}{head}{'':>8}{head}{'':>8}{'left out':>9}")
    for row in rows:
        time = f"{row.seconds:>8.2f} s"
        if row.measured_seconds:
            time += f"{row.measured_seconds:>8.2f} s{row.time_error:>+8.1%}{apart[row.name].time_error:>+9.1%}"
        memory = f"{row.measured:>6.2f} GiB{row.error:>+8.1%}" if row.measured else " " * 18
        print(f"{row.name:<66}{row.size:>6.2f} GiB{memory}{time}")
    for title, some in (("train", [row for row in rows if row.ours]), ("all programs", rows)):
        timed, held = [row for row in some if row.measured_seconds], [row for row in some if row.measured]
        off = [abs(apart[row.name].time_error) for row in timed]
        print(
            f"{title}: median error of the memory {statistics.median(abs(row.error) for row in held):.1%} over"
            f" {len(held)} runs; of the time {statistics.median(abs(row.time_error) for row in timed):.1%} over"
            f" {len(timed)}, {statistics.median(off):.1%} with the run's shape left out"
        )
    print()
    print(f"{'CPU, SmolLM2 135M: process':<62}{'estimate':>10}{'measured':>10}")
    for row in cpu():
        print(f"{row.name:<62}{row.size:>6.2f} GiB{row.measured:>6.2f} GiB{row.error:>+8.1%}")
    print()
    titles = [f"4 x {length}{', again' if recompute else ''}" for length, recompute in CASES]
    print(f"{'Strix Halo, kyuz0':<28}{'measured':>10}" + "".join(f"{title:>16}" for title in titles))
    columns = [[*halo(*case)] for case in CASES]
    for index, row in enumerate(columns[0]):
        cells = "".join(f"{column[index].size:>13.1f} GB" for column in columns)
        print(f"{row.name:<28}{row.measured:>7.0f} GB{cells}")


def headers() -> None:
    """Write the line about memory into the head of every recipe that ships."""
    for path in names.shipped_recipes().values():
        text = path.read_text(encoding="utf-8")
        changed = header.written(text, header.line(path))
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            print(path.name)
