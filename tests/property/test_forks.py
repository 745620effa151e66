"""Trying something leaves a cluster bit for bit as it was, and a fork is as good as the cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.preemption import find_victims
from nri_policy.cluster.engine.search.spread_assignment import count_by_node
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.planning.explanation import explain
from nri_policy.cluster.planning.group_answers import try_groups
from nri_policy.cluster.planning.moves import plan_moves
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup, PlacementRequest, PodSet
from nri_policy.cluster.snapshot import ClusterSnapshot
from nri_policy.cluster.view import Cluster
from nri_policy.native._packing import pack
from tests.property.seeds import seeds
from tests.property.test_trees import Events, engine_in, groups, room, template, trees

STEPS = 40
SPREAD = ["zone", "rack"]


def asked(name: str) -> list[PlacementGroup]:
    """Groups of every sort: of several pod sets, with a leader, spread, and what has its places."""
    two = [
        PlacementRequest(required="rack"),
        PlacementRequest(spread_over=SPREAD),
        PlacementRequest(required="zone", topology="racks"),
    ]
    led = PlacementRequest(required="rack", leader_group="pair")
    spread_and_led = msgspec.structs.replace(led, spread_over=SPREAD)
    several = [
        (PodSet("a", 2, template(1), request), PodSet("b", 2, template(2), two[0]))
        for request in two
    ]
    pairs = [
        (PodSet("w", 2, template(1), request), PodSet("l", 1, template(1), request))
        for request in (led, spread_and_led)
    ]
    made = [PlacementGroup("default", name, pod_sets) for pod_sets in (*several, *pairs)]
    return [*made, *(msgspec.structs.replace(each, name=name) for each in groups())]


def place_twice(engine: Engine, group: PlacementGroup) -> object:
    return try_groups(engine.fork(), [group, group])


def tries(engine: Engine, events: Events) -> list[Callable[[], object]]:
    """Everything that only tries."""
    made: list[Callable[[], object]] = []
    for group in (msgspec.structs.replace(each, priority=9) for each in asked("urgent")):
        made += [
            partial(engine.place, group),
            partial(engine.spread, group),
            partial(find_victims, engine, group),
            partial(explain, engine, group),
            partial(place_twice, engine, group),
            partial(engine.without_nodes({"n1", "n2"}).place, group),
            partial(plan_moves, engine, group, snapshot(events)),
        ]
    for group in engine.state.groups.values():
        lost = msgspec.structs.replace(group.status, unhealthy_nodes=[*engine.state.nodes][:2])
        made += [
            partial(engine.place, msgspec.structs.replace(group, status=lost)),
            partial(engine.place, msgspec.structs.replace(group, status=GroupStatus())),
            partial(engine.place, group, more={"main": 1}),
        ]
    return made


def snapshot(events: Events) -> ClusterSnapshot:
    return ClusterSnapshot(
        nodes=(*events.engine.state.nodes.values(),),
        pods=(*events.pods.values(),),
        zones=(*events.zones.values(),),
        groups=(*events.engine.state.groups.values(),),
    )


def state(engine: Engine) -> Any:
    """What there is of a cluster, to the last bit."""
    return (
        [
            (
                tree.rows.dump(),
                [tree.rows.nodes_at(leaf) for leaf in range(tree.shape.domains.leaves)],
            )
            for tree in trees(engine)
        ],
        msgspec.json.encode([*engine.state.groups.values()]),
        engine.state.pods(),
        [engine.spread(group) for group in groups()],
    )


@seeds(2)
def test_a_try_leaves_the_cluster_as_it_was_also_where_it_fails(seed: int) -> None:
    events = Events(seed)
    engine = events.engine
    for _ in range(STEPS):
        events.step()
    for each in tries(engine, events):
        each()  # so that all caches are filled
    before = state(engine)
    for each in tries(engine, events):
        each()
        assert state(engine) == before

    class BrokenError(Exception):
        """An error of ours."""

    left = 0

    def breaking(work: Callable[..., Any]) -> Callable[..., Any]:
        def broken(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise BrokenError
            return work(*args, **more)

        return broken

    failed = 0
    for each in tries(engine, events):
        for calls in range(4):
            left = calls
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("nri_policy.cluster.engine.search.placement.pack", breaking(pack))
                patch.setattr(
                    "nri_policy.cluster.engine.group_placement.count_by_node",
                    breaking(count_by_node),
                )
                patch.setattr(ClusterState, "take", breaking(ClusterState.take))
                try:
                    each()
                except BrokenError:
                    failed += 1
            assert state(engine) == before
    assert failed > 50


@seeds(2)
def test_a_fork_answers_as_a_cluster_in_which_it_has_happened(seed: int) -> None:
    events = Events(seed)
    for _ in range(STEPS):
        events.step()
        fork, real = events.engine.fork(), events.again()
        if seed % 2:
            trees(fork)  # else each is forked when it is asked for
        place_in_both(fork, real)
        for number, name in enumerate(events.engine.state.nodes):
            spec = template(1).spec
            fork.state.occupy(name, fork.state.kind(spec.effective()), 1)
            real.state.set_pod(Pod("other", f"p{number}", spec, node=name))
        for key in [*events.engine.state.groups][:1]:
            for each in (fork, real):
                each.state.remove_group(*key)
        for one, other in zip(trees(fork), trees(real), strict=True):
            assert room(one) == room(other)
        without = fork.without_nodes({"n1", "n2"})
        again = fork.without_nodes({"n1"}).without_nodes({"n1", "n2"})
        for group in asked("then"):
            assert fork.place(group) == real.place(group)
            assert fork.spread(group) == real.spread(group)
            assert without.place(group) == again.place(group)  # closed once


def place_in_both(fork: Engine, real: Engine) -> None:
    for number, group in enumerate(asked("new")):
        named = msgspec.structs.replace(group, name=f"new-{number}")
        status = fork.place(named)
        assert status == real.place(named)
        if status.state == "Placed":
            for each in (fork, real):
                each.state.set_group(msgspec.structs.replace(named, status=status))


def test_a_fork_knows_when_the_cluster_has_gone_on() -> None:
    events = Events(0)
    for _ in range(STEPS):
        events.step()
    fork = events.engine.fork()
    fork.state.occupy("n1", fork.state.kind({"cpu": 1000}), 1)
    assert fork.state.is_up_to_date()
    events.engine.state.set_pod(Pod("other", "one", template(1).spec, node="n1"))
    assert not fork.state.is_up_to_date()


@seeds(2)
def test_an_emptied_cluster_is_as_one_of_the_same_nodes_with_nothing_on_them(seed: int) -> None:
    events = Events(seed)
    engine = events.engine
    for _ in range(STEPS):
        emptied = engine.without_usage()
        events.step()
        if not emptied.state.is_up_to_date():
            emptied = engine.without_usage()
        some = {name for name in engine.state.nodes if events.random.random() < 0.6}
        for found, names in (
            (emptied, engine.state.nodes.keys()),
            (engine.without_usage(some), some),
        ):
            zones = [each.without_usage() for name, each in events.zones.items() if name in names]
            nodes = [engine.state.nodes[name] for name in sorted(names)]
            anew, _ = engine_in(Cluster(nodes, zones))
            for one, other in zip(trees(found), trees(anew), strict=True):
                assert room(one) == room(other)
            for group in asked("any"):
                assert found.place(group).assignments == anew.place(group).assignments
                assert found.spread(group) == anew.spread(group)
