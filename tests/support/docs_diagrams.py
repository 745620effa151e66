"""Diagrams of the documentation: who calls whom, the order of criteria, a container's CPUs in time.

Made of what the program knows: the table of criteria, and a scenario that it plays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from nri_policy.engine.choice.criteria import CRITERIA
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.picture.markup import Element
from nri_policy.picture.svg import draw
from nri_policy.picture.svg_parts import LETTER, LINE, Drawn, group, line, stack

_CELL = 20
_ACROSS = 90  # letters of a line
_CALLS = (  # from, to, what
    (0, 1, "CRI: create container"),
    (1, 2, "NRI: CreateContainer"),
    (2, 2, "decide, store"),
    (2, 1, "adjust: its CPUs and memory nodes"),
    (2, 2, "write others' cpusets"),
    (0, 1, "CRI: start container"),
    (1, 2, "NRI: StartContainer"),
    (2, 1, "answer: others have left its CPUs"),
    (1, 1, "start it"),
    (1, 0, "CRI: running, later stopped"),
    (1, 2, "NRI: StopContainer, and other events"),
    (2, 1, "later: tell which cpusets it wrote"),
)


def calls() -> str:
    """Return the picture of kubelet, runtime and daemon: who calls whom for a container."""
    names, step, top = ("kubelet", "containerd, CRI-O", "nri-policy"), 340, 34
    parts: list[Element] = []
    height = top + (len(_CALLS) + 1) * 30
    for at, name in enumerate(names):
        x = 90 + at * step
        box = Element("rect", class_="box", x=x - 80, y=0, width=160, height=26, rx=4)
        middle = x - len(name) * LETTER / 2
        parts += [box, Element("text", name, class_="title", x=f"{middle:g}", y=17)]
        parts.append(Element("path", class_="branch", d=f"M{x} 26V{height}"))
    for number, (start, end, text) in enumerate(_CALLS, start=1):
        y = top + number * 30
        x1, x2 = 90 + start * step, 90 + end * step
        if start == end:
            parts.append(Element("circle", cx=x1, cy=y, r=4, style="fill: var(--moved)"))
            parts.append(Element("text", f"{number}. {text}", x=x1 + 12, y=y + 4))
            continue
        tip = -8 if x2 > x1 else 8
        arrow = f"M{x1} {y}H{x2}M{x2 + tip} {y - 4}L{x2} {y}L{x2 + tip} {y + 4}"
        parts.append(Element("path", d=arrow, style="fill: none; stroke: var(--moved)"))
        parts.append(Element("text", f"{number}. {text}", x=min(x1, x2) + 12, y=y - 6))
    return draw([Drawn(tuple(parts), 2 * step + 300, height)], "who calls whom for a container")


def criteria() -> str:
    """Return the picture of the order in which criteria are asked."""
    elements: list[Element] = []
    y = 0
    for number, each in enumerate(CRITERIA):
        if number:
            elements.append(Element("path", class_="branch", d=f"M85 {y - 8}V{y}"))
        title = Element("text", f"{number + 1}. {each.heading}", class_="title", x=10, y=16)
        box = Element("rect", class_="box", width=170, height=24, rx=4)
        elements.append(group(0, y, box, title))
        texts = wrap(each.doc, _ACROSS)
        for at, text in enumerate(texts):
            elements.append(Element("text", text, class_="caption", x=186, y=y + 16 + at * LINE))
        y += 32 + (len(texts) - 1) * LINE
    table = Drawn(tuple(elements), 186 + _ACROSS * LETTER, y)
    heading = "The first criterion on which two pools differ decides between them"
    return draw([stack([line(heading, "heading"), table])], heading)


def life(results: Sequence[Mapping[str, Any]], titles: Sequence[str], name: str) -> str:
    """Return the picture of the CPUs of container *name* after each step of a scenario."""
    heading = f"The CPUs of {name.removeprefix('default/')}"
    parts = [line(heading, "heading")]
    width = max(map(len, titles)) * LETTER + 20
    every = sorted({cpu for result in results for cpu in _of(result, "cpus")})
    elements = [
        Element("text", str(cpu), class_="caption", x=f"{width + at * _CELL + 3:g}", y=12)
        for at, cpu in enumerate(every)
    ]
    for row, (title, result) in enumerate(zip(titles, results, strict=True), start=1):
        y = row * (LINE + 6)
        elements.append(Element("text", title, x=0, y=y + 13))
        mine = CPUSet.parse(result["containers"].get(name, {}).get("cpus") or "")
        own = {cpu for cpu in _of(result, "exclusive") if cpu not in mine}
        for at, cpu in enumerate(every):
            use = "own k156" if cpu in mine else "own k208" if cpu in own else "idle"
            square = Element("rect", width=_CELL - 2, height=LINE)
            elements.append(group(width + at * _CELL, y, square, class_=f"cpu {use}"))
    height = (len(results) + 1) * (LINE + 6)
    parts.append(Drawn(tuple(elements), width + len(every) * _CELL, height))
    key = [
        ("own k156", "it may run here"),
        ("own k208", "exclusive to another container"),
        ("idle", "not in its pool, or not available"),
    ]
    looks: list[Element] = []
    x = 0.0
    for class_, text in key:
        square = Element("rect", width=18, height=16)
        looks.append(group(x, 0, square, class_=f"cpu {class_}"))
        looks.append(Element("text", text, class_="caption", x=f"{x + 24:g}", y=12))
        x += 24 + len(text) * LETTER + 20
    parts.append(Drawn(tuple(looks), x, LINE))
    return draw([stack(parts)], heading)


def _of(result: Mapping[str, Any], field: str) -> CPUSet:
    return CPUSet.union(
        CPUSet.parse(each.get(field) or "") for each in result["containers"].values()
    )
