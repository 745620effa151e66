"""The pool tree with one decision, in SVG: which pool was chosen, and why no other one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from nri_policy.foundation.wording import natural
from nri_policy.picture.markup import Element
from nri_policy.picture.svg import draw
from nri_policy.picture.svg_parts import LETTER, Drawn, cut, group, line, stack
from nri_policy.report import PoolReport

_STEP = 26  # pixels to the right, from a pool to its children
_ROW = 30
_BOX = 22  # height
_LONGEST = 90  # characters of a reason


class DecidedContainer(Struct, frozen=True, kw_only=True):
    """A decision about one container."""

    heading: str
    pools: Sequence[PoolReport]
    chosen: str | None  # pool; None where it was refused
    why_not: Mapping[str, str]  # by pool, of all that were compared


def document(decisions: Sequence[DecidedContainer]) -> str:
    """Return an SVG file with the trees of *decisions*, one below the other."""
    drawn = (stack([line(each.heading, "heading"), _tree(each)]) for each in decisions)
    return draw(drawn, "; ".join(each.heading for each in decisions))


def _tree(decided: DecidedContainer) -> Drawn:
    rows = list(_parents_first(decided.pools))
    row_of = {pool.id: number for number, pool in enumerate(rows)}
    titles = {pool.id: f"{pool.name} · CPUs {pool.cpus}" for pool in rows}
    boxes = {pool.id: pool.depth * _STEP + len(titles[pool.id]) * LETTER + 20 for pool in rows}
    column = max(boxes.values()) + 18
    elements: list[Element] = []
    longest = 0
    for number, pool in enumerate(rows):
        x, y = pool.depth * _STEP, number * _ROW
        if pool.parent is not None:
            left, top = x - _STEP / 2, row_of[pool.parent] * _ROW + _BOX
            path = f"M{left:g} {top}V{y + _BOX / 2:g}H{x}"
            elements.append(Element("path", d=path, class_="branch"))
        chosen = pool.name == decided.chosen
        reason = "chosen" if chosen else decided.why_not.get(pool.name, "")
        reason = cut(reason, _LONGEST)
        longest = max(longest, len(reason))
        text = Element("text", titles[pool.id], class_="title" if chosen else None, x=10, y=15)
        box = Element("rect", class_="box", width=f"{boxes[pool.id] - x:g}", height=_BOX, rx=4)
        class_ = "pool chosen" if chosen else "pool"
        elements += [
            group(x, y, box, text, class_=class_, data_pool=pool.name),
            Element(
                "text", reason, class_="title" if chosen else "caption", x=f"{column:g}", y=y + 15
            ),
        ]
    return Drawn(tuple(elements), column + longest * LETTER, len(rows) * _ROW)


def _parents_first(pools: Sequence[PoolReport], parent: int | None = None) -> Iterator[PoolReport]:
    for pool in sorted(pools, key=lambda pool: natural(pool.name)):
        if pool.parent == parent:
            yield pool
            yield from _parents_first(pools, pool.id)
