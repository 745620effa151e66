"""Where groups stand in the queue, how many pods fit, and which nodes are closed to them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nri_policy.cluster.engine.unit_capacity import count_fitting
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.offline import engine_of
from nri_policy.cluster.planning.queue_position import find_position
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.snapshot import read_snapshot
from tests.unit.cluster.engine.search.test_crowding import LEVELS, cluster, place, replica, rule
from tests.unit.cluster.engine.test_preemption import engine, filler
from tests.unit.cluster.written import group, pod_set


def test_only_groups_without_places_wait() -> None:
    made = engine(filler("placed"))
    made.state.set_group(read_group(filler("waits")))
    new = read_group(group(pod_set(1), name="new"))
    assert find_position(made.state, new).waiting == 2
    ((key, placed), *_) = made.state.groups.items()
    made.state.set_group(replace(placed, status=replace(placed.status, state="Waiting")))
    assert made.state.groups[key].status.assignments
    assert find_position(made.state, new).waiting == 2


def test_no_more_pods_of_a_pod_set_fit_than_it_has() -> None:
    """A host has room for four small pods, of which there is one, and for no large one."""
    snapshot = read_snapshot(cluster(1))
    made = engine_of(snapshot, read_settings(LEVELS))
    asked = read_group(group(pod_set(1, name="small", cpu=1), pod_set(4, name="large", cpu=9)))
    assert count_fitting(made.state, asked, ["h0"]) == 1


@pytest.mark.parametrize(
    ("mode", "closed"), [("Required", {"h0", "h1"}), ("Preferred", frozenset())]
)
def test_only_rules_that_are_required_close_nodes(mode: str, closed: object) -> None:
    given = cluster(2)
    asked = rule(50, enforcementMode=mode)
    assert place(given, replica("g0", asked)) == "r0"
    made = engine_of(read_snapshot(given), read_settings(LEVELS))
    assert made.closed_to(read_group(replica("g1", asked))) == closed
