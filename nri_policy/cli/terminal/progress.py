"""Progress of long work: a line on stderr that moves, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn


@contextmanager
def progress(
    what: str, total: int | None = None, *, shown: bool = True
) -> Iterator[Callable[[], None]]:
    """Yield a callback for each of *total* parts of the work; None if their number is unknown."""
    bar = [BarColumn()] if total is not None else [SpinnerColumn()]
    with Progress(
        TextColumn(what),
        *bar,
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not (shown and sys.stderr.isatty()),
    ) as line:
        task = line.add_task(what, total=total)
        yield lambda: line.advance(task)
