"""Groups of lower priority leave, as a whole, for one that waits; off by default."""

from __future__ import annotations

from typing import Any

from tests.support.placement_world import Object, Play, empty

RACK = "example.com/rack"
ON: Object = {"groups": {"preemption": True}}


def full(**spec: Any) -> Play:
    """Three racks of 8 CPUs, each with a group: low with 8, younger with 8, high with 7."""
    play = empty(**spec)
    for name, pods, priority in (("low", 8, 1), ("younger", 8, 1), ("high", 7, 5)):
        play.world.submit(name, pods, 1, RACK, priority=priority)
        play.rest()
    return play


def running(play: Play) -> set[str]:
    return {
        job
        for job in play.world.objects["jobs"]
        if play.world.group(f"job-{job}").status.state == "Running"
    }


def test_it_is_off_by_default() -> None:
    play = full()
    play.world.submit("urgent", 6, 1, RACK, priority=9)
    play.rest()
    assert running(play) == {"low", "younger", "high"}
    assert "allows to fit only 1 out of 6" in play.world.group("job-urgent").status.message


def test_the_youngest_of_the_lowest_priority_leaves_as_a_whole() -> None:
    play = full(**ON)
    world = play.world
    world.submit("urgent", 6, 1, RACK, priority=4)
    play.rest()
    assert running(play) == {"low", "high", "urgent"}
    assert not world.pods_of("younger")
    assert ("job-younger", "Preempted") in world.events
    assert ("younger-0", "Preempted") in world.events
    assert [name for name, _ in world.disrupted] == [f"younger-{at}" for at in range(8)]
    _, condition = world.disrupted[0]
    assert (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
    assert condition["reason"] == "Preempted"
    assert play.controller.placer.statistics.preemptions == 1
    world.control_jobs()  # its pods come again, and wait
    play.rest()
    assert world.let_go("younger") == (0, 8)
    status = world.group("job-younger").status
    assert (status.state, status.evicted) == ("Waiting", "")
    world.finish("urgent")
    play.rest()
    assert running(play) == {"low", "high", "younger"}


def test_who_is_about_to_change_leaves_once_that_is_seen() -> None:
    """Nothing else happens then that could help the one that waits."""
    play = full(**ON)
    world = play.world
    world.submit("urgent", 6, 1, RACK, priority=4)
    play.listen()
    play.step()
    world.put("pods", world.objects["pods"]["younger-0"] | {"status": {"phase": "Failed"}})
    play.rest()
    assert running(play) == {"low", "high", "urgent"}


def test_nobody_leaves_for_one_of_the_same_priority_or_in_vain() -> None:
    play = full(**ON)
    play.world.submit("equal", 6, 1, RACK, priority=1)
    play.world.submit("huge", 9, 1, RACK, priority=9)
    play.rest()
    assert running(play) == {"low", "younger", "high"}


def test_what_was_freed_is_kept_for_whom_it_was_freed() -> None:
    """Pods take their time to end; a small group that waits does not take the room meanwhile."""
    play = full(**ON)
    world = play.world
    world.slow = True
    world.submit("urgent", 8, 1, RACK, priority=4)
    world.submit("small", 2, 1, RACK)
    play.rest()
    assert running(play) == {"low", "high"}
    ending = [*world.pods_of("younger")]
    assert len(ending) == 8
    for name in ending[:4]:
        world.delete("pods", name)
        play.rest()
    assert running(play) == {"low", "high"}
    play.begin()  # a new leader, which must notice that victims are leaving
    for name in ending[4:]:
        world.delete("pods", name)
        play.rest()
    assert running(play) == {"low", "high", "urgent"}
    assert world.let_go("small") == (0, 2)
