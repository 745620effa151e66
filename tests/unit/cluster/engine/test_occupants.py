"""Hosts that are set aside, and what ends there."""

from __future__ import annotations

from collections.abc import Callable

from nri_policy.cluster.engine.occupants import Occupants
from nri_policy.cluster.objects.pod import read_pod
from tests.unit.cluster.engine.test_preemption import engine, filler
from tests.unit.cluster.written import pod


def test_only_ends_on_its_own_hosts_are_progress_of_a_hold() -> None:
    made = engine(filler("here"), filler("there"))
    for name, node in (("one", "a1"), ("other", "b1")):
        made.state.set_pod(read_pod(pod(name, node, cpu=1), ""))
    occupants = Occupants(made.state, ["a1", "a2"])
    elsewhere: list[Callable[[], object]] = [
        lambda: made.state.remove_group("default", "there"),
        lambda: made.state.remove_pod("default", "other"),
        lambda: made.state.set_pod(read_pod(pod("later", "a1", cpu=1), "")),
        lambda: made.state.remove_pod("default", "later"),
    ]
    for end in elsewhere:
        end()
        assert not occupants.note_ends()
    made.state.remove_pod("default", "one")
    assert occupants.note_ends()
    assert not occupants.note_ends(), "it is noted once"
    made.state.remove_group("default", "here")
    assert occupants.note_ends()
