"""`train estimate` beside what was measured: our runs on an H200, and kyuz0's public table for a Strix Halo."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train import names
from strix_train.estimate import advice, configs, header, machines, shapes
from strix_train.estimate.memory import GIB, Wish

MEASURED = json.loads(Path(__file__).with_name("measured.json").read_text(encoding="utf-8"))
# Tokens of kyuz0's rows, and whether layers are computed again: rows are quotes, so that the longest batch decides,
# and peft's preparation of a quantized model recomputes unless it is told not to.
CASES = ((128, False), (512, False), (512, True))


@dataclass(frozen=True)
class Row:
    """One measured run and its estimate; `size` and `measured` in GiB or GB, `seconds` of a step (0 unknown)."""

    name: str
    size: float
    measured: float
    seconds: float
    measured_seconds: float

    @property
    def error(self) -> float:
        """How far the estimate of the memory is off, as a share of what was measured."""
        return self.size / self.measured - 1

    @property
    def time_error(self) -> float:
        """The same for the time."""
        return self.seconds / self.measured_seconds - 1


def wish(run: dict[str, Any]) -> Wish:
    """Return a run of the file as a wish."""
    unsloth = run["backend"] == "unsloth"
    return Wish(
        shapes.of_config(configs.known()[run["model"]]),
        adapter=run["adapter"],
        backend=run["backend"],
        rows=run["rows"],
        length=run["length"],
        accumulation=run["accumulation"],
        offload=unsloth,
        chunked=not run.get("plain", False),
    )


def h200() -> Iterator[Row]:
    """Yield the runs on the H200."""
    for run in MEASURED["runs"]:
        found = advice.estimate(wish(run), machines.named("h200"))
        assert found.speed
        size = f"{run['model'].rpartition('/')[2]} {run['adapter']} {run['rows']}x{run['length']}x{run['accumulation']}"
        name = f"{run['who']:<26}{size}"
        yield Row(name, found.parts.total / GIB, run["gib"], found.speed.seconds, run["seconds"])


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
    rows = [*h200()]
    print(f"{'H200: run':<62}{'estimate':>10}{'measured':>10}{'':>8}{'estimate':>10}{'measured':>10}")
    for row in rows:
        print(
            f"{row.name:<62}{row.size:>6.2f} GiB{row.measured:>6.2f} GiB{row.error:>+8.1%}"
            f"{row.seconds:>8.2f} s{row.measured_seconds:>8.2f} s{row.time_error:>+8.1%}"
        )
    memory, time = (statistics.median(abs(each) for each in found) for found in _errors(rows))
    print(f"median error of the memory {memory:.1%}, of the time {time:.1%}, over {len(rows)} runs\n")
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


def _errors(rows: list[Row]) -> tuple[list[float], list[float]]:
    return [row.error for row in rows], [row.time_error for row in rows]
