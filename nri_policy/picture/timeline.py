"""Curves over time on pages: as wide as the page allows, with ticks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nri_policy.picture.markup import Element

_WIDTH, _HEIGHT = 1000, 100  # of a drawing, which the page stretches
_MOST_TICKS = 6
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}  # in seconds
_STEPS = [  # between ticks: a number of units, in seconds
    (number, unit)
    for unit, numbers in (
        ("s", (1, 5, 15, 30)),
        ("min", (1, 5, 15, 30)),
        ("h", (1, 2, 3, 6, 12)),
        ("d", (1, 2, 7, 14, 28, 56, 112, 364, 728)),
    )
    for number in numbers
]

Timeline = Sequence[tuple[float, float, int]]  # seconds, the share that was used, how many waited


def draw_timeline(timeline: Timeline) -> Element:
    """Return a curve of what was used, from nothing to all, and one of how many waited."""
    end = timeline[-1][0]
    most = max(1, *(waiting for *_, waiting in timeline))
    used = [(at / end, min(1.0, share)) for at, share, _ in timeline]
    waited = [(at / end, waiting / most) for at, _, waiting in timeline]
    ticks = dict(_ticks(end))
    return Element(
        "div",
        _curve("scarcest resource in use", used, {0.0: "0", 0.5: "50 %", 1.0: "100 %"}, ticks),
        _curve("groups that waited", waited, {0.0: "0", 1.0: str(most)}, ticks),
        class_="timelines",
    )


def _ticks(end: float) -> Iterator[tuple[float, str]]:
    """Yield where on the axis of time there is a tick, as a share of it, and its text."""
    steps = (
        (number, unit) for number, unit in _STEPS if end / (number * _UNITS[unit]) < _MOST_TICKS
    )
    number, unit = next(steps, _STEPS[-1])
    step = number * _UNITS[unit]
    for at in range(int(end // step) + 1):
        yield at * step / end, f"{at * number} {unit}" if at else "0"


def _curve(
    text: str,
    points: Sequence[tuple[float, float]],
    values: Mapping[float, str],
    times: Mapping[float, str],
) -> Element:
    """Return the area below *points*, all in shares, with *values* and *times* beside it."""
    shown = " ".join(f"{_WIDTH * x:.1f},{_HEIGHT * (1 - y):.1f}" for x, y in points)
    grid = [f"M0 {_HEIGHT * (1 - y):g}H{_WIDTH}" for y in values]
    grid += [f"M{_WIDTH * x:.1f} 0V{_HEIGHT}" for x in times]
    drawing = Element(
        "svg",
        Element("path", d="".join(grid)),
        Element("polygon", points=f"0,{_HEIGHT} {shown} {_WIDTH},{_HEIGHT}"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=text,
    )
    marks = [_mark("value", f"top: {1 - y:.1%}", label) for y, label in values.items()]
    marks += [_mark("time", f"left: {x:.2%}", label) for x, label in times.items()]
    plot = Element("div", drawing, *marks, class_="plot")
    return Element("figure", Element("figcaption", text), plot, class_="timeline")


def _mark(kind: str, place: str, text: str) -> Element:
    return Element("span", text, class_=kind, style=place)
