"""Threads are started early: later a process may get no more, as a cgroup limits their number."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def start(thread: threading.Thread) -> None:
    """Start a thread; raises OSError if the process may have no more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise _no_more() from error


def started_pool(count: int) -> ThreadPoolExecutor:
    """Return a pool all of whose threads run; raises OSError if they cannot be started."""
    pool, together = ThreadPoolExecutor(count), threading.Barrier(count)
    try:
        for _ in range(count):  # each waits for all, so the next one takes another thread
            pool.submit(together.wait)
    except RuntimeError as error:
        together.abort()
        pool.shutdown()
        raise _no_more() from error
    return pool


def _no_more() -> OSError:
    return OSError(
        "no more threads can be started: raise the limit of processes (pids.max, TasksMax)"
    )
