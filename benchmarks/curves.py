"""Growth curves as SVG, on logarithmic axes; text and lines alone, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Curve = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 360, 240
_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 28, 92, 34
_COLOURS = ("#0b7285", "#c2255c", "#e67700", "#5f3dc4")
_STYLE = "text{font:11px sans-serif;fill:#777}line{stroke:#9994}path{fill:none;stroke-width:2}"


def svg(charts: Sequence[tuple[str, str, Mapping[str, Curve]]]) -> str:
    """Return one picture of all *charts* side by side: title, x axis, curves by name."""
    parts = [
        f'<g transform="translate({index * _WIDTH})">{_chart(*chart)}</g>'
        for index, chart in enumerate(charts)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH * len(charts)} {_HEIGHT}">'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _chart(title: str, across: str, curves: Mapping[str, Curve]) -> str:
    points = [point for curve in curves.values() for point in curve]
    xs, ys = sorted({x for x, _ in points}), [y for _, y in points]
    low, high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))

    def at(x: float, y: float) -> tuple[float, float]:
        wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        right = math.log(x / xs[0]) / math.log(xs[-1] / xs[0])
        up = math.log(y / low) / math.log(high / low)
        return round(_LEFT + wide * right, 1), round(_HEIGHT - _BOTTOM - tall * up, 1)

    drawn = [_text(_LEFT, 16, f"{title}, µs"), _text(_WIDTH - _RIGHT, _HEIGHT - 4, across, "end")]
    drawn += [_text(at(x, low)[0], _HEIGHT - 20, f"{x:g}", "middle") for x in xs]
    ticks = [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    for y in ticks:
        (left, height), (right, _) = at(xs[0], y), at(xs[-1], y)
        drawn.append(f'<line x1="{left}" y1="{height}" x2="{right}" y2="{height}"/>')
        drawn.append(_text(left - 6, height + 4, f"{y:g}", "end"))
    for (name, curve), colour in zip(curves.items(), _COLOURS, strict=False):
        line = " L".join(f"{x},{y}" for x, y in (at(*point) for point in curve))
        drawn.append(f'<path d="M{line}" stroke="{colour}"/>')
        x, y = at(*curve[-1])
        drawn.append(_text(x + 5, y + 4, name))
    return "".join(drawn)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
