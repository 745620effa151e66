"""The controller of placement groups in a small, strict cluster, killed between any two writes.

The job controller makes a Job's pods and cleans up after it; the scheduler takes pods without gates
and honours their selectors; both are this test's own. What must hold after every single write: no
pod is let go without a place in an assignment that is stored, and no place is given twice; nobody
else's pod is touched. And at rest: a group's pods have all been let go, or none.
"""

from __future__ import annotations

import pytest

from nri_policy.cluster.writes import WriteStatus
from tests.support.placement_world import Play, tell
from tests.unit.cluster.objects import HOSTNAME


@pytest.mark.parametrize("seed", range(15))
def test_no_group_is_half_placed_and_nothing_is_promised_twice(seed: int) -> None:
    play = Play(seed)
    chance, world = play.chance, play.world
    jobs: list[str] = []
    for number in range(40):
        what = chance.random()
        if what < 0.4:
            jobs.append(f"j{number}")
            level = chance.choice(["example.com/rack", HOSTNAME])
            world.submit(jobs[-1], chance.randint(1, 6), chance.randint(1, 3), level)
        elif what < 0.55 and jobs:
            world.finish(jobs.pop(chance.randrange(len(jobs))))
        elif what < 0.6:
            world.schedule()
        play.now += chance.choice([0.0, 1.0, 30.0])
        play.listen(chance.choice([None, 0, 1, 3]))
        play.step(kill=0.2)
    play.rest()
    placed = 0
    for job in jobs:
        gone, every = world.let_go(job)
        assert gone in (0, every), job
        stored = world.objects["groups"][f"job-{job}"]["status"]
        assert bool(gone) == bool(stored["assignments"]), (job, stored)
        assert stored["state"] == ("Running" if gone else stored["state"])
        placed += bool(gone)
        if not gone:
            assert "allows to fit" in stored["message"] or "doesn't allow" in stored["message"]
    assert placed or not jobs
    assert play.kills


def test_ranks_are_in_order_of_the_assignment() -> None:
    play = Play(0)
    play.world.submit("j", 6, 1, "example.com/rack")
    play.rest()
    pods = play.world.objects["pods"]
    hosts = [pods[f"j-{at}"]["spec"]["nodeSelector"][HOSTNAME] for at in range(6)]
    assert hosts == sorted(hosts)
    assert len({*hosts}) == 2


def test_a_large_group_gets_its_place_at_last() -> None:
    """Small Jobs come and go all the time; after the timeout they wait until the large one fits."""
    play = Play(1)
    for number in range(3):
        play.world.submit(f"old{number}", 7 - (number == 0), 1, "example.com/rack")
    play.rest()
    play.world.submit("large", 7, 1, "example.com/rack")
    play.rest()
    assert play.world.let_go("large") == (0, 7)
    play.now = 601.0
    play.world.submit("small", 2, 1, "example.com/rack")
    play.world.finish("old2")
    play.rest()
    assert play.world.let_go("large")[0] == 7


def test_a_list_that_comes_again_takes_no_promise_back() -> None:
    """What was asked to be written, and is not seen yet, is promised all the same."""
    play = Play(2)
    for name in "abcd":
        play.world.submit(name, 7, 1, "example.com/rack")
    play.listen()
    play.step()
    play.listen()
    asked = [each for each in play.controller.step() if isinstance(each, WriteStatus)]
    assert sum(bool(each.group.status.assignments) for each in asked) == 3
    for name in play.world.objects["groups"]:
        tell(play.controller, play.world, "groups", name)
    play.controller.queue.changed()
    assert not [each for each in play.controller.step() if isinstance(each, WriteStatus)]
