"""Containers with `cpu.preserve`: who may use it, and which CPUs they run on; placement.md §3."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.engine.event import Created, Prepared, Reconfigured, Resized, Stopped, Synchronized
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import view_of
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.pod import Container
from tests.support import bookkeeping, nodes
from tests.support.claims import part, user
from tests.support.engine_driver import EngineDriver

PRESERVE = {"cpu.preserve.resource-policy.nri.io/pod": "true"}


def preserved(cpus: str = "", **options: Any) -> Container:
    """Return a container that is to be left alone, with the *cpus* that the kubelet gave it."""
    container = nodes.best_effort(annotations=PRESERVE, **options)
    return replace(container, resources=replace(container.resources, cpus=cpus))


@pytest.mark.parametrize(
    ("globs", "namespace", "allowed"),
    [
        (None, "default", True),
        (["*"], "default", True),
        (["kube-*", "monitoring"], "monitoring", True),
        (["kube-*", "monitoring"], "kube-system", True),
        (["kube-*", "monitoring"], "default", False),
        ([], "default", False),
    ],
)
def test_only_pods_of_the_namespaces_that_are_named_may_preserve_their_cpus(
    globs: list[str] | None, namespace: str, allowed: bool
) -> None:
    spec: dict[str, Any] = {} if globs is None else {"preserveNamespaces": globs}
    driver = EngineDriver(**spec)
    container = preserved(namespace=namespace)
    if allowed:
        assert driver.create(container) == ""
        return
    with pytest.raises(AnnotationError, match=r"namespace default: preserveNamespaces does not"):
        driver.handle(Created(container=container))
    false = {"cpu.preserve.resource-policy.nri.io/pod": "false"}
    assert driver.create(nodes.best_effort(annotations=false)), "it asks for nothing"


def test_one_that_runs_already_is_placed_as_if_it_had_no_annotation() -> None:
    driver = EngineDriver(preserveNamespaces=["monitoring"])
    container = nodes.running(preserved(), CPUSet(range(16)), CPUSet())
    driver.handle(Synchronized(containers=(container,)))
    assert driver.engine.state.placed[container.id].grant.shares


def test_with_unowned_its_cpuset_follows_the_exclusive_cpus_of_others() -> None:
    driver = EngineDriver(preserve="unowned")
    everywhere, somewhere = preserved(), preserved("0-7")
    assert driver.create(everywhere) == "0-15"
    assert driver.create(somewhere) == "0-7"
    assert driver.decision.placement is not None
    assert driver.decision.placement.shares is None, "its CPU shares are its own"
    owner = nodes.container(2000)
    own = CPUSet.parse(driver.create(owner))
    for container, had in ((everywhere, range(16)), (somewhere, range(8))):
        assert driver.cpus(container) == str(CPUSet(had) - own)
        assert driver.decision.changes[container.id].cpus == CPUSet(had) - own
    driver.handle(Resized(container_id=owner.id, resources=nodes.resources(3000, 3000)))
    own = view_of(driver.engine).exclusive
    assert len(own) == 3
    assert driver.cpus(everywhere) == str(CPUSet(range(16)) - own)
    driver.handle(Stopped(container_id=owner.id))
    assert (driver.cpus(everywhere), driver.cpus(somewhere)) == ("0-15", "0-7")


def test_with_unowned_one_whose_cpus_are_all_owned_shares_the_reserved_ones() -> None:
    driver = EngineDriver(preserve="unowned")
    owner = nodes.container(2000)
    own = driver.create(owner)
    assert driver.create(preserved(own)) == str(driver.engine.layout.capacity.reserved)


def test_with_unowned_it_grows_again_after_a_restart_to_what_it_came_with() -> None:
    driver = EngineDriver(preserve="unowned")
    container, owner = preserved("0-7"), nodes.container(2000)
    driver.create(container)
    driver.create(owner)
    view = view_of(driver.engine)
    listed = [
        nodes.running(each, view.sent[each.id][0], view.sent[each.id][1])
        for each in (container, owner)
    ]
    again = EngineDriver(preserve="unowned")
    held = {each: view.to_store(each) for each in view.holders}
    again.handle(Synchronized(containers=tuple(listed), held=held))
    again.handle(Stopped(container_id=owner.id))
    assert view_of(again.engine).sent[container.id][0] == CPUSet(range(8))


def test_a_change_of_the_setting_counts_for_running_containers() -> None:
    driver = EngineDriver()
    container, owner = preserved(), nodes.container(2000)
    driver.create(container)
    own = CPUSet.parse(driver.create(owner))
    driver.handle(Reconfigured(settings=nodes.settings(preserve="unowned")))
    assert driver.decision.changes[container.id].cpus == CPUSet(range(16)) - own


def test_without_pinning_nothing_is_told() -> None:
    driver = EngineDriver(preserve="unowned", pinCPU=False)
    driver.create(preserved())
    assert driver.decision.placement is not None
    assert not driver.decision.placement.cpus


def test_with_unowned_the_cpus_of_claims_and_rooms_are_others_too() -> None:
    driver, claim = EngineDriver(preserve="unowned"), part(2000, 1)
    container, user_of_claim = preserved(), user(claim, annotations=PRESERVE)
    driver.create(container)
    driver.handle(Prepared(parts=(claim,)))
    bookkeeping.check(driver.engine, driver.runtime)
    assert driver.cpus(container) == "0-3,6-15"
    assert driver.create(user_of_claim) == "4-5", "who uses a claim runs on its CPUs"
    room = {"pod-room.resource-policy.nri.io": "true"}
    tenant = nodes.container(2000, annotations=room)
    driver.create(tenant)
    taken = view_of(driver.engine).taken
    assert len(taken) == 4
    assert driver.cpus(container) == str(CPUSet(range(16)) - taken)


def test_with_unowned_isolated_cpus_are_others_once_they_are_granted() -> None:
    machine = "package:1 core:8 pu:1 isolated=4-7"
    driver = EngineDriver(machine, preserve="unowned", preferIsolatedCPUs=True)
    container, owner = preserved(), nodes.container(1000)
    assert driver.create(container) == "0-7"
    assert driver.create(owner) == "4"
    assert driver.cpus(container) == "0-3,5-7"
    driver.handle(Stopped(container_id=owner.id))
    assert driver.cpus(container) == "0-7"
