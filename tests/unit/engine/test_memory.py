"""Memory in the engine's decisions: what must not move, and what is booked beyond what there is."""

from __future__ import annotations

import json

from msgspec.structs import replace

from nri_policy.engine.event import Synchronized
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container
from tests.support import memory_maps, nodes, rooms
from tests.support.engine_driver import EngineDriver

GIB = memory_maps.GIB
STRICT = {"strict.topologyhints.resource-policy.nri.io/pod": "true"}


def with_memory(container: Container, gib: float) -> Container:
    """Return *container* with a limit of memory, which is what a Guaranteed one requests."""
    return replace(container, resources=replace(container.resources, memory_limit=int(gib * GIB)))


def guest(gib: float) -> Container:
    exact = {"containers": {"c0": {"limits": {"memory": f"{int(gib * 1024)}Mi"}}}}
    return nodes.best_effort(annotations={"noderesource.dev/resources": json.dumps(exact)})


def near(container: Container, node: int) -> Container:
    """Return *container* with a device on *node*."""
    hint = Hint(
        source="podresourceapi:gpu",
        kind=HintKind.POD_RESOURCES,
        cpus=EMPTY,
        nodes=CPUSet([node]),
    )
    return replace(container, hints=(hint,))


def test_nobody_is_pushed_off_its_strict_hints() -> None:
    driver = EngineDriver("package:2 numa:1 core:4")
    bound = near(with_memory(nodes.container(500, annotations=STRICT), 3), 0)
    driver.create(bound)
    assert driver.mems(bound) == "0"
    other = near(with_memory(nodes.container(500), 2), 0)
    driver.create(other)
    assert (driver.mems(bound), driver.mems(other)) == ("0", "0-1")


def test_a_reserved_container_is_refused_for_memory_that_no_node_has() -> None:
    driver = EngineDriver("package:1 numa:2(memory=4GiB) core:4")
    reserved = nodes.container(100, 100, namespace="kube-system", qos=QoS.GUARANTEED)
    refusal = driver.refuse(with_memory(reserved, 20))
    assert "20 GiB of memory do not fit: nodes 0-1 have 8 GiB" in refusal
    assert driver.create(with_memory(reserved, 5)) == "0"


def test_a_room_whose_memory_moves_takes_that_of_its_containers_along() -> None:
    driver = EngineDriver("package:2 numa:1 core:4")
    whole = rooms.pod(2000, memory=2 * memory_maps.GIB)
    tenant = rooms.tenant(whole, "main", 1000)
    driver.create(tenant)
    assert driver.mems(tenant) == "1"
    driver.create(near(with_memory(nodes.container(500, annotations=STRICT), 3), 1))
    assert str(driver.engine.state.rooms[whole.id].grant.mems) == driver.mems(tenant) == "0-1"


def test_a_strict_container_gets_memory_of_no_other_kind() -> None:
    driver = EngineDriver(memory_maps.TIERED)
    kinds = {"memory-type.resource-policy.nri.io/pod": "hbm"}
    strict = with_memory(nodes.container(500, annotations=STRICT | kinds), 10)
    driver.create(strict)
    assert driver.mems(strict) == "2-3"
    more = with_memory(nodes.container(500, annotations=STRICT | kinds), 7)
    assert "7 GiB of memory do not fit: nodes 2-3 have 16 GiB" in driver.refuse(more)
    loose = with_memory(nodes.container(500, annotations=kinds), 7)
    driver.create(loose)
    assert (driver.mems(strict), driver.mems(loose)) == ("2-3", "0-3")


def test_a_strict_container_without_memory_of_its_kind_is_refused() -> None:
    driver = EngineDriver()
    kinds = {"memory-type.resource-policy.nri.io/pod": "hbm"}
    loose = with_memory(nodes.container(500, annotations=kinds), 1)
    strict = with_memory(nodes.container(500, annotations=STRICT | kinds), 1)
    assert driver.refuse(strict) == "this node has no memory of kind hbm"
    driver.create(loose)
    assert driver.mems(loose) == "1"


def test_a_guest_with_more_memory_than_there_is_can_make_room() -> None:
    driver = EngineDriver("package:1 numa:2 core:2")
    large = nodes.running(guest(9), CPUSet([2, 3]), CPUSet([1]))
    driver.runtime.cpus[large.id], driver.runtime.mems[large.id] = CPUSet([2, 3]), CPUSet([1])
    decision = driver.handle(Synchronized(containers=(large,), now=0.0))
    assert "more" in "".join(decision.warnings)
    own = nodes.container(3000)
    driver.create(own)
    assert (driver.cpus(own), driver.cpus(large)) == ("1-3", "0")
