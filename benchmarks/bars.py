"""Whole requests as SVG: bars of their parts, with the floor and the 99th percentile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR = 900, 190, 80, 40, 20
_COLOURS = ("#0b7285", "#e67700", "#5f3dc4", "#868e96")
_FLOOR, _SLOW, _GRID = "#c2255c", "#2f9e44", "#9996"
_STYLE = "text{font:12px sans-serif;fill:#777}line{stroke-width:2}"
_TICK = 500  # µs


class Bar(NamedTuple):
    """One request; all in microseconds."""

    name: str
    parts: Mapping[str, float]  # of the median
    p99: float


def svg(bars: Sequence[Bar], floor: float) -> str:
    """Return the picture; *floor* is the median of a plugin that only answers."""
    names = list(dict.fromkeys(part for bar in bars for part in bar.parts))
    colours = dict(zip(names, _COLOURS, strict=False))
    most = max(bar.p99 for bar in bars)
    bottom = 34 + _ROW * len(bars)
    height = bottom + 66

    def at(value: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * value / most, 1)

    drawn = []
    for tick in range(0, int(most) + 1, _TICK):
        drawn.append(_mark(at(tick), 24, bottom, _GRID))
        drawn.append(_text(at(tick), bottom + 14, f"{tick} µs" if tick else "0", "middle"))
    for row, bar in enumerate(bars):
        y, left = row * _ROW + 34, 0.0
        drawn.append(_text(_LEFT - 8, y + 15, bar.name, "end"))
        for part, took in bar.parts.items():
            drawn.append(
                f'<rect x="{at(left)}" y="{y}" width="{round(at(left + took) - at(left), 1)}"'
                f' height="{_BAR}" fill="{colours[part]}"/>'
            )
            left += took
        drawn.append(_text(at(left) + 5, y + 15, f"{left:.0f}"))
        drawn.append(_mark(at(bar.p99), y - 3, y + _BAR + 3, _SLOW))
        drawn.append(_text(at(bar.p99) + 5, y + 15, f"{bar.p99:.0f}"))
    drawn.append(_mark(at(floor), 24, bottom, _FLOOR))
    squares = [(colours[name], f"median: {name}") for name in names]
    marks = [(_FLOOR, f"a plugin that only answers: {floor:.0f}"), (_SLOW, "99th percentile")]
    for index, (colour, name) in enumerate(squares):
        drawn += _named(_LEFT + index * 150, bottom + 24, 12, colour, name)
    for index, (colour, name) in enumerate(marks):
        drawn += _named(_LEFT + index * 300, bottom + 46, 3, colour, name)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        ' aria-label="parts of the median of a creation, and its 99th percentile">'
        f"<style>{_STYLE}</style>\n" + "\n".join(drawn) + "\n</svg>\n"
    )


def _named(x: float, y: float, width: int, colour: str, name: str) -> list[str]:
    """Return a part of the legend."""
    square = f'<rect x="{x}" y="{y}" width="{width}" height="12" fill="{colour}"/>'
    return [square, _text(x + width + 6, y + 11, name)]


def _mark(x: float, top: float, bottom: float, colour: str) -> str:
    return f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
