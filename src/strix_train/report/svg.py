"""Line charts as SVG text. Pure; colours come from the page's style sheet, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate

Point = tuple[float, float]
WIDE, NARROW = (1000, 300), (340, 200)
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 34
_MOST_POINTS = 600


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name, its style sheet class (line, soft, other, faint, dots) and its points, by rising x."""

    name: str
    look: str
    points: tuple[Point, ...]


def chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    zero: bool = True,
    size: tuple[int, int] = NARROW,
) -> str:
    """Return one chart; empty where no series has a finite point. `zero`: the axis reaches down to 0.

    `size` in the page's pixels, so that letters are as large in every chart.
    """
    width, height = size
    series = [Series(each.name, each.look, _finite(each.points)) for each in series]
    every = [point for each in series for point in each.points]
    if not every:
        return ""
    xs, ys = [x for x, _ in every], [y for _, y in every]
    left, right = min(xs), max(xs)
    low, high = min(ys), max(ys)
    if zero and low > 0:
        low = 0.0
    if high - low <= 1e-12 * max(1.0, abs(high)):
        low, high = low - abs(low) * 0.05 - 1e-9, high + abs(high) * 0.05 + 1e-9
    y_ticks = ticks(low, high)
    low, high = min(low, y_ticks[0]), max(high, y_ticks[-1])
    if left == right:
        left, right = left - 0.5, right + 0.5

    def across(x: float) -> float:
        return _LEFT + (x - left) / (right - left) * (width - _LEFT - _RIGHT)

    def down(y: float) -> float:
        return height - _BOTTOM - (y - low) / (high - low) * (height - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">']
    for y in y_ticks:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{down(y):.1f}" y2="{down(y):.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{shown(y)}</text>')
    for x in ticks(left, right, wanted=max(2, width // 90), whole=all(float(x).is_integer() for x in xs)):
        if left <= x <= right:
            place = f'x="{across(x):.1f}" y="{height - _BOTTOM + 15}"'
            parts.append(f'<text class="tick" {place} text-anchor="middle">{shown(x)}</text>')
    middle = (_LEFT + width - _RIGHT) / 2
    parts.append(f'<text class="label" x="{middle}" y="{height - 3}" text-anchor="middle">{escape(x_label)}</text>')
    turned = f'transform="translate(12 {(height - _BOTTOM + _TOP) / 2}) rotate(-90)"'
    parts.append(f'<text class="label" {turned} text-anchor="middle">{escape(y_label)}</text>')
    parts += [_drawn(each, [(across(x), down(y)) for x, y in thinned(each.points)]) for each in series]
    return "".join([*parts, "</svg>"])


def _drawn(series: Series, places: Sequence[Point]) -> str:
    title = f"<title>{escape(series.name)}</title>"
    if series.look == "dots" or len(places) == 1:
        circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>' for x, y in places)
        return f'<g class="{series.look}">{title}{circles}</g>'
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="{series.look}" points="{text}">{title}</polyline>'


def _finite(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple((x, y) for x, y in points if math.isfinite(x) and math.isfinite(y))


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Return few enough points to draw: of each stretch the lowest and the highest, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    stretch = math.ceil(2 * len(points) / most)
    found: list[Point] = []
    for start in range(0, len(points), stretch):
        some = points[start : start + stretch]
        found += sorted({min(some, key=lambda point: point[1]), max(some, key=lambda point: point[1])})
    return found


def smooth(points: Sequence[Point], share: float = 0.05) -> tuple[Point, ...]:
    """Return the mean around each point, of `share` of all points and five at least; narrower at both ends."""
    found = _finite(points)
    sums = [0.0, *accumulate(y for _, y in found)]
    half = max(5, round(len(found) * share)) // 2
    means = []
    for index, (x, _) in enumerate(found):
        reach = min(half, index, len(found) - 1 - index)
        means.append((x, (sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1)))
    return tuple(means)


def ticks(low: float, high: float, wanted: int = 5, *, whole: bool = False) -> list[float]:
    """Return round numbers from about `low` to about `high`, steps of 1, 2 or 5 times a power of ten."""
    step = 10 ** math.floor(math.log10((high - low) / wanted or 1.0))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step * wanted >= (high - low) * 0.999)
    if whole:
        step = max(1, step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def shown(value: float) -> str:
    """Return a number as an axis has it: 0.002, 1.5, 40, 12k, 1e-05."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e9:
        return f"{value / 1e9:.4g}G"
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}"
