"""Steps of a JobSet that share a rack, and lose hosts of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.job_set_play import RACK, SHARED, make_again, run_both, start, stay
from tests.support.placement_world import Play, empty, hosts_of, racks_of


def test_a_driver_whose_host_fails_goes_back_to_the_rack_of_its_workers() -> None:
    """It has lost all of its group; it would fit best in the other rack."""
    play = empty(hosts_in_rack=3)
    run_both(play)
    stay(play, "h3", 4)
    stay(play, "h4", 4)
    stay(play, "h5", 2)
    (lost,) = hosts_of(play, "s-driver-0")
    kept = hosts_of(play, "s-w-0")
    assert {lost, *kept} < {"h0", "h1", "h2"}
    assert lost not in kept
    play.world.delete("nodes", lost)
    play.world.delete("pods", "s-driver-0-0")
    start(play, "driver", 1, 2, asks=SHARED)
    play.rest()
    assert hosts_of(play, "s-driver-0").keys() < {"h0", "h1", "h2"}
    assert hosts_of(play, "s-w-0") == kept


def in_rack_0(**failure: Any) -> Play:
    """Run a driver and its workers in rack r0; rack r2 has room for the driver, r1 for none."""
    play = empty(failure=failure)
    for host in ("h2", "h3", "h4", "h5"):
        stay(play, host, 4)
    run_both(play)
    assert racks_of(play, "s-") == ["r0", "r0", "r0"]
    stay(play, "h4", 2)
    play.rest()
    return play


def lose(play: Play, *hosts: str, deleted: bool) -> None:
    """Have hosts fail at once, with their pods, which the Jobs make anew."""
    for host in hosts:
        if deleted:
            play.world.delete("nodes", host)
        else:
            item = play.world.objects["nodes"][host]
            item["status"]["conditions"][0]["status"] = "False"
            play.world.put("nodes", item)
    play.world.evict(*hosts)
    make_again(play)
    play.rest()


@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize("fail_fast", [True, False])
def test_steps_that_lose_all_at_once_go_where_both_have_room(
    fail_fast: bool, deleted: bool
) -> None:
    """The driver alone would fit best where the workers never fit."""
    play = in_rack_0(failFast=fail_fast)
    for host in ("h2", "h3"):
        play.world.delete("pods", f"on-{host}")
    play.rest()
    lose(play, "h0", "h1", deleted=deleted)
    assert racks_of(play, "s-") == ["r1", "r1", "r1"]


def test_a_step_does_not_wait_for_one_on_a_host_that_lost_its_label() -> None:
    """Of the workers one lost its host, and the host of the other one is in no rack any more."""
    play = empty(hosts_in_rack=3, failure={"failFast": False})
    for host, cpus in {"h0": 2, "h1": 2, "h2": 2, "h3": 4, "h4": 4, "h5": 4}.items():
        stay(play, host, cpus)
    run_both(play)
    (driver,), (first, second) = hosts_of(play, "s-driver-0"), sorted(hosts_of(play, "s-w-0"))
    assert {driver, first, second} == {"h0", "h1", "h2"}
    play.world.delete("pods", "on-h5")
    stay(play, "h5", 2)
    item = play.world.objects["nodes"][first]
    del item["metadata"]["labels"][RACK]
    play.world.put("nodes", item)
    lose(play, driver, second, deleted=False)
    assert hosts_of(play, "s-driver-0").keys() == {"h5"}


@pytest.mark.parametrize("deleted", [True, False])
def test_steps_that_lose_all_at_once_wait_until_both_have_room(deleted: bool) -> None:
    play = in_rack_0(failFast=False)
    lose(play, "h0", "h1", deleted=deleted)
    assert racks_of(play, "s-") == []
    driver, workers = (play.world.group(name).status for name in ("jobset-s", "jobset-s.w"))
    assert driver.state == workers.state == "Degraded"
    assert driver.message.startswith(
        "no rack holds all pod sets together; in rack r2, jobset-s.w/w finds no room beside driver:"
    )
    for host in ("h2", "h3"):
        play.world.delete("pods", f"on-{host}")
    play.rest()
    assert racks_of(play, "s-") == ["r1", "r1", "r1"]


def test_a_step_that_lost_all_follows_one_that_moves_later() -> None:
    """The host of the workers is not ready, but they run on for a while; the driver waits."""
    play = in_rack_0(failFast=False)
    for host in ("h2", "h3"):
        play.world.delete("pods", f"on-{host}")
    driver, workers = (set(hosts_of(play, f"s-{kind}-0")) for kind in ("driver", "w"))
    assert driver != workers
    for host in (*driver, *workers):
        item = play.world.objects["nodes"][host]
        item["status"]["conditions"][0]["status"] = "False"
        play.world.put("nodes", item)
    play.world.evict(*driver)
    make_again(play)
    play.rest()
    assert racks_of(play, "s-driver") == []
    play.world.evict(*workers)
    make_again(play)
    play.rest()
    assert racks_of(play, "s-") == ["r1", "r1", "r1"]
