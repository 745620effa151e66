"""Hardware that goes and comes under running containers, whatever the settings ask of it.

Unlike other changes it cannot be refused: CPUs, the memory of nodes and whole nodes go, with what
is reserved and what is available by list.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Reconfigured, Stopped
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Distances, Machine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import SettingsError
from tests.support import bookkeeping, nodes
from tests.support.engine_driver import EngineDriver

SPECS = (
    nodes.SMALL,
    "package:2(pmem=4GiB) numa:2(memory=1GiB) core:2 pu:2",
    "package:2 numa:2(memory=4GiB,0) core:2 pu:2",
    "package:2 numa:2 core:2 pu:2 isolated=4-5,10",
)
lists = st.sampled_from(("0", "0-3", "4-7", "2,9", "8-15", "15"))
asked = st.fixed_dictionaries(
    {
        "reservedResources": st.fixed_dictionaries(
            {"cpu": st.sampled_from(("750m", 2, 4)) | lists.map(lambda each: f"cpuset:{each}")},
            optional={"memory": st.sampled_from(("512Mi", "3Gi"))},
        )
    },
    optional={
        "availableResources": lists.map(lambda each: {"cpu": f"exclude-cpuset:{each}"})
        | lists.map(lambda each: {"cpu": f"cpuset:{each}"}),
        "preferIsolatedCPUs": st.booleans(),
    },
)
pods = st.lists(
    st.tuples(
        st.sampled_from((0, 200, 1000, 1500, 2000, 4000)),  # milli-CPU
        st.sampled_from((0, 1 << 28, 1 << 30)),  # bytes
        st.sampled_from(QoS),
    ),
    max_size=8,
)


@st.composite
def machines(draw: st.DrawFn, whole: Machine) -> Machine:
    """Return what is left of *whole*: at least one CPU, and a node with ordinary memory."""
    online = sorted(whole.online)
    left = (
        CPUSet(draw(st.sets(st.sampled_from(online), min_size=1)))
        if draw(st.booleans())
        else (whole.online)
    )
    machine = whole.restricted(left)
    sizes = {node.id: draw(st.sampled_from((1, 1, 1, 2, 4))) for node in whole.nodes}
    kept = [replace(node, memory=node.memory // sizes[node.id]) for node in machine.nodes]
    ordinary = [node.id for node in kept if node.normal and node.memory]
    stays = draw(st.sampled_from(ordinary))
    gone = draw(st.sets(st.sampled_from([node.id for node in kept])))
    # a node goes with its CPUs
    ids = [node.id for node in kept if node.id == stays or node.id not in gone or node.cpus]
    places = [whole.distances.nodes.index(id_) for id_ in ids]
    return replace(
        machine,
        nodes=tuple(
            replace(node, nearest=(node.nearest & CPUSet(ids)) or CPUSet((stays,)))
            for node in kept
            if node.id in ids
        ),
        distances=Distances(
            nodes=tuple(ids),
            matrix=tuple(tuple(whole.distances.matrix[i][j] for j in places) for i in places),
        ),
    )


@given(data=st.data(), spec=st.sampled_from(SPECS), wishes=asked, wanted=pods)
@settings(max_examples=300, deadline=None)
def test_no_loss_of_hardware_is_refused_and_the_books_stay_right(
    data: st.DataObject, spec: str, wishes: dict[str, Any], wanted: list[tuple[int, int, QoS]]
) -> None:
    whole = nodes.machine(spec)
    try:
        engine = Engine(whole, nodes.settings(**wishes))
    except (CapacityError, SettingsError):  # as at the start of a daemon: it ends there
        return
    runtime = bookkeeping.Runtime()
    for request, memory, qos in wanted:
        container = nodes.container(request, qos=qos)
        resources = replace(container.resources, memory_limit=memory)
        with suppress(PlacementError):
            created = Created(container=replace(container, resources=resources))
            runtime.apply(engine.handle(created))
    reserved = engine.layout.capacity.reserved
    for _ in range(data.draw(st.integers(1, 3))):
        machine = data.draw(machines(whole))
        runtime.apply(engine.handle(Reconfigured(machine=machine)))
        layout = engine.layout
        assert layout.capacity.reserved
        assert layout.capacity.available <= machine.online
        assert runtime.cpus.keys() == engine.state.placed.keys(), "it runs on, and has no place"
        bookkeeping.check(engine, runtime)
        for placed in engine.state.placed.values():
            assert placed.grant.exclusive <= machine.online
            assert placed.grant.mems <= CPUSet(node.id for node in machine.nodes)
    runtime.apply(engine.handle(Reconfigured(machine=whole)))
    assert engine.layout.shortages == ()
    assert len(engine.layout.capacity.reserved) == len(reserved)
    bookkeeping.check(engine, runtime)
    for container_id in [*engine.state.placed]:
        runtime.forget(container_id)
        engine.handle(Stopped(container_id=container_id))
    assert engine.state.supply.free_cpus() == engine.layout.capacity.sharable


@given(
    milli=st.lists(st.sampled_from((500, 1500, 1500, 2000, 3000)), min_size=3, max_size=6),
    gone=st.sets(st.integers(1, 6), min_size=1, max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_a_shared_part_without_its_place_goes_up_and_takes_nothing_along(
    milli: list[int], gone: set[int]
) -> None:
    driver = EngineDriver("package:2 core:4 pu:1", reservedResources={"cpu": "cpuset:7"})
    made = [nodes.container(each) for each in milli]
    for each in made:
        with suppress(PlacementError):
            driver.create(each)
    before = {each.id: driver.grant(each) for each in made if each.id in driver.runtime.cpus}
    pools = {id_: driver.engine.layout.tree.pools[grant.pool] for id_, grant in before.items()}
    whole = driver.engine.layout.machine
    driver.reconfigure(machine=whole.restricted(whole.online - CPUSet(gone)))
    tree = driver.engine.layout.tree
    for id_, grant in before.items():
        now = driver.engine.state.placed[id_].grant
        own = grant.exclusive - CPUSet(gone)
        assert own <= now.exclusive
        if own and grant.shares:
            up = now.shares and pools[id_].cpus & tree.top.cpus <= tree.pools[now.pool].cpus
            name = driver.engine.state.placed[id_].container.full_name
            assert up or any(name in text for text in driver.decision.warnings)
