"""Curves of a simulation: where their ticks and values are, whatever the length of time."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from nri_policy.picture.timeline import draw_timeline


@pytest.mark.parametrize(
    ("end", "texts"),
    [
        (4.0, ["0", "1 s", "2 s", "3 s", "4 s"]),
        (90.0, ["0", "30 s", "60 s", "90 s"]),
        (3600.0, ["0", "15 min", "30 min", "45 min", "60 min"]),
        (27.7 * 3600, ["0", "6 h", "12 h", "18 h", "24 h"]),
        (7 * 86400.0, ["0", "2 d", "4 d", "6 d"]),
    ],
)
def test_ticks_are_whole_numbers_of_a_unit_and_few(end: float, texts: list[str]) -> None:
    found = ET.fromstring(str(draw_timeline([(0.0, 0.0, 0), (end, 0.5, 1)])))
    for figure in found.iter("figure"):
        ticks = [each for each in figure.iter("span") if each.get("class") == "time"]
        assert [each.text for each in ticks] == texts
        places = [float((each.get("style") or "")[len("left: ") : -1]) for each in ticks]
        steps = [each - before for before, each in pairwise(places)]
        assert places[0] == 0
        assert places[-1] <= 100
        assert max(steps) - min(steps) < 0.02


def test_a_curve_goes_from_nothing_to_the_most_there_was() -> None:
    found = ET.fromstring(str(draw_timeline([(0.0, 0.0, 0), (50.0, 1.0, 3), (100.0, 0.5, 6)])))
    used, waited = (
        each.get("points", "").split() for each in found.iter() if "points" in each.attrib
    )
    assert used[1:-1] == ["0.0,100.0", "500.0,0.0", "1000.0,50.0"]
    assert waited[1:-1] == ["0.0,100.0", "500.0,50.0", "1000.0,0.0"]
    values = [each.text for each in found.iter("span") if each.get("class") == "value"]
    assert values == ["0", "50 %", "100 %", "0", "6"]


def test_years_have_few_ticks_too() -> None:
    text = str(draw_timeline([(0.0, 0.0, 0), (9 * 365 * 86400.0, 0.5, 1)]))
    assert len(re.findall('class="time"', text)) <= 12
