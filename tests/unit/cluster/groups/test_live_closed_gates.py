"""Groups between their places and the opening of their gates: none of their pods runs yet."""

from __future__ import annotations

import pytest

from nri_policy.cluster.groups.writes import OpenGate
from tests.support.placement_world import assigned, empty

RACK = "example.com/rack"


@pytest.mark.parametrize("fail_fast", [True, False])
@pytest.mark.parametrize("room", [True, False])
def test_a_group_whose_host_fails_before_any_pod_is_let_go_is_placed_anew(
    room: bool, fail_fast: bool
) -> None:
    """Its rack has no other room. Without room elsewhere, no pod of it is let go."""
    play = empty(failure={"failFast": fail_fast})
    if not room:
        play.world.submit("other", 2, 4, RACK)
        play.rest()
        play.world.submit("one", 2, 4, RACK)
        play.rest()
    play.contested = True  # its gates stay closed
    play.world.submit("j", 2, 4, RACK)
    play.rest()
    (lost, kept) = assigned(play)
    play.world.delete("nodes", lost)
    play.rest()
    play.contested = False
    play.now += 60.0
    play.rest()
    assert play.world.let_go("j") == ((2, 2) if room else (0, 2))
    assert assigned(play).keys() == ({"h2", "h3"} if room else set() if fail_fast else {lost, kept})
    assert play.world.disrupted == []
    if not room:
        play.world.finish("one")
        play.rest()
        assert play.world.let_go("j") == (2, 2)


def test_a_gate_that_was_not_opened_is_opened_after_a_pause_whatever_is_seen_before() -> None:
    """While the pause lasts gates are closed, there is news, and then they are not."""
    play = empty()
    play.world.submit("j", 2, 4, RACK)
    play.world.refuse = lambda write: (
        "no" * (isinstance(write, OpenGate) and write.opening.pod.name == "j-1")
    )
    play.rest()
    assert play.world.let_go("j") == (1, 2)
    play.world.refuse = lambda _write: ""
    play.contested = True
    play.world.put("pods", play.world.objects["pods"]["j-0"])
    play.rest()
    play.contested = False
    play.rest()
    play.now += 60.0
    play.rest()
    assert play.world.let_go("j") == (2, 2)
