"""What is to be written for a group follows from its record and its pods."""

from __future__ import annotations

from nri_policy.cluster.groups.reconcile import reconcile
from nri_policy.cluster.groups.record import NO_FAILURE
from nri_policy.cluster.groups.writes import CreateGroup, OpenGate, WriteStatus
from tests.support.placement_world import Play
from tests.unit.cluster.written import HOSTNAME

KEY = ("default", "job-j")
RACK = "example.com/rack"


def test_the_same_follows_each_time_until_a_write_is_pending() -> None:
    play = Play()
    play.world.submit("j", 2, 1, HOSTNAME)
    play.listen()
    view = play.controller._view
    for kinds in ([CreateGroup], [], [OpenGate, OpenGate]):
        first, again = ([*reconcile(KEY, view)] for _ in range(2))
        assert first == again
        assert [type(each) for each in first if not isinstance(each, WriteStatus)] == kinds
        asked = play.controller.step()
        assert not [*reconcile(KEY, view)], "they wait for the outcome"
        for each in asked:
            play.world.write(each)
        play.listen()


def test_nothing_is_written_while_a_group_is_left_alone_after_a_failure() -> None:
    play = Play()
    play.world.submit("j", 1, 1, HOSTNAME)
    play.listen()
    pause = NO_FAILURE.after_failure(play.now, "a policy")
    play.controller.groups.update(KEY, back_off=pause)
    assert not [*reconcile(KEY, play.controller._view)]
    play.now = pause.until
    assert [*reconcile(KEY, play.controller._view)]


def test_a_pause_ends_with_the_pods_of_a_group_that_was_never_there() -> None:
    play = Play()
    play.controller.groups.update(KEY, back_off=NO_FAILURE.after_failure(-60.0, "a policy"))
    assert not [*reconcile(KEY, play.controller._view)]
    assert not play.controller.groups.records


def placed_on(play: Play, job: str) -> list[str]:
    assignments = play.controller.engine.state.groups["default", f"job-{job}"].status.assignments
    return [place.values[-1] for each in assignments for place in each.domains]


def test_new_places_count_when_the_caller_applies_the_write() -> None:
    play = Play(hosts_in_rack=4)
    play.world.submit("j", 1, 3, RACK)
    play.rest()
    before = placed_on(play, "j")
    play.world.delete("nodes", *before)
    play.listen()
    known = play.controller.engine.state.groups[KEY]
    first, again = (
        [each for each in reconcile(KEY, play.controller._view) if isinstance(each, WriteStatus)]
        for _ in range(2)
    )
    assert first == again
    (write,) = first
    assert write.promised
    assert play.controller.engine.state.groups[KEY] is known
    play.controller.step()
    assert play.controller.engine.state.groups[KEY] == write.group
    assert placed_on(play, "j") != before


def test_groups_of_one_step_get_different_hosts() -> None:
    """Each would get the same host if the other were not counted yet."""
    play = Play(hosts_in_rack=4)
    for job in ("j", "k"):
        play.world.submit(job, 1, 3, RACK)
    play.rest()
    before = placed_on(play, "j") + placed_on(play, "k")
    for host in before:
        play.world.delete("nodes", host)
    play.listen()
    play.controller.step()
    assert len({*before, *placed_on(play, "j"), *placed_on(play, "k")}) == 4
