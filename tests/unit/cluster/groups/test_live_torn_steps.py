"""Steps of a JobSet that share a rack, are placed as one, and get their places in a write each."""

from __future__ import annotations

import json

import pytest

from nri_policy.cluster.groups.writes import WriteStatus
from tests.support.job_set_play import make_again, run_both, stay
from tests.support.placement_world import Play, empty, racks_of


def leave_after(play: Play, group: str) -> None:
    """Go on until a group gets other places; the write of those of other groups is never done."""
    for _ in range(20):
        play.listen()
        for write in play.controller.step():
            if not isinstance(write, WriteStatus) or write.group.status.unhealthy_nodes:
                play.world.write(write)
            elif write.group.name == group:
                play.world.write(write)
                play.begin()
                return
    raise AssertionError("it gets none")


@pytest.mark.parametrize("written", ["jobset-s", "jobset-s.w"])
def test_steps_of_which_one_has_moved_when_their_leader_dies_share_a_rack(written: str) -> None:
    """Their hosts are in order again before the next leader looks: the others keep their places."""
    play = empty(failure={"failFast": False})
    for host in ("h2", "h3", "h4", "h5"):
        stay(play, host, 4)
    run_both(play)
    assert racks_of(play, "s-") == ["r0", "r0", "r0"]
    nodes = {host: json.dumps(play.world.objects["nodes"][host]) for host in ("h0", "h1")}
    for host in nodes:
        play.world.delete("nodes", host)
    play.world.evict(*nodes)
    make_again(play)
    play.rest()
    for host in ("h2", "h3"):
        play.world.delete("pods", f"on-{host}")
    leave_after(play, written)
    for each in nodes.values():
        play.world.put("nodes", json.loads(each))
    play.rest()
    assert len(racks_of(play, "s-")) == 3
    assert len({*racks_of(play, "s-")}) == 1
