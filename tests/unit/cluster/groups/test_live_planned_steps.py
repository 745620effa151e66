"""The first steps of a JobSet leave room for those to come, if a rack has it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.job_set_play import (
    PREFERRED,
    SHARED,
    after,
    complete,
    job_set,
    sharing,
    start,
    stay,
)
from tests.support.placement_world import Play, empty, racks_of


def declare(play: Play, asks: Any) -> None:
    """Make a JobSet of a driver and two workers, who start after it."""
    order = {"startupPolicyOrder": "InOrder"}
    job_set(play, sharing("driver", 1, asks), sharing("w", 2, asks), startupPolicy=order)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("asks", [SHARED, PREFERRED])
def test_a_driver_goes_where_its_workers_fit_too(asks: Any, late: bool) -> None:
    """By itself it would fit best in rack r0. The JobSet may be seen after its pod."""
    play = empty()
    stay(play, "h0", 2)
    stay(play, "h1", 4)
    if not late:
        declare(play, asks)
    start(play, "driver", 1, 2, asks=asks)
    play.rest()
    if late:
        assert racks_of(play, "s-") == []
        declare(play, asks)
        play.rest()
    start(play, "w", 2, 2, asks=asks)
    play.rest()
    assert racks_of(play, "s-") == ["r1", "r1", "r1"]


@pytest.mark.parametrize("asks", [SHARED, PREFERRED])
def test_a_driver_does_not_wait_for_room_for_its_workers(asks: Any) -> None:
    play = empty()
    for host, cpus in {"h0": 2, "h1": 4, "h2": 4, "h4": 4}.items():
        stay(play, host, cpus)
    declare(play, asks)
    start(play, "driver", 1, 2, asks=asks)
    play.rest()
    assert racks_of(play, "s-") == ["r0"]


def test_a_driver_leaves_room_for_all_pods_of_all_steps() -> None:
    """Rack r0 has room for the driver, r1 for it and either both Jobs of w or x, r2 for all."""
    play = empty()
    for host, cpus in {"h0": 2, "h1": 4, "h2": 2}.items():
        stay(play, host, cpus)
    w = sharing("w", 1, **after("driver", "Ready")) | {"replicas": 2}
    job_set(play, sharing("driver", 1), w, sharing("x", 1, **after("w", "Ready")))
    start(play, "driver", 1, 4, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-") == ["r2"]


def test_steps_leave_room_for_those_that_run_beside_them() -> None:
    """Not for those that start once others are complete, or after such ones."""
    play = empty()
    stay(play, "h0", 2)
    stay(play, "h1", 4)
    last = sharing("w", 2, **after("main", "Ready"))
    job_set(play, sharing("a", 1), sharing("main", 1, **after("a", "Complete")), last)
    start(play, "a", 1, 3, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-") == ["r0"]
    complete(play, "a")
    play.rest()
    start(play, "main", 1, 3, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-main") == ["r1"]


def test_a_later_step_with_a_malformed_request_leaves_the_first_alone() -> None:
    play = empty()
    stay(play, "h0", 2)
    stay(play, "h1", 4)
    bad = SHARED | {"kueue.x-k8s.io/podset-slice-size": "x"}
    job_set(play, sharing("driver", 1), sharing("w", 2, bad, **after("driver", "Ready")))
    start(play, "driver", 1, 2, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-") == ["r0"]
