"""The picture of docs/architecture.md: the rooms, and the way of a CreateContainer."""

from __future__ import annotations

from typing import NamedTuple

from nri_policy.picture.markup import Element, Verbatim

WIDTH, HEIGHT = 920, 430


class Box(NamedTuple):
    """A program or a room."""

    x: int
    y: int
    width: int
    height: int
    title: str
    caption: str = ""


BOXES = (
    Box(10, 120, 110, 60, "kubelet"),
    Box(180, 120, 150, 60, "runtime", "containerd, CRI-O"),
    Box(370, 10, 540, 410, "daemon"),
    Box(390, 120, 140, 60, "nri", "wire and plugin"),
    Box(600, 120, 150, 60, "engine", "decides, no I/O"),
    Box(600, 215, 150, 50, "workload, pools"),
    Box(600, 280, 150, 50, "hardware, settings"),
    Box(600, 345, 150, 50, "kernels", "Cython"),
    Box(600, 35, 150, 50, "store", "grants, journal"),
    Box(780, 120, 120, 60, "report", "documents"),
    Box(780, 35, 120, 50, "audit, nrt"),
    Box(780, 215, 120, 50, "control", "gRPC"),
    Box(390, 35, 140, 50, "kubelet", "devices of pods"),
    Box(390, 280, 140, 50, "instrumentation", "logs, metrics"),
    Box(10, 280, 110, 60, "sysfs, procfs"),
    Box(180, 280, 150, 60, "nri-policy", "the command line"),
)
STEPS = (  # number, from, to
    (1, (120, 140), (180, 140)),
    (2, (330, 135), (390, 135)),
    (3, (530, 135), (600, 135)),
    (4, (675, 120), (675, 85)),
    (5, (600, 165), (530, 165)),
    (6, (390, 165), (330, 165)),
    (7, (750, 150), (780, 150)),
)


def picture() -> str:
    """Return the text of the SVG file."""
    parts = [part for box in BOXES for part in _box(box)]
    parts += [part for number, start, end in STEPS for part in _step(number, start, end)]
    size: dict[str, str | float] = {"width": WIDTH, "height": HEIGHT, "role": "img"}
    title = Element("title", "Rooms of the daemon, and the way of a CreateContainer")
    style = Verbatim("style", "picture.css")
    svg = Element(
        "svg",
        title,
        style,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        **size,
    )
    return f"{svg}\n"


def _box(box: Box) -> tuple[Element, ...]:
    frame = Element(
        "rect", class_="box", x=box.x, y=box.y, width=box.width, height=box.height, rx=6
    )
    title = Element("text", box.title, x=box.x + 10, y=box.y + 20)
    caption = Element("text", box.caption, class_="caption", x=box.x + 10, y=box.y + 38)
    return (frame, title, caption) if box.caption else (frame, title)


def _step(number: int, start: tuple[int, int], end: tuple[int, int]) -> tuple[Element, ...]:
    (x1, y1), (x2, y2) = start, end
    arrow = Element("line", class_="box", x1=x1, y1=y1, x2=x2, y2=y2, style="stroke: var(--moved)")
    # its end, where a triangle would need to know the direction
    head = Element("circle", cx=x2, cy=y2, r=3, style="fill: var(--moved)")
    middle = (x1 + x2) // 2, (y1 + y2) // 2
    label = Element("text", str(number), x=middle[0] - 3, y=middle[1] - 5)
    if x1 == x2:
        label = Element("text", str(number), x=middle[0] + 6, y=middle[1] + 4)
    return arrow, head, label
