"""Tables that fit: where the terminal is too narrow, the least important columns go first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ENDLESS = 100_000  # columns
_GAP = 2  # between columns
_NAMES = frozenset({"container", "pod", "name", "group"})  # heads of columns that give way last


class Columns:
    """A table without lines. What does not fit into a cell is folded.

    Of the *dispensable* columns, the least important first, as many are left out as it takes to
    keep the words of all others whole; a line below says which. rich alone would squeeze them all.
    """

    def __init__(
        self,
        *names: str,
        right: Collection[str] = (),
        whole: Collection[str] = (),
        dispensable: Sequence[str] = (),
    ) -> None:
        self._names = names
        self._right = right
        self._whole = whole  # never folded
        self._dispensable = dispensable
        self._rows: list[tuple[tuple[RenderableType, ...], str]] = []

    def add_row(self, *cells: RenderableType, style: str = "") -> None:
        """Add a row of cells; missing cells at the end stay empty."""
        missing = len(self._names) - len(cells)
        self._rows.append(((*cells, *[""] * missing), style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needs = [self._need(at, console, options) for at in range(len(self._names))]
        left_out = self._omit(needs, options.max_width)
        kept = [at for at, name in enumerate(self._names) if name not in left_out]
        names = [at for at, one in enumerate(kept) if self._names[one] in _NAMES]
        yield self._table(kept, _widths([needs[at] for at in kept], options.max_width, names))
        if left_out:
            yield Text(f"left out in this width: {', '.join(left_out)}", "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        needs = [self._need(at, console, options) for at in range(len(self._names))]
        widest = sum(need.maximum for need in needs) + _GAP * (len(needs) - 1)
        return Measurement(0, widest).with_maximum(options.max_width)

    def _need(self, at: int, console: Console, options: ConsoleOptions) -> Measurement:
        """Return how broad a column is at least, with its words whole, and at most."""
        wide = options.update(width=_ENDLESS)
        cells = [Text(self._names[at]), *(cells[at] for cells, _ in self._rows)]
        each = [Measurement.get(console, wide, cell) for cell in cells]
        most = max(measured.maximum for measured in each)
        whole = self._names[at] in self._whole
        return Measurement(most if whole else max(one.minimum for one in each), most)

    def _omit(self, needs: Sequence[Measurement], width: int) -> Sequence[str]:
        for count in range(len(self._dispensable)):
            left_out = self._dispensable[:count]
            named = zip(self._names, needs, strict=True)
            least = [need.minimum for name, need in named if name not in left_out]
            if sum(least) + _GAP * (len(least) - 1) <= width:
                return left_out
        return self._dispensable

    def _table(self, kept: Sequence[int], widths: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
        for at, width in zip(kept, widths, strict=True):
            table.add_column(
                Text(self._names[at]),
                justify="right" if self._names[at] in self._right else "left",
                overflow="fold",
                width=width,
            )
        for cells, style in self._rows:
            table.add_row(*(cells[at] for at in kept), style=style)
        return table


def _widths(needs: Sequence[Measurement], width: int, names: Collection[int] = ()) -> list[int]:
    """Return how broad columns are: the broadest give way, and words only if there is no other.

    Columns of *names*, by number, give way last: a name that is broken is not found.
    """
    room = width - _GAP * (len(needs) - 1)
    widths = [need.maximum for need in needs]
    whole = [need.minimum for need in needs]
    kept = [need.maximum if at in names else whole[at] for at, need in enumerate(needs)]
    for least in (kept, whole, [1] * len(needs)):
        while sum(widths) > room and (wide := [at for at, w in enumerate(widths) if w > least[at]]):
            widths[max(wide, key=lambda at: widths[at])] -= 1
    return widths
