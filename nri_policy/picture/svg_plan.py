"""The floor plan in SVG: each thread a square with a letter and a tooltip, and the key to them.

Every CPU and pool is an element with data attributes of its own, so that pictures can be searched
and styled; a CPU has an id too.
"""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.picture.floor_plan import Box, plan
from nri_policy.picture.markup import Element
from nri_policy.picture.scene import LETTERS, MEANINGS, DrawnUse, Purpose, Scene
from nri_policy.picture.svg_parts import (
    LETTER,
    LINE,
    METRICS,
    WIDTH,
    Drawn,
    cut,
    group,
    line,
    number_label,
    stack,
    swatch,
)

_KEY_WIDTH = 600
# Drawn inside the square, because neighbouring squares cover its border
_EDGE = Element("rect", class_="edge", x=1, y=1, width=METRICS.cell - 2, height=METRICS.line - 2)
_SMALL_EDGE = Element("rect", class_="edge", x=1, y=1, width=16, height=14)  # in the key
_MOST_SHARING = 5  # named in a tooltip


def floor_plan(scene: Scene, prefix: str, width: int = WIDTH) -> Drawn:
    """Return the floor plan with its key; ids of elements begin with *prefix*."""
    layout = plan(scene, width, METRICS)
    painter = _Painter(scene, prefix)
    top = scene.top
    above = [] if scene.has_outer_box else [line(f"{top.title} · {top.caption}", "caption")]
    boxes = tuple(painter.box(box) for box in layout.boxes)
    return stack(
        [
            *above,
            Drawn(boxes, layout.width, layout.height + 10),
            _key(scene, min(width, _KEY_WIDTH)),
        ]
    )


class _Painter:
    def __init__(self, scene: Scene, prefix: str) -> None:
        self._scene = scene
        self._prefix = prefix
        narrowing = sorted(scene.areas.values(), key=lambda area: -len(area.cpus))
        self._pools = {cpu: area.name for area in narrowing for cpu in area.cpus}
        self._partitions = [each for each in scene.occupants if each.partition]
        self._cores = {cpu: core for core in scene.cores for cpu in core}

    def box(self, box: Box) -> Element:
        """Return a box with its content."""
        room = int((box.width - 2 * METRICS.side) / LETTER)
        side, low = METRICS.side, box.height - 9
        return group(
            box.x,
            box.y,
            Element("title", "\n".join(filter(None, (box.title, box.caption, *box.details)))),
            Element("rect", class_="box", width=box.width, height=box.height, rx=5),
            Element("text", cut(box.title, room), class_="title", x=side, y=17),
            Element("text", cut(box.caption, room), class_="caption", x=side, y=low),
            *map(self.box, box.boxes),
            *(
                self._cpu(cpu, cell.x, cell.y + at * METRICS.line)
                for cell in box.cells
                for at, cpu in enumerate(cell.threads)
                if cpu is not None
            ),
            class_="pool cores" if box.cells else "pool",
            data_pool=box.title.partition(":")[0],
        )

    def _cpu(self, cpu: int, x: int, y: int) -> Element:
        place = self._scene.places[cpu]
        mark = self._scene.marks.get(place.owner)
        classes = ["cpu", place.use.value]
        classes += [f"k{mark.colour}"] if mark else []
        classes += ["partition"] if self._partition(cpu) else []
        moved = cpu in self._scene.moved
        classes += ["moved"] if moved else []
        return group(
            x,
            y,
            Element("title", "\n".join(self._tooltip(cpu, place))),
            *number_label(mark.letter if mark else LETTERS[place.use], cpu),
            *([_EDGE] if moved else []),
            class_=" ".join(classes),
            id_=f"{self._prefix}cpu-{cpu}",
            data_cpu=cpu,
            data_container=place.owner or None,
        )

    def _partition(self, cpu: int) -> str:
        """Return the kind of the kernel partition that a CPU is in, empty if it is in none."""
        return next((each.partition for each in self._partitions if cpu in each.cpus), "")

    def _tooltip(self, cpu: int, place: DrawnUse) -> Iterator[str]:
        """Yield the lines of a CPU's tooltip."""
        yield f"CPU {cpu}: {place.owner or MEANINGS[place.use]}"
        if not place.owner:
            sharing = [each.name for each in self._scene.occupants if cpu in each.cpus]
            yield from sharing[:_MOST_SHARING]
            if len(sharing) > _MOST_SHARING:
                yield f"and {len(sharing) - _MOST_SHARING} more"
        if kind := self._partition(cpu):
            yield f"kernel partition, {kind}"
        core = self._cores.get(cpu)
        if core is not None and len(core) > 1:
            yield f"core of CPUs {core}"
        if cpu in self._pools:
            yield self._pools[cpu]


def _key(scene: Scene, room: int) -> Drawn:
    present = {place.use for place in scene.places.values()}
    entries: list[tuple[str, tuple[Element, ...], str]] = [
        (f"cpu {use.value}", swatch(LETTERS[use]), MEANINGS[use])
        for use in Purpose
        if use in present and use is not Purpose.OWN
    ]
    owners = {place.owner for place in scene.places.values() if place.use is Purpose.OWN}
    if owners:  # as the first letter looks
        mark = next(mark for name, mark in scene.marks.items() if name in owners)
        meaning = f"{MEANINGS[Purpose.OWN]}, one letter per container"
        if any(each.room for each in scene.occupants):
            meaning += ", or for the rest of a pod's room"
        entries.insert(0, (f"cpu own k{mark.colour}", swatch(mark.letter), meaning))
    if any(each.partition for each in scene.occupants):
        entries.append(("cpu idle partition", swatch(""), "kernel partition"))
    if scene.moved:
        entries.append(("cpu idle", (*swatch(""), _SMALL_EDGE), "changed hands"))
    if any(len(core) > 1 for core in scene.cores):
        entries.append(("", (), "one column per core, one square per thread"))
    elements, x, y = [], 0.0, 0.0
    for class_, square, meaning in entries:
        lead = 24 if square else 0
        width = lead + len(meaning) * LETTER
        if x and x + width > room:
            x, y = 0.0, y + LINE + 2
        look = group(x, y, *square, class_=class_ or None)
        elements += [look, group(x, y, Element("text", meaning, class_="caption", x=lead, y=12))]
        x += width + 20
    return Drawn(tuple(elements), room, y + LINE + 10)
