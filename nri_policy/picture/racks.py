"""Pictures of a cluster: a block for each rack, a cell for each host, filled as far as it is used.

A cell's colours are those of the groups that have pods there. Where there are too many hosts for a
page, racks in which nothing happens become cells of a block that stands for what they are in, then
all racks do, and so on up: what is drawn is never higher than a few screens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil

from msgspec import Struct

from nri_policy.foundation.wording import counted
from nri_policy.picture.mark import COLOURS
from nri_policy.picture.markup import Element, Verbatim
from nri_policy.picture.svg_parts import LETTER, cut, group

_CELL = 22  # pixels, with the gap
_SIZE = _CELL - 2
_ACROSS = 16  # cells in a row of a block, unless it has very many
_TOP = 22
_GAP = 14
_MOST_ROWS = 40  # of a block
_LARGEST = 1.5  # how much larger a page with room shows a picture

Path = tuple[str, ...]


class Sheet(Struct, frozen=True):
    """What a picture may fill, in pixels, and how the ids of its elements begin."""

    width: int
    height: int
    margin: int
    prefix: str


DRAWN = Sheet(800, 1600, _GAP, "")  # a file, which pages show in a column of text
BROAD = Sheet(1560, 1600, _GAP, "")
NARROW = Sheet(358, 1500, 2, "n-")  # for a phone: a rack of 16 hosts is a row


class Place(Struct, frozen=True, kw_only=True):
    """A domain at one moment; pods are counted at hosts only."""

    path: Path  # outermost first
    share: float  # of its fullest resource, from 0 to 1
    detail: str
    pods: Mapping[str, int]  # by group
    others: int = 0  # pods that are in none of these
    fullest: str = ""  # of its resources, in words
    failed: bool = False
    changed: bool = False

    @property
    def is_touched(self) -> bool:
        """Whether there is something that the picture is about."""
        return bool(self.pods) or self.failed or self.changed


class Map(Struct, frozen=True):
    """A topology at one moment: the names of its levels, and the domains of each."""

    name: str
    levels: Sequence[str]
    places: Sequence[Place]

    def hosts(self) -> Iterator[Place]:
        """Yield the domains of the last level."""
        return (each for each in self.places if len(each.path) == len(self.levels))


class Block(Struct, frozen=True):
    """What is drawn together: the domains of one level in the same domain."""

    path: Path
    title: str
    level: str
    cells: list[Place]
    folded: bool  # whether its cells stand for more than a host each


Legend = Mapping[str, str]  # the class of a group's colour


def legend_of(pods: Mapping[str, int]) -> dict[str, str]:
    """Return the colours of groups: one for each of the largest, and one for the others."""
    largest = sorted(pods, key=lambda name: (-pods[name], name))
    classes = [f"k{colour}" for colour in COLOURS]
    return {name: classes[at] if at < len(classes) else "k-more" for at, name in enumerate(largest)}


def document(cluster: Map, legend: Legend) -> str:
    """Return an SVG file, which needs nothing beside it."""
    styles = Verbatim("style", "picture.css"), Verbatim("style", "racks.css")
    return f"{draw(cluster, legend, DRAWN, frozenset(), *styles)}\n"


def figure(
    cluster: Map, legend: Legend, prefix: str = "", touched: Collection[Path] = frozenset()
) -> Element:
    """Return the pictures for a page, for a screen and for a phone; ids begin with *prefix*.

    *touched* are hosts that other moments touch: they count as touched here too.
    """
    sheets = [
        Sheet(each.width, each.height, each.margin, f"{each.prefix}{prefix}")
        for each in (BROAD, NARROW)
    ]
    broad, narrow = (draw(cluster, legend, sheet, touched) for sheet in sheets)
    return Element(
        "div",
        Element("div", broad, class_="broad"),
        Element("div", narrow, class_="narrow"),
        class_="racks",
    )


def draw(
    cluster: Map, legend: Legend, sheet: Sheet, touched: Collection[Path], *styles: Element
) -> Element:
    """Return the finest picture that is no higher than the sheet."""
    finest: tuple[list[Element], int, int] = ([], 0, 0)
    for blocks in _foldings(cluster, touched):
        finest = _lay_out(blocks, legend, sheet)
        if finest[2] <= sheet.height:
            break
    content, width, height = finest
    return Element(
        "svg",
        *styles,
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        style=f"max-width: {round(_LARGEST * width)}px",
        role="img",
        aria_label=f"topology {cluster.name}: {counted(len([*cluster.hosts()]), 'host')}",
    )


def anchor(path: Path) -> str:
    """Return the id of the block, or the cell, that shows a domain."""
    return f"at-{'/'.join(path)}"


def _foldings(cluster: Map, touched: Collection[Path]) -> Iterator[list[Block]]:
    """Yield the blocks of pictures, from the finest to the coarsest."""
    whole = {each.path: each for each in cluster.places}
    cells, depth = [*cluster.hosts()], len(cluster.levels)
    yield [*_blocks(cluster, cells)]
    while depth > 1:
        active = {each.path for each in cells if each.is_touched or each.path in touched}
        touched = {path[: depth - 1] for path in active}
        kept = [each for each in cells if each.path[: depth - 1] in touched]
        folded = [_fold(whole, members) for members in _by_parent(cells, depth - 1)]
        quiet = [each for each in folded if each.path not in touched]
        if kept and quiet:
            yield [*_blocks(cluster, kept), *_blocks(cluster, quiet)]
        cells, depth = folded, depth - 1
        yield [*_blocks(cluster, cells)]


def _by_parent(cells: Iterable[Place], depth: int) -> Iterator[list[Place]]:
    found: dict[Path, list[Place]] = {}
    for each in cells:
        found.setdefault(each.path[:depth], []).append(each)
    yield from found.values()


def _fold(whole: Mapping[Path, Place], cells: Sequence[Place]) -> Place:
    """Return the domain that *cells* are in, with their pods."""
    domain = whole[cells[0].path[:-1]]
    pods: Counter[str] = Counter()
    for each in cells:
        pods.update(each.pods)
    return Place(
        path=domain.path,
        share=domain.share,
        detail=domain.detail,
        pods=pods,
        others=sum(each.others for each in cells),
        failed=any(each.failed for each in cells),
        changed=any(each.changed for each in cells),
    )


def _blocks(cluster: Map, cells: Sequence[Place]) -> Iterator[Block]:
    for members in _by_parent(cells, -1):
        depth = len(members[0].path)
        folded = depth < len(cluster.levels)
        path, level = members[0].path[:-1], cluster.levels[depth - 1]
        title = " / ".join(path) or cluster.name
        if folded:
            title = f"{title}: {counted(len(members), level)}"
        yield Block(path, title, level, members, folded)


def _lay_out(
    blocks: Sequence[Block], legend: Legend, sheet: Sheet
) -> tuple[list[Element], int, int]:
    """Return blocks side by side, and the width and height that they take."""
    content, y = _key([cell for block in blocks for cell in block.cells], legend, sheet)
    x, right, high = sheet.margin, 40 * _CELL, 0
    for block in blocks:
        columns = _columns(block, sheet)
        room = sheet.width - 2 * sheet.margin
        width = max(columns * _CELL, min(ceil(len(block.title) * LETTER), room))
        drawn, height = _draw(block, columns, width, legend, sheet.prefix)
        if x > sheet.margin and x + width > sheet.width:
            x, y, high = sheet.margin, y + high + _GAP, 0
        id_ = f"{sheet.prefix}{anchor(block.path)}"
        content.append(group(x, y, *drawn, class_="rack", id_=id_ if not block.folded else None))
        x += width + _GAP
        right, high = max(right, x), max(high, height)
    return content, min(right, sheet.width), y + high + _GAP


def _columns(block: Block, sheet: Sheet) -> int:
    """Return how many cells a row has: more where there are many, that it gets broad, not high."""
    most = (sheet.width - 2 * sheet.margin) // _CELL
    wanted = _ACROSS if len(block.cells) <= _ACROSS * _ACROSS else most
    return max(1, min(most, wanted, len(block.cells)))


def _draw(
    block: Block, columns: int, width: int, legend: Legend, prefix: str
) -> tuple[list[Element], int]:
    """Return a block and its height."""
    cells = block.cells
    room = columns * _MOST_ROWS
    if len(cells) > room:
        cells = sorted(cells, key=lambda each: not each.is_touched)[:room]
    drawn = [Element("text", cut(block.title, int(width / LETTER)), class_="title", x=0, y=14)]
    for number, cell in enumerate(cells):
        row, column = divmod(number, columns)
        place = column * _CELL, _TOP + row * _CELL
        id_ = f"{prefix}{anchor(cell.path)}" if block.folded else None
        drawn.append(group(*place, *_cell(cell, legend), class_="host", id_=id_))
    height = _TOP + -(-len(cells) // columns) * _CELL
    if hidden := len(block.cells) - len(cells):
        text = f"and {counted(hidden, block.level)} more"
        drawn.append(Element("text", text, class_="caption", x=0, y=height + 12))
        height += _TOP
    return drawn, height


def _cell(cell: Place, legend: Legend) -> Iterator[Element]:
    """Yield a cell: its height is its use, the widths are by the pods of each group."""
    pods = "".join(f"; {name}: {counted(count, 'pod')}" for name, count in cell.pods.items())
    state = "; not ready" if cell.failed else "; changed" if cell.changed else ""
    yield Element("title", f"{' / '.join(cell.path)}: {cell.detail}{pods}{state}")
    yield Element("rect", class_="room", width=_SIZE, height=_SIZE)
    high = max(2.0, _SIZE * min(1.0, cell.share)) if cell.share > 0 or cell.pods else 0.0
    parts = [(legend[name], count) for name, count in cell.pods.items()]
    if high and (cell.others or not parts):
        parts.append(("used", cell.others or 1))
    x, total = 0.0, sum(count for _, count in parts)
    for class_, count in parts if high else ():
        width = _SIZE * count / total
        size = {"width": f"{width:g}", "height": f"{high:g}"}
        bar = Element("rect", x=f"{x:g}", y=f"{_SIZE - high:g}", **size)
        yield group(0, 0, bar, class_=class_)
        x += width
    if cell.failed or cell.changed:
        class_ = "failed" if cell.failed else "edge"
        yield Element("rect", class_=class_, x=0.5, y=0.5, width=_SIZE - 1, height=_SIZE - 1)
    if cell.failed:
        yield Element("path", class_="failed", d=f"M2,2L{_SIZE - 2},{_SIZE - 2}")
    if cell.pods:
        yield Element("text", cut(str(sum(cell.pods.values())), 3), x=_SIZE / 2, y=14)


def _meanings(cells: Sequence[Place], legend: Legend) -> Iterator[tuple[str, str]]:
    """Yield the classes of squares and what they mean; text alone has none."""
    shown = {name for cell in cells for name in cell.pods}
    named = [(class_, name) for name, class_ in legend.items() if name in shown]
    for class_, name in named:
        if class_ != "k-more":
            yield class_, name.removeprefix("default/")
    if more := sum(class_ == "k-more" for class_, _ in named):
        yield "k-more", counted(more, "other group")
    if not named or any(cell.others for cell in cells):
        yield "used", "other pods" if named else "in use"
    if any(cell.changed for cell in cells):
        yield "edge", "changed"
    if any(cell.failed for cell in cells):
        yield "failed", "not ready"
    yield "", "filled: share of the fullest resource"
    if named:
        yield "", "number: pods of the groups"


def _key(cells: Sequence[Place], legend: Legend, sheet: Sheet) -> tuple[list[Element], int]:
    """Return what the colours mean, in as many lines as it takes, and where the blocks begin."""
    x, y = sheet.margin, _GAP
    drawn: list[Element] = []
    for class_, meaning in _meanings(cells, legend):
        lead = _CELL if class_ else 0
        text = cut(meaning, int((sheet.width - 2 * sheet.margin - lead) / LETTER))
        width = lead + round(len(text) * LETTER) + _GAP
        if x > sheet.margin and x + width > sheet.width:
            x, y = sheet.margin, y + _CELL
        square = Element("rect", width=14, height=14)
        parts = [group(0, 0, square, class_=class_)] if class_ else []
        drawn.append(group(x, y, *parts, Element("text", text, x=lead, y=12), class_="key"))
        x += width
    return drawn, y + _CELL + _GAP
