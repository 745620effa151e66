"""What is to be written for a group follows from its record and its pods."""

from __future__ import annotations

from nri_policy.cluster.groups.reconcile import reconcile
from nri_policy.cluster.groups.record import NO_FAILURE
from nri_policy.cluster.groups.writes import CreateGroup, OpenGate, WriteStatus
from tests.support.placement_world import Play
from tests.unit.cluster.written import HOSTNAME

KEY = ("default", "job-j")


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
