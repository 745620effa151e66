"""Attempts that cannot succeed, and searches that find nothing better, change no placement."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from nri_policy.cluster.engine.reservation import Reservations
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.offline import cluster_of, engine_of
from nri_policy.cluster.requests.group import (
    PlacementGroup,
    PlacementRequest,
    PodSet,
    Slice,
)
from nri_policy.cluster.simulation import synthetic
from nri_policy.cluster.simulation.playback import Simulation
from nri_policy.cluster.simulation.steps import SimulationStep
from nri_policy.cluster.snapshot import read_snapshot
from tests.property.seeds import seeds
from tests.property.test_cluster import template

CLUSTERS = ("rack:3 host:4 cpu:16", "rack:2 host:3 cpu:16 memory:64Gi socket:1 numa:2")
JOBS = 120
Places = list[tuple[Key, tuple[tuple[str, int], ...]]]


def draw_group(chance: random.Random, number: int, levels: list[str]) -> PlacementGroup:
    rack = levels[0]
    request = chance.choice(
        [
            PlacementRequest(required=rack),
            PlacementRequest(required=rack),
            PlacementRequest(preferred=rack),
            PlacementRequest(unconstrained=True),
            PlacementRequest(required=HOSTNAME),
            PlacementRequest(required=rack, slices=[Slice(HOSTNAME, 2)]),
            PlacementRequest(spread_over=[rack]),
            PlacementRequest(unconstrained=True, max_per_host=1),
            PlacementRequest(exclusive=rack),
        ]
    )
    count = 2 * chance.randint(1, 4) if request.slices else chance.randint(1, 8)
    main = PodSet("main", count, template(chance.choice([2, 4, 8, 16])), request=request)
    other = PodSet("other", chance.randint(1, 3), template(chance.choice([1, 8])))
    pod_sets = (main, other) if chance.random() < 0.2 else (main,)
    priority = chance.choice([0, 0, 0, 1])
    return PlacementGroup("default", f"g{number:03}", pod_sets, priority=priority)


def play(seed: int, adapt: Callable[[Simulation], None]) -> Places:
    """Return which groups got which places, in order, in a simulation that is adapted."""
    chance = random.Random(seed)
    made = synthetic.make_cluster(chance.choice(CLUSTERS))
    settings, snapshot = read_settings(made.settings), read_snapshot(made.cluster)
    cluster = cluster_of(snapshot)
    engine = engine_of(snapshot, settings, cluster)
    found: Places = []

    def note(key: Key, group: PlacementGroup | None) -> None:
        placed = [] if group is None else group.status.assignments
        found.append(
            (key, tuple((one.values[-1], one.count) for each in placed for one in each.domains))
        )

    engine.state.on_group = note
    simulation = Simulation(engine, cluster, snapshot.classes)
    adapt(simulation)
    hosts, failed = sorted(engine.state.nodes), list[str]()
    for number in range(JOBS):
        group = draw_group(chance, number, settings.topologies[0].levels)
        simulation.groups.submit(group, chance.expovariate(1 / 400), "job")
        simulation.play(SimulationStep(advance=f"{chance.expovariate(1 / 100):.0f}s"))
        if chance.random() < 0.05:
            if failed:
                simulation.play(SimulationStep(recover=[failed.pop()]))
            else:
                failed.append(chance.choice(hosts))
                simulation.play(SimulationStep(fail=[*failed]))
    simulation.groups.end()
    return found


def keep(_: Simulation) -> None:
    """Change nothing."""


def try_all(simulation: Simulation) -> None:
    """Have every group tried."""
    simulation.groups.waiting.worth_trying = iter  # type: ignore[method-assign, assignment]


@seeds(6)
def test_no_placement_changes_if_all_are_tried_or_all_hosts_are_looked_for(seed: int) -> None:
    """Groups are passed over, and others than the hosts that are set aside are not looked for."""
    found = play(seed, keep)
    assert play(seed, try_all) == found, "every group is tried"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reservations, "may_find_more_room", lambda *_: True)
        assert play(seed, keep) == found, "others are looked for whenever hosts are reconsidered"
