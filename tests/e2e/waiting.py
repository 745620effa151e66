"""Waiting for what announces itself by no event: the content of cgroup files, an image store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.patience import HANGS

T = TypeVar("T")


def eventually(
    read: Callable[[], T],
    accept: Callable[[T], bool],
    seconds: float = HANGS,
    *,
    every: float = 0.02,
) -> T:
    """Read until *accept* takes the value, and return it; past the deadline, the last one read.

    It reads *every* so many seconds, and for at most half of the time: the rest is for what is
    waited for. The limit is for what never comes: a slow machine needs long.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        value = read()
        now = time.monotonic()
        if accept(value) or now >= deadline:
            return value
        time.sleep(max(every, now - began))
