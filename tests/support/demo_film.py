"""The moving picture of the README: the steps of `nri-policy demo`, one after the other.

Style sheets alone move it, so it plays in an <img>. Who prefers no motion sees the last step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from nri_policy.cli.node.demo import MACHINE
from nri_policy.cli.node.simulate import Show, play
from nri_policy.cli.options import Source
from nri_policy.foundation.shipped import shipped
from nri_policy.picture.markup import Element, Verbatim
from nri_policy.picture.occupant import Occupant
from nri_policy.picture.scene import Scene
from nri_policy.picture.svg import Strip
from nri_policy.picture.svg_parts import LETTER, LINE, Drawn, group, line, stack, swatch
from nri_policy.picture.svg_plan import floor_plan
from nri_policy.simulation.node import SimulatedNode
from nri_policy.simulation.playback import Result
from nri_policy.simulation.scenario import read_scenario

_SAID = (  # of each step of configs/demo.yaml
    "An empty node: CPU 0 is reserved for the system",
    "BestEffort pods share CPUs; those of the system get the reserved one",
    "Burstable pods get shared CPUs with room for what they request",
    "The daemon restarts, and everybody keeps their CPUs",
    "Guaranteed pods get exclusive CPUs; others leave these",
    "A pod is resized while it runs",
    "More pods come, some with exclusive and shared CPUs",
    "Two pods end, and others get their CPUs",
    "A solver asks for a whole NUMA node: the pod that shared it moves away",
)
_WIDTH, _MARGIN = 960, 16
_SECONDS = 3.0  # a step; the last one two
_COLUMNS = (("container", 24), ("class", 190), ("asked for", 290), ("CPUs", 430), ("changed", 540))
_LONGEST = 48  # characters of what changed
_UNSEEN = re.compile(r'<title>.*?</title>\n?| (?:id|data-\w+)="[^"]*"', re.DOTALL)


@dataclass(slots=True, kw_only=True)
class _Kept(Show):
    """Keeps what the demo shows."""

    async def step(self, result: Result, strip: Strip) -> None:
        self.results.append(result)
        self.strips.append(strip)


def film() -> str:
    """Return the text of the SVG file."""
    steps = read_scenario(shipped() / "configs" / "demo.yaml")
    show = _Kept(title="", form="table", steps=steps)
    play(partial(SimulatedNode, Source(synthetic=MACHINE).machine(), None), show, None)
    frames = [
        _frame(strip.scene, said, number, len(_SAID))
        for number, (strip, said) in enumerate(zip(show.strips, _SAID, strict=True), start=1)
        if strip.scene is not None
    ]
    height = round(max(frame.height for frame in frames)) + 2 * _MARGIN
    style = Element("style", _motion(len(frames)))
    content = [
        group(_MARGIN, _MARGIN, *frame.elements, class_=f"frame f{number}")
        for number, frame in enumerate(frames, start=1)
    ]
    title = Element("title", "Nine steps on a node: which container has which CPUs")
    svg = Element(
        "svg",
        Verbatim("style", "picture.css"),
        style,
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height}",
        width=_WIDTH,
        height=height,
        role="img",
    )
    head, end, rest = _UNSEEN.sub("", str(svg)).partition("<style>")  # nobody points at an <img>
    return f"{head}{title}\n{end}{rest}\n"


def _motion(count: int) -> str:
    """Return the style sheet: one frame at a time, and the last one where nothing moves."""
    whole = _SECONDS * (count + 1)
    rules = [
        ".frame { visibility: hidden; }",
        f".f{count} {{ visibility: visible; }}",
        "@media (prefers-reduced-motion: no-preference) {",
        f"  .frame {{ animation: {whole:g}s step-end infinite; }}",
    ]
    for number in range(1, count + 1):
        start, end = ((number - 1) * _SECONDS / whole, number * _SECONDS / whole)
        moments = {0.0: "hidden", start: "visible"}
        if number < count:
            moments[end] = "hidden"
        shown = " ".join(f"{at:.0%} {{ visibility: {how}; }}" for at, how in moments.items())
        rules.append(f"  .f{number} {{ animation-name: f{number}; }}")
        rules.append(f"  @keyframes f{number} {{ {shown} }}")
    return "\n".join(["", *rules, "}", ""])


def _frame(scene: Scene, said: str, number: int, count: int) -> Drawn:
    dots = "●" * number + "○" * (count - number)
    place = Element("text", dots, class_="caption", x=_WIDTH - 2 * _MARGIN - count * LETTER, y=13)
    heading = Drawn((*line(said, "heading").elements, place), _WIDTH, LINE + 8)
    table = [_table(scene)] if scene.occupants else []
    return stack([heading, floor_plan(scene, "", _WIDTH - 2 * _MARGIN), *table])


def _table(scene: Scene) -> Drawn:
    elements = [*_row([head for head, _ in _COLUMNS], "head", 0)]
    for number, each in enumerate(scene.occupants, start=1):
        y = number * LINE
        if each.owner:
            mark = scene.marks[each.owner]
            elements.append(group(0, y, *swatch(mark.letter), class_=f"cpu own k{mark.colour}"))
        elements += _row([*_cells(each)], "changed" if each.change else "row", y)
    return Drawn(tuple(elements), _WIDTH, (len(scene.occupants) + 1) * LINE)


def _cells(each: Occupant) -> Iterator[str]:
    yield from (each.short, each.qos, each.amount, str(each.cpus))
    changed = ""
    for part in each.change.split("; "):  # the whole parts for which there is room
        longer = f"{changed}; {part}" if changed else part
        if len(longer) > _LONGEST:
            break
        changed = longer
    yield changed


def _row(texts: Sequence[str], class_: str, y: float) -> Iterator[Element]:
    for text, (_, x) in zip(texts, _COLUMNS, strict=True):
        if text:
            yield Element("text", text, class_=class_, x=x, y=f"{y + 12:g}")
