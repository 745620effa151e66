"""Resizes: a container leaves the pools around its own only for one better by depth (§4)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import Created, Resized
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.engine_driver import EngineDriver

MACHINES = (nodes.SMALL, "package:3 core:3 pu:2", "package:2 numa:2 core:4 pu:1")
SIZES = (500, 1000, 2000, 3000, 5000, 6000)

steps = st.lists(
    st.tuples(st.sampled_from(("create", "resize")), st.integers(0, 7), st.sampled_from(SIZES)),
    min_size=6,
    max_size=20,
)


def container(number: int, milli: int) -> Container:
    """Return a Guaranteed container, or each second time a Burstable one without a limit."""
    return nodes.container(milli, qos=QoS.BURSTABLE if number % 2 else QoS.GUARANTEED)


def resize(driver: EngineDriver, running: Container, milli: int) -> None:
    """Resize a container; assert that it has moved only as far as it must."""
    before, tree = driver.grant(running), driver.engine.layout.tree
    limit = milli if running.pod.qos is QoS.GUARANTEED else None
    driver.handle(Resized(container_id=running.id, resources=nodes.resources(milli, limit)))
    placed = driver.engine.state.placed[running.id]
    after, table = placed.grant, placed.explanation.table
    if after.pool == before.pool or table is None:
        return
    path = [each.id for each in tree.path(tree.pools[before.pool])]
    above = next((each for each in path if table.fits(each)), after.pool)
    assert after.pool == above or table.outranks(after.pool, above)
    if after.pool in path:
        kept = len(after.exclusive & before.exclusive)
        assert kept == min(len(after.exclusive), len(before.exclusive))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(MACHINES), steps)
def test_criteria_after_depth_move_no_container_that_is_resized(
    machine: str, actions: Sequence[tuple[str, int, int]]
) -> None:
    driver = EngineDriver(machine)
    running: list[Container] = []
    for action, number, milli in actions:
        try:
            if action == "resize" and running:
                resize(driver, running[number % len(running)], milli)
            elif action == "create":
                new = container(number, milli)
                driver.handle(Created(container=new))
                running.append(new)
        except PlacementError:
            continue
