"""What must hold where the books are written: a wrong call is an error there, not a wrong book."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_policy.engine.event import Stopped
from nri_policy.engine.state.state import Placed, Resizing, State
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.refusal import Refused
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.request import Sort
from tests.support import memory_maps, nodes, rooms
from tests.support.engine_driver import EngineDriver

amounts = st.sampled_from((0, 500, 1000, 1500, 2000))


@st.composite
def nodes_with_a_room(draw: st.DrawFn) -> State:
    """Draw a node with a pod that has a room, and others, some of which are gone again."""
    node = EngineDriver()
    pod = rooms.pod(3000)
    for name, milli in (("app", 2000), ("log", 100)):
        node.create(rooms.tenant(pod, name, milli, milli))
    for milli in draw(st.lists(amounts, max_size=6)):
        qos = draw(st.sampled_from((QoS.BURSTABLE, QoS.GUARANTEED)))
        container = nodes.container(milli, milli if qos is QoS.GUARANTEED else None, qos=qos)
        try:
            node.create(container)
        except Refused:
            continue
        if draw(st.booleans()):
            node.handle(Stopped(container_id=container.id))
    return node.engine.state


def any_of(state: State) -> Placed:
    return next(reversed(state.placed.values()))


def slice_of(state: State) -> Placed:
    return next(
        each for each in state.placed.values() if each.grant.tenant and each.grant.exclusive
    )


def again(state: State) -> None:
    state.put(any_of(state))


def on_reserved_cpus(state: State) -> None:
    owner = state.drop(slice_of(state).container.id)
    state.put(replace(owner, grant=replace(owner.grant, sort=Sort.RESERVED, tenant=False)))


def outside_its_room(state: State) -> None:
    tenant = state.drop(slice_of(state).container.id)
    others = state.layout.capacity.sharable - state.rooms[tenant.container.pod.id].grant.exclusive
    state.put(replace(tenant, grant=replace(tenant.grant, exclusive=others.first(1))))


def without_a_room(state: State) -> None:
    tenant = state.drop(slice_of(state).container.id)
    state.drop(tenant.container.pod.id)
    state.put(tenant)


def while_it_is_resized(state: State) -> None:
    placed = state.drop(any_of(state).container.id)
    none = CPUSet()
    state.resizing[placed.container.id] = Resizing(before=placed, sent=(none, none), kept=none)
    state.put(placed)


def while_it_starts_cold(state: State) -> None:
    placed = state.drop(any_of(state).container.id)
    state.cold[placed.container.id] = None
    state.put(placed)


def under_the_name_of_another(state: State) -> None:
    sharer = next(each for each in state.placed.values() if not each.grant.exclusive)
    state.put(replace(sharer, container=replace(sharer.container, id="another")))


def with_memory_offered_to_another(state: State) -> None:
    placed = state.drop(any_of(state).container.id)
    request = memory_maps.request(0, id="another")
    state.put(placed, state.memory.offer(placed.grant.pool, request))


def with_other_bookings(state: State) -> None:
    placed = any_of(state)
    state.enter(replace(placed, grant=replace(placed.grant, shared=placed.grant.shared + 1)))


def what_has_none(state: State) -> None:
    state.drop("nobody")


def twice(state: State) -> None:
    container = any_of(state).container
    state.drop(container.id)
    state.drop(container.id)


def what_another_has_the_name_of(state: State) -> None:
    placed = any_of(state)
    state._ids[placed.container.identity] = "another"
    state.drop(placed.container.id)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (again, "holds a grant already"),
        (on_reserved_cpus, "only these have exclusive CPUs"),
        (outside_its_room, "a slice is of its pod's room"),
        (without_a_room, "sandbox-shop"),
        (while_it_is_resized, "a resize is of a grant that is held"),
        (while_it_starts_cold, "a cold start is of a grant that is held"),
        (under_the_name_of_another, "a pod has one container of a name"),
        (with_memory_offered_to_another, "an offer is for its own container"),
        (with_other_bookings, "bookings stay"),
        (what_has_none, "nobody"),
        (twice, "ctr-"),
        (what_another_has_the_name_of, "a pod has one container of a name"),
    ],
)
@given(state=nodes_with_a_room())
@settings(max_examples=10)
def test_no_grant_is_entered_or_taken_back(
    call: Callable[[State], None], error: str, state: State
) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError), match=error):
        call(state)
