"""The keyboard of a terminal: one key at a time, without Enter."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

_KEYS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[5~": "page-up", "\x1b[6~": "page-down"}

Moment = tuple[datetime, str]  # and the key that was pressed then; empty for none


@contextmanager
def single_keys() -> Iterator[None]:
    """Within the `with`, deliver each key at once and do not echo it."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def moments() -> Iterator[Moment]:
    """Yield every second when it begins, and every key when it is pressed."""
    while True:
        yield _now(), ""
        end = time.time() // 1 + 1
        while (left := end - time.time()) > 0:
            if key := _read_key(left):
                yield _now(), key


async def pressed_within(seconds: float) -> None:
    """Return when a key is pressed, after *seconds* at the latest."""
    if not sys.stdin.isatty():
        await asyncio.sleep(seconds)
        return
    fd, pressed, loop = sys.stdin.fileno(), asyncio.Event(), asyncio.get_running_loop()

    def take() -> None:
        os.read(fd, 16)
        pressed.set()

    loop.add_reader(fd, take)
    try:
        await asyncio.wait_for(pressed.wait(), seconds)
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(fd)


def _read_key(seconds: float) -> str:
    """Return the key that is pressed within *seconds*; empty if none is."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return ""
    fd = sys.stdin.fileno()
    ready, _, _ = select.select([fd], [], [], seconds)
    if not ready:
        return ""
    text = os.read(fd, 16).decode(errors="replace")
    return _KEYS.get(text, text[:1])


def _now() -> datetime:
    return datetime.now().astimezone()
