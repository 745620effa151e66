from __future__ import annotations

import threading

import pytest

from nri_policy.foundation.threads import start, started_pool
from tests.support.patience import HANGS


def refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_pool_works_where_no_more_threads_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, together = started_pool(3), threading.Barrier(3)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    waiting = [pool.submit(together.wait, HANGS) for _ in range(6)]
    assert sorted(each.result() for each in waiting) == [0, 0, 1, 1, 2, 2]
    pool.shutdown()


def test_threads_that_cannot_be_started_are_an_os_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, real, started = {*threading.enumerate()}, threading.Thread.start, list[object]()

    def refuse_the_third(thread: threading.Thread) -> None:
        if len(started) == 2:
            refuse(thread)
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_third)
    with pytest.raises(OSError, match=r"no more threads can be started: raise .*pids\.max"):
        started_pool(3)
    assert {*threading.enumerate()} <= before  # those of an earlier test may end
    with pytest.raises(OSError, match="no more threads"):
        start(threading.Thread())
