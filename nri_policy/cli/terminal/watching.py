"""Watching: what a command shows, shown again every second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress

import click

watch_option = click.option(
    "-w", "--watch", is_flag=True, help="Repeat every second, until Ctrl-C."
)


def repeat(show: Callable[[], None], *, watch: bool) -> None:
    """Call *show*; if asked to *watch*, call it every second until Ctrl-C."""
    show()
    with suppress(KeyboardInterrupt):
        while watch:
            time.sleep(1.0)
            if sys.stdout.isatty():
                click.clear()
            show()
