"""A treemap of an image as SVG: a rectangle a package, in one a layer, its area the bytes. Pure.

Squarified as by Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000).
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from strix_finetune.oci.weights import Weights
from strix_finetune.sizes import mb

_WIDTH, _HEIGHT = 1200.0, 760.0
_HEAD, _TITLE = 20.0, 34.0
# what is smaller than this share of its layer is drawn together
_LEAST = 0.004
_LETTER = 6.6


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, from its upper left corner."""

    x: float
    y: float
    width: float
    height: float


def squarify(sizes: Sequence[float], box: Box) -> list[Box]:
    """A rectangle for each of `sizes` (positive, largest first), which together fill the box."""
    total = sum(sizes)
    if not total:
        return []
    scale = box.width * box.height / total
    areas = [size * scale for size in sizes]
    made: list[Box] = []
    while areas:
        side = min(box.width, box.height)
        count = 1
        while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
            count += 1
        row, areas = areas[:count], areas[count:]
        depth = sum(row) / side if side else 0.0
        at = 0.0
        for area in row:
            length = area / depth if depth else 0.0
            if box.width >= box.height:
                made.append(Box(box.x, box.y + at, depth, length))
            else:
                made.append(Box(box.x + at, box.y, length, depth))
            at += length
        if box.width >= box.height:
            box = Box(box.x + depth, box.y, box.width - depth, box.height)
        else:
            box = Box(box.x, box.y + depth, box.width, box.height - depth)
    return made


def svg(weights: Weights) -> str:
    """The picture. It loads nothing from anywhere; each rectangle says its name and size under the pointer."""
    layers = sorted((layer for layer in weights.layers if layer.size), key=lambda layer: -layer.size)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" font-family="sans-serif">',
        f'<rect width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" fill="#ffffff"/>',
        f'<text x="6" y="23" font-size="16">{escape(weights.image)}: {mb(weights.size)} unpacked</text>',
    ]
    whole = Box(0, _TITLE, _WIDTH, _HEIGHT - _TITLE)
    for number, (layer, box) in enumerate(zip(layers, squarify([layer.size for layer in layers], whole), strict=True)):
        hue = (210 + number * 67) % 360
        parts.append(
            _rectangle(box, _colour(hue, 0.35, 0.45), f"{layer.layer}: {mb(layer.size)}", layer.size, head=True)
        )
        rows = [(row.name, row.size) for row in layer.weights if row.size >= _LEAST * layer.size]
        if rest := layer.size - sum(size for _, size in rows):
            rows.append((f"{len(layer.weights) - len(rows)} more", rest))
        rows.sort(key=lambda row: -row[1])
        inner = Box(box.x + 2, box.y + _HEAD, max(0.0, box.width - 4), max(0.0, box.height - _HEAD - 2))
        for shade, ((name, size), place) in enumerate(
            zip(rows, squarify([size for _, size in rows], inner), strict=True)
        ):
            parts.append(_rectangle(place, _colour(hue, 0.55, 0.72 + shade % 4 * 0.05), name, size))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _worst(row: Sequence[float], side: float) -> float:
    """The worst ratio of sides in a row of these areas along a side."""
    total = sum(row)
    if not total or not side:
        return float("inf")
    return max(side * side * max(row) / (total * total), total * total / (side * side * min(row)))


def _rectangle(box: Box, colour: str, name: str, size: int, *, head: bool = False) -> str:
    shape = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    title = name if head else f"{name}: {mb(size)}"
    text = ""
    room = int((box.width - 8) / _LETTER)
    if room >= 4 and box.height >= 16:
        shown = name if len(name) <= room else f"{name[: room - 1]}…"
        style = 'font-size="12" font-weight="bold" fill="#ffffff"' if head else 'font-size="11" fill="#222222"'
        text = f'<text x="{box.x + 4:.1f}" y="{box.y + 14:.1f}" {style}>{escape(shown)}</text>'
        if not head and box.height >= 30 and room >= 8:
            text += f'<text x="{box.x + 4:.1f}" y="{box.y + 28:.1f}" font-size="10" fill="#555555">{mb(size)}</text>'
    return (
        f'<g><title>{escape(title)}</title><rect {shape} fill="{colour}" stroke="#ffffff" stroke-width="1"/>{text}</g>'
    )


def _colour(hue: int, saturation: float, lightness: float) -> str:
    """As the first SVG has it: not every program that draws one knows hsl()."""
    parts = colorsys.hls_to_rgb(hue / 360, lightness, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)
