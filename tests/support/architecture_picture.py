"""The picture of docs/architecture.md: packages, and the path of a CreateContainer.

Arrows with numbers are the steps of the request; each other arrow shows where data goes.
"""

from __future__ import annotations

from typing import NamedTuple

from nri_policy.picture.markup import Element, Verbatim

WIDTH, HEIGHT = 1010, 500


class Box(NamedTuple):
    """A program, or packages."""

    x: int
    y: int
    width: int
    height: int
    title: str
    caption: str = ""


BOXES = (
    Box(10, 120, 110, 60, "kubelet"),
    Box(180, 120, 150, 60, "runtime", "containerd, CRI-O"),
    Box(180, 215, 150, 50, "cgroups", "of containers"),
    Box(370, 10, 630, 410, "daemon", "connects and starts all of these"),
    Box(390, 120, 120, 60, "nri", "the protocol"),
    Box(540, 120, 120, 60, "plugin", "events"),
    Box(690, 120, 130, 60, "node", "one at a time"),
    Box(850, 120, 130, 60, "report, picture", "documents"),
    Box(390, 60, 120, 45, "kubelet, dra", "pods' devices"),
    Box(690, 35, 130, 50, "store", "grants, journal"),
    Box(850, 35, 130, 50, "audit, nrt"),
    Box(690, 215, 130, 60, "engine", "decides, no I/O"),
    Box(850, 215, 130, 50, "control", "gRPC"),
    Box(690, 290, 130, 50, "workload, pools"),
    Box(690, 355, 130, 50, "native", "Cython"),
    Box(390, 215, 120, 50, "systemd", "keeps cpusets"),
    Box(390, 280, 120, 50, "observability", "logs, metrics"),
    Box(390, 345, 120, 60, "hardware", "and settings"),
    Box(10, 345, 110, 60, "sysfs, procfs"),
    Box(850, 440, 130, 50, "cli", "the commands"),
)
STEPS = (  # number in the page's list, from, to
    (1, (120, 140), (180, 140)),
    (2, (330, 135), (390, 135)),
    (2, (510, 135), (540, 135)),
    (3, (660, 135), (690, 135)),
    (3, (755, 180), (755, 215)),
    (4, (755, 120), (755, 85)),
    (5, (690, 168), (660, 168)),
    (5, (540, 168), (510, 168)),
    (5, (390, 168), (330, 168)),
    (6, (255, 180), (255, 215)),
    (7, (820, 150), (850, 150)),
)
USES = (  # from, to: who gives what it has
    ((510, 90), (560, 120)),  # devices to the plugin
    ((800, 120), (870, 85)),  # changes to audit and nrt
    ((700, 180), (510, 295)),  # and to logs and metrics
    ((755, 275), (755, 290)),  # the engine stands on workload and pools
    ((755, 340), (755, 355)),  # these on compiled kernels
    ((915, 180), (915, 215)),  # documents to control
    ((915, 440), (915, 265)),  # questions of the commands
    ((120, 375), (390, 375)),  # the machine's files
    ((510, 360), (690, 260)),  # the machine, to the engine
    ((390, 240), (330, 240)),  # systemd keeps the cpusets of containers
)


def picture() -> str:
    """Return the text of the SVG file."""
    parts = [part for box in BOXES for part in _box(box)]
    parts += [part for start, end in USES for part in _arrow(start, end, "var(--dim)")]
    parts += [part for number, start, end in STEPS for part in _step(number, start, end)]
    size: dict[str, str | float] = {"width": WIDTH, "height": HEIGHT, "role": "img"}
    title = Element("title", "Packages of the daemon, and the path of a CreateContainer request")
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
    middle = (x1 + x2) // 2, (y1 + y2) // 2
    label = Element("text", str(number), x=middle[0] - 3, y=middle[1] - 5)
    if x1 == x2:
        label = Element("text", str(number), x=middle[0] + 6, y=middle[1] + 4)
    return (*_arrow(start, end, "var(--moved)"), label)


def _arrow(start: tuple[int, int], end: tuple[int, int], colour: str) -> tuple[Element, Element]:
    (x1, y1), (x2, y2) = start, end
    arrow = Element("line", class_="box", x1=x1, y1=y1, x2=x2, y2=y2, style=f"stroke: {colour}")
    # its end, where a triangle would need to know the direction
    return arrow, Element("circle", cx=x2, cy=y2, r=3, style=f"fill: {colour}")
