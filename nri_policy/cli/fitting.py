"""Tables that fit: where the terminal is too narrow, the least important columns go first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ENDLESS = 100_000  # columns


class Columns:
    """A table without lines. What does not fit into a cell is folded.

    Of the *dispensable* columns, the least important first, as many are left out as it takes to
    keep the words of all others whole; a line below says which.
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
        """Add a row with a cell for each column."""
        self._rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table, left_out = self._fitted(console, options)
        yield table
        if left_out:
            yield Text(f"left out in this width: {', '.join(left_out)}", "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._fitted(console, options)[0])

    def _fitted(self, console: Console, options: ConsoleOptions) -> tuple[Table, Sequence[str]]:
        wide = options.update(width=_ENDLESS)
        for count in range(len(self._dispensable) + 1):
            left_out = self._dispensable[:count]
            table = self._table(left_out)
            if Measurement.get(console, wide, table).minimum <= options.max_width:
                break
        return table, left_out

    def _table(self, left_out: Collection[str]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        kept = [at for at, name in enumerate(self._names) if name not in left_out]
        for name in (self._names[at] for at in kept):
            table.add_column(
                Text(name),
                justify="right" if name in self._right else "left",
                overflow="fold",
                no_wrap=name in self._whole,
            )
        for cells, style in self._rows:
            table.add_row(*(cells[at] for at in kept), style=style)
        return table
