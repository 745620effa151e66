"""Containers that share CPUs are spread: one by one, and where many are placed anew (§10)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Stopped, Synchronized
from nri_policy.engine.explanation import DecisionKind
from nri_policy.foundation.cpuset import EMPTY
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.pools.supply import Column
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.engine_driver import EngineDriver

MACHINES = ("package:3 core:4", "package:4 core:4", "package:2 numa:2 core:2 pu:2")
STEPS = 24


def newcomer(rng: random.Random) -> Container:
    """Return a container: one of two shares CPUs."""
    if rng.random() < 0.5:
        return nodes.container(rng.choice((1000, 1000, 2000, 3000)))
    if rng.random() < 0.5:
        return nodes.best_effort()
    return nodes.container(rng.choice((100, 300, 600)), qos=QoS.BURSTABLE)


def check_company(driver: EngineDriver, container: Container) -> None:
    """Assert that no pool as good by all other criteria has fewer containers that share there."""
    state = driver.engine.state
    placed = state.placed[container.id]
    table, pool = placed.explanation.table, placed.grant.pool
    if table is None or placed.request.exclusive or not table.fits(pool):
        return
    there = Counter(
        each.grant.pool
        for each in state.placed.values()
        if each.grant.shares and each.container.id != container.id
    )
    row = table.row(pool)[: Column.CAPACITY]
    for other in driver.engine.layout.tree.pools:
        if table.fits(other.id) and table.row(other.id)[: Column.CAPACITY] == row:
            assert there[pool] <= there[other.id], f"{other.name} has fewer that share"


def played(machine: str, rng: random.Random) -> tuple[EngineDriver, list[Container]]:
    """Return a node on which containers have come and gone, and those that run."""
    driver, running = EngineDriver(machine), list[Container]()
    for _ in range(STEPS):
        if running and rng.random() < 0.2:
            gone = running.pop(rng.randrange(len(running)))
            driver.runtime.forget(gone.id)
            driver.handle(Stopped(container_id=gone.id))
            continue
        container = newcomer(rng)
        try:
            driver.handle(Created(container=container))
        except PlacementError:
            continue
        running.append(container)
        check_company(driver, container)
    return driver, running


def found(driver: EngineDriver, containers: Sequence[Container], held: dict[str, Any]) -> Engine:
    """Return a new daemon's engine that has found *containers* without their cpusets."""
    engine = Engine(driver.engine.layout.machine, driver.engine.layout.settings)
    listed = tuple(nodes.running(each, EMPTY, EMPTY) for each in containers)
    engine.handle(Synchronized(containers=listed, held=held))
    return engine


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("machine", MACHINES)
def test_those_placed_anew_after_a_reboot_spread_as_if_they_came_one_by_one(
    machine: str, seed: int
) -> None:
    rng = random.Random(seed)
    driver, running = played(machine, rng)
    view = view_of(driver.engine)
    held = {each.id: view.to_store(each.id) for each in running if rng.random() < 0.5}
    state = found(driver, running, held).state
    kept = [each for each in running if each.id in held]
    for each in kept:
        assert state.placed[each.id].grant == driver.grant(each), "a stored grant has changed"
    one_by_one = found(driver, kept, held)
    # §10.3: exclusive ones by size, then Guaranteed, Burstable and BestEffort ones by age
    anew = sorted(
        (each for each in running if each.id not in held),
        key=lambda each: (
            -state.placed[each.id].request.exclusive,
            -int(each.pod.qos is QoS.GUARANTEED),
            each.pod.qos is QoS.BEST_EFFORT,
            each.created,
        ),
    )
    for each in anew:
        decision = one_by_one.handle(Created(container=each, admitted=True))
        assert decision.explanation is not None
        if decision.explanation.kind is DecisionKind.MADE_ROOM:
            return  # a creation may move other containers; a synchronization does not
        now = one_by_one.state.placed[each.id].grant
        assert state.placed[each.id].grant.pool == now.pool
