"""What is to be written for a group follows from its record and its pods."""

from __future__ import annotations

from nri_policy.cluster.groups.outcome import Replacement
from nri_policy.cluster.groups.reconcile import reconcile
from nri_policy.cluster.groups.record import NO_FAILURE, Group
from nri_policy.cluster.groups.writes import CreateGroup, OpenGate, Write, WriteStatus
from tests.support.placement_world import Play
from tests.unit.cluster.written import HOSTNAME

KEY = ("default", "job-j")
RACK = "example.com/rack"


def follows(play: Play) -> list[Write]:
    """The writes that follow for the group, if no attempt gives it other places."""
    found = reconcile(KEY, play.controller._view)
    return [*found.writes, *found.otherwise]


def test_the_same_follows_each_time_until_a_write_is_pending() -> None:
    play = Play()
    play.world.submit("j", 2, 1, HOSTNAME)
    play.listen()
    for kinds in ([CreateGroup], [], [OpenGate, OpenGate]):
        first, again = follows(play), follows(play)
        assert first == again
        assert [type(each) for each in first if not isinstance(each, WriteStatus)] == kinds
        asked = play.controller.step()
        assert not follows(play), "they wait for the outcome"
        for each in asked:
            play.world.write(each)
        play.listen()


def test_nothing_is_written_while_a_group_is_left_alone_after_a_failure() -> None:
    play = Play()
    play.world.submit("j", 1, 1, HOSTNAME)
    play.listen()
    pause = NO_FAILURE.after_failure(play.now, "a policy")
    play.controller.groups.update(KEY, back_off=pause)
    assert not follows(play)
    play.now = pause.until
    assert follows(play)


def test_a_pause_ends_with_the_pods_of_a_group_that_was_never_there() -> None:
    play = Play()
    play.controller.groups.update(KEY, back_off=NO_FAILURE.after_failure(-60.0, "a policy"))
    play.listen()
    assert KEY in play.controller.groups.records
    found = reconcile(KEY, play.controller._view)
    assert (found.record, found.writes) == (Group(), ())


def placed_on(play: Play, job: str) -> list[str]:
    assignments = play.controller.engine.state.groups["default", f"job-{job}"].status.assignments
    return [place.values[-1] for each in assignments for place in each.domains]


def test_lost_places_are_an_attempt_of_the_caller_whose_write_makes_new_ones_count() -> None:
    play = Play(hosts_in_rack=4)
    play.world.submit("j", 1, 3, RACK)
    play.rest()
    before = placed_on(play, "j")
    play.world.delete("nodes", *before)
    play.listen()
    known = play.controller.engine.state.groups[KEY]
    assert reconcile(KEY, play.controller._view).attempt == Replacement(before)
    assert play.controller.engine.state.groups[KEY] is known
    (write,) = [each for each in play.controller.step() if isinstance(each, WriteStatus)]
    assert write.promised
    assert play.controller.engine.state.groups[KEY] == write.group
    assert placed_on(play, "j") != before


def test_a_group_waits_in_the_queue_once_the_caller_applies_its_record() -> None:
    play = Play()
    play.world.submit("j", 9, 4, RACK)
    for _ in range(2):
        play.step()
        play.listen()
    found = reconcile(KEY, play.controller._view)
    assert found.record.place is not None
    assert KEY not in play.controller.queue
    play.controller.step()
    assert play.controller.queue.rank(KEY) == found.record.place.rank


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
