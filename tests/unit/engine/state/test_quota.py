from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Drifted,
    Resized,
    ResizeEnded,
    StoredGrant,
    Synchronized,
)
from nri_policy.engine.restart.listed_container import has, in_force
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node.view import view_of
from nri_policy.workload.pod import Container, Resources
from tests.support import nodes
from tests.support.engine_driver import EngineDriver

KEEP = {"exclusive-quota.resource-policy.nri.io/container.c0": "keep"}
NONE = {"exclusive-quota.resource-policy.nri.io/pod": "none"}
SHARED = {"prefer-shared-cpus.resource-policy.nri.io/pod": "true"}
MIXED = {"prefer-shared-cpus.resource-policy.nri.io/pod": "false"}


def created(container: Container, **spec: Any) -> int | None:
    """Return which quota the runtime is told at the creation of *container*."""
    engine = Engine(nodes.machine(), nodes.settings(**spec))
    placement = engine.handle(Created(container=container)).placement
    assert placement is not None
    return placement.quota


def listed(driver: EngineDriver, container: Container, quota: int) -> Container:
    """Return *container* as running where it was told, listed with that *quota*."""
    cpus, mems = (CPUSet.parse(each) for each in (driver.cpus(container), driver.mems(container)))
    there = nodes.running(container, cpus, mems)
    return replace(there, resources=replace(there.resources, cpu_quota=quota))


def stored(driver: EngineDriver, container: Container) -> dict[str, StoredGrant]:
    return {container.id: view_of(driver.engine).to_store(container.id)}


@pytest.mark.parametrize(
    ("container", "spec"),
    [
        (nodes.container(2000), {}),
        (nodes.container(1000), {}),
        (nodes.container(2000, annotations=NONE), {"exclusiveQuota": "keep"}),
    ],
)
def test_whoever_has_only_cpus_of_its_own_has_no_quota(
    container: Container, spec: dict[str, Any]
) -> None:
    assert created(container, **spec) == NO_QUOTA


@pytest.mark.parametrize(
    ("container", "spec"),
    [
        (nodes.container(1500), {}),
        (nodes.container(2500, annotations=MIXED), {}),
        (nodes.container(500), {}),
        (nodes.container(2000, annotations=SHARED), {}),
        (nodes.container(2000, 2000, qos=QoS.BURSTABLE), {}),
        (nodes.container(2000, namespace="kube-system"), {}),
        (nodes.best_effort(), {}),
        (nodes.container(2000), {"exclusiveQuota": "keep"}),
        (nodes.container(2000, annotations=KEEP), {}),
        # its cpuset is no limit
        (nodes.container(2000), {"pinCPU": False}),
    ],
)
def test_everybody_else_has_the_kubelets(container: Container, spec: dict[str, Any]) -> None:
    assert created(container, **spec) is None


def test_a_container_without_a_limit_has_nothing_to_lose() -> None:
    """As where the kubelet enforces no limits of CPU."""
    plain = nodes.container(2000)
    unlimited = replace(plain, resources=replace(plain.resources, cpu_quota=0))
    assert created(unlimited) is None


def test_a_resize_is_answered_without_a_quota_and_counts_by_its_own() -> None:
    driver, container = EngineDriver(), nodes.container(2000)
    driver.create(container)
    for milli in (3000, 2000):
        driver.resize(container, nodes.resources(milli, milli))
        assert driver.decision.placement is not None
        assert driver.decision.placement.quota == NO_QUOTA
        assert len(driver.grant(container).exclusive) == milli // 1000
    driver.resize(container, Resources(memory_limit=1 << 30, cpu_quota=NO_QUOTA))
    assert driver.engine.state.placed[container.id].container.resources.cpu_quota == 200_000


def test_a_resize_to_a_fraction_brings_the_quota_back() -> None:
    driver, container = EngineDriver(), nodes.container(2000)
    driver.create(container)
    driver.resize(container, nodes.resources(1500, 1500))
    assert driver.runtime.quotas == {container.id: 150_000}
    driver.resize(container, nodes.resources(1700, 1700))
    assert driver.decision.placement is not None
    assert driver.decision.placement.quota is None, "the runtime has it of the kubelet itself"
    driver.resize(container, nodes.resources(1000, 1000))
    assert driver.runtime.quotas == {container.id: NO_QUOTA}


def test_a_resize_that_the_runtime_refuses_leaves_the_quota_as_it_was() -> None:
    driver, container = EngineDriver(), nodes.container(2000)
    driver.create(container)
    asked = nodes.resources(2500, 2500)
    driver.handle(Resized(container_id=container.id, resources=asked, certain=False))
    driver.handle(ResizeEnded(container_id=container.id, refused=True))
    assert driver.runtime.quotas == {container.id: NO_QUOTA}
    assert driver.engine.state.placed[container.id].container.resources.cpu_quota == 200_000


def test_new_settings_take_the_quota_away_and_bring_it_back() -> None:
    driver, own, other = EngineDriver(), nodes.container(2000), nodes.container(1500)
    driver.create(own)
    driver.create(other)
    driver.reconfigure(exclusiveQuota="keep")
    assert driver.runtime.quotas == {own.id: 200_000}
    assert driver.changed() == {}
    assert driver.reconfigure(exclusiveQuota="keep").changes == {}
    driver.reconfigure(exclusiveQuota="none")
    assert driver.runtime.quotas == {own.id: NO_QUOTA}


def test_who_is_told_again_where_to_run_hears_of_that_alone() -> None:
    """Only so can its cgroup be written without the runtime."""
    driver, container = EngineDriver(), nodes.container(2000)
    driver.create(container)
    (change,) = driver.engine.handle(Drifted(container_ids=(container.id,))).changes.values()
    assert change.quota is None
    placement = view_of(driver.engine).placement(container.id)
    assert placement is not None
    assert placement.quota == NO_QUOTA


def test_no_quota_in_the_list_is_the_one_that_was_granted() -> None:
    driver, container = EngineDriver(), nodes.container(2000)
    driver.create(container)
    after = Engine(driver.engine.layout.machine, driver.engine.layout.settings)
    event = Synchronized(
        containers=(listed(driver, container, NO_QUOTA),), held=stored(driver, container)
    )
    assert after.handle(event).changes == {}
    assert after.handle(event).changes == {}, "nor when it connects again"
    known = after.state.placed[container.id].container
    assert (known.resources.cpu_quota, known.resized) == (200_000, False)


@pytest.mark.parametrize("known", [True, False])
def test_who_runs_with_a_quota_loses_it_at_the_start(*, known: bool) -> None:
    driver, container = EngineDriver(), nodes.container(2000)
    driver.create(container)
    after = Engine(driver.engine.layout.machine, driver.engine.layout.settings)
    held = stored(driver, container) if known else {}
    event = Synchronized(containers=(listed(driver, container, 200_000),), held=held)
    (change,) = after.handle(event).changes.values()
    assert change.quota == NO_QUOTA


@pytest.mark.parametrize("known", [True, False])
def test_who_runs_without_one_gets_it_back_if_it_is_to_keep_it(*, known: bool) -> None:
    """An unknown Guaranteed container gets the quota that follows from its request."""
    driver, container = EngineDriver(), nodes.container(2000)
    driver.create(container)
    settings = nodes.settings(exclusiveQuota="keep")
    after = Engine(driver.engine.layout.machine, settings)
    held = stored(driver, container) if known else {}
    event = Synchronized(containers=(listed(driver, container, NO_QUOTA),), held=held)
    (change,) = after.handle(event).changes.values()
    assert change.quota == 200_000


def test_a_resize_that_was_missed_is_taken_in_by_its_quota() -> None:
    driver, container = EngineDriver(), nodes.container(2000)
    driver.create(container)
    after = Engine(driver.engine.layout.machine, driver.engine.layout.settings)
    grown = replace(container, resources=nodes.resources(3000, 3000))
    event = Synchronized(
        containers=(listed(driver, grown, 300_000),), held=stored(driver, container)
    )
    (change,) = after.handle(event).changes.values()
    assert (len(change.cpus), change.quota) == (3, NO_QUOTA)


def test_a_replay_goes_on_with_what_was_told() -> None:
    driver, own, shared = EngineDriver(), nodes.container(2000), nodes.container(500)
    driver.create(own)
    driver.create(shared)
    picture = Synchronized(
        containers=(listed(driver, own, 200_000), listed(driver, shared, 50_000)),
        held=stored(driver, own) | stored(driver, shared),
    )
    assert Engine.resume(driver.engine.layout, picture).state.quotas == {own.id: NO_QUOTA}


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_replay_goes_on_with_a_container_that_came_without_a_quota(*, is_listed: bool) -> None:
    """The runtime lists no quota, and what the kubelet granted is not known."""
    driver = EngineDriver()
    came = nodes.container(1000)
    came = replace(came, resources=replace(came.resources, cpu_quota=NO_QUOTA))
    driver.create(came)
    if is_listed:
        there = (listed(driver, came, NO_QUOTA),)
        driver.handle(Synchronized(containers=there, held=stored(driver, came)))
    picture = Synchronized(containers=(listed(driver, came, NO_QUOTA),), held=stored(driver, came))
    replayed = Engine.resume(driver.engine.layout, picture)
    assert replayed.state.quotas == driver.engine.state.quotas
    resized = Resized(container_id=came.id, resources=nodes.resources(1500, 1500), certain=False)
    then, now = replayed.handle(resized).placement, driver.engine.handle(resized).placement
    assert then == now
    assert now is not None
    assert now.quota == 150_000


def test_no_quota_in_a_cgroup_agrees_with_any_that_a_guaranteed_one_was_granted() -> None:
    asked, found = nodes.resources(2000, 2000), Resources(cpu_quota=NO_QUOTA, cpu_shares=2048)
    assert has(found, asked, 2000, QoS.GUARANTEED)
    assert not has(found, nodes.resources(3000, 3000), 3000, QoS.GUARANTEED), "by its shares"
    assert not has(found, asked, 2000, QoS.BURSTABLE), "which has none, or was given one"


@pytest.mark.parametrize(("cpus", "milli"), [("4-6", 3000), ("4-5", 2000)])
def test_where_neither_quota_nor_shares_say_it_the_cpus_show_whether_a_list_is_old(
    cpus: str, milli: int
) -> None:
    """Of cgroup v2 no shares are read. It was resized from two CPUs to 4-6, or that was refused."""
    container = nodes.container(2000)
    said = replace(container.resources, cpu_quota=NO_QUOTA)
    container = replace(container, resources=said)
    found = Resources(cpu_quota=NO_QUOTA, cpu_period=100_000, cpus=cpus)
    known = nodes.resources(3000, 3000)
    now = in_force(container, found, known, 3000, CPUSet.parse("4-6"))
    assert now.resources.cpu_request == milli


def test_a_container_that_replaces_another_is_not_told_of_its_quota() -> None:
    driver, container = EngineDriver(), nodes.container(2000)
    driver.create(container)
    again = replace(container, resources=nodes.resources(1500, 1500))
    placement = driver.handle(Created(container=again)).placement
    assert placement is not None
    assert placement.quota is None
