"""Whole requests as SVG: bars of their parts, with the floor and the 99th percentile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR = 900, 190, 80, 40, 20
_COLOURS = ("#0b7285", "#e67700", "#5f3dc4", "#868e96")
_STYLE = "text{font:12px sans-serif;fill:#777}line{stroke:#c2255c;stroke-width:2}"


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
    height = _ROW * (len(bars) + 1) + 34

    def at(value: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * value / most, 1)

    drawn = []
    for row, bar in enumerate(bars):
        y, left = row * _ROW + 34, 0.0
        drawn.append(_text(_LEFT - 8, y + 15, bar.name, "end"))
        for part, took in bar.parts.items():
            drawn.append(
                f'<rect x="{at(left)}" y="{y}" width="{round(at(left + took) - at(left), 1)}"'
                f' height="{_BAR}" fill="{colours[part]}"/>'
            )
            left += took
        drawn.append(_text(at(left) + 5, y + 15, f"{left:.0f} µs"))
        drawn.append(_mark(at(bar.p99), y - 3, y + _BAR + 3))
        drawn.append(_text(at(bar.p99) + 5, y + 15, f"p99 {bar.p99:.0f}"))
    bottom = 34 + _ROW * len(bars)
    drawn.append(_mark(at(floor), 24, bottom))
    drawn.append(_text(at(floor), 16, f"floor {floor:.0f} µs", "middle"))
    for index, name in enumerate(names):
        x = _LEFT + index * 150
        drawn.append(f'<rect x="{x}" y="{bottom}" width="12" height="12" fill="{colours[name]}"/>')
        drawn.append(_text(x + 18, bottom + 11, name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}">'
        f"<style>{_STYLE}</style>\n" + "\n".join(drawn) + "\n</svg>\n"
    )


def _mark(x: float, top: float, bottom: float) -> str:
    return f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
