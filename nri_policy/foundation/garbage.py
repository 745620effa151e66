"""Pauses of Python's garbage collection, where much is made and nothing of it dropped."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Have no garbage collected within the context, nor what was made there looked through later.

    Collections look through all objects again and again while many are made: most of the time of
    reading 100,000 documents, and a part of that of importing modules.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()  # what was made stays: the next collections need not look through it
            gc.enable()
