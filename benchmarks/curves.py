"""Growth curves as SVG, over a logarithmic axis; text and lines alone, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Curve = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 390, 240
_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 28, 132, 34
_LINE = 12  # between two names
_LETTER = 6  # its width, about
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # between two ticks, in µs
_MOST_TICKS = 6
_COLOURS = ("#0b7285", "#c2255c", "#e67700", "#5f3dc4")
_STYLE = "text{font:11px sans-serif;fill:#777}line{stroke:#9994}path{fill:none;stroke-width:2}"


def svg(charts: Sequence[tuple[str, str, Mapping[str, Curve]]]) -> str:
    """Return one picture of all *charts* side by side: title, x axis, curves by name."""
    parts = [
        f'<g transform="translate({index * _WIDTH})">{_chart(*chart)}</g>'
        for index, chart in enumerate(charts)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH * len(charts)} {_HEIGHT}"'
        f' role="img" aria-label="{"; ".join(title for title, *_ in charts)}">'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _chart(title: str, across: str, curves: Mapping[str, Curve]) -> str:
    points = [point for curve in curves.values() for point in curve]
    xs, most = sorted({x for x, _ in points}), max(y for _, y in points)
    step = next(step for step in _STEPS if step * _MOST_TICKS >= most)
    high = step * math.ceil(most / step)

    def at(x: float, y: float) -> tuple[float, float]:
        wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        right = math.log(x / xs[0]) / math.log(xs[-1] / xs[0])
        return round(_LEFT + wide * right, 1), round(_HEIGHT - _BOTTOM - tall * y / high, 1)

    drawn = [
        _text(_LEFT, 16, f"{title}, µs"),
        _text(_WIDTH - _RIGHT, _HEIGHT - 4, f"{across}, log scale", "end"),
    ]
    nearest = math.inf  # the left end of the last label: labels must not cover each other
    for x in reversed(xs):
        middle, label = at(x, 0)[0], f"{x:g}"
        half = _LETTER * (len(label) + 1) / 2
        if middle + half <= nearest:
            drawn.append(_text(middle, _HEIGHT - 20, label, "middle"))
            nearest = middle - half
    for y in range(0, high + 1, step):
        (left, height), (right, _) = at(xs[0], y), at(xs[-1], y)
        drawn.append(f'<line x1="{left}" y1="{height}" x2="{right}" y2="{height}"/>')
        drawn.append(_text(left - 6, height + 4, f"{y}", "end"))
    highest = float(_HEIGHT)  # where the last name stands: names must not cover each other
    for (name, curve), colour in sorted(
        zip(curves.items(), _COLOURS, strict=False), key=lambda named: named[0][1][-1][1]
    ):
        line = " L".join(f"{x},{y}" for x, y in (at(*point) for point in curve))
        drawn.append(f'<path d="M{line}" stroke="{colour}"/>')
        right, height = at(*curve[-1])
        highest = min(height + 4, highest - _LINE)
        drawn.append(_text(right + 5, highest, name))
    return "".join(drawn)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
