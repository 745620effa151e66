"""Rooms: the books and I7 whatever happens, a restart, and a search over all places of a room."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, PodStopped, Resized, ResizeEnded, Synchronized
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.store.encoding import decode_event, decode_grant, encode, encode_event
from nri_policy.workload.pod import Container, Pod
from tests.support import bookkeeping, nodes, rooms
from tests.support.engine_driver import EngineDriver

MACHINES = (
    *("package:2 numa:2 core:2 pu:2", "package:2 core:4", "package:1 core:8"),
    "package:1 numa:2(hugepages-1Gi=1,3) core:4",
)
# QoS class, milli-CPU of the pod, milli-CPU of each container. A container that requests whole CPUs
# requests as many huge pages, if the machine has any.
PODS: tuple[tuple[QoS, int, tuple[int, ...]], ...] = (
    (QoS.GUARANTEED, 4000, (2000, 900, 1100)),
    (QoS.GUARANTEED, 3000, (2000, 1000, 0)),
    (QoS.GUARANTEED, 2500, (2000, 500)),
    (QoS.BURSTABLE, 2000, (1500, 500, 0)),
)
ACTIONS = (
    *("create",) * 5,
    *("resize", "resize pod") * 3,
    *("late", "stop", "end", "other", "restart", "settings", "offline"),
)

steps = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(0, 5),
    ),
    max_size=40,
)


class Life(EngineDriver):
    """A node with pods of `PODS`, and a twin that hears of the same."""

    def __init__(self, machine: str) -> None:
        super().__init__(machine)
        self.untouched = self.engine.state.snapshot()
        self.twin = Engine(self.engine.layout.machine, self.engine.layout.settings)
        self.running: dict[str, Container] = {}
        self.pods: dict[int, Pod] = {}

    def handle(self, event: Any) -> Any:
        """Apply *event* to both; they decide alike."""
        try:
            decision = super().handle(event)
        except PlacementError as refusal:
            with pytest.raises(PlacementError, match=f"^{re.escape(str(refusal))}$"):
                self.twin.handle(event)
            raise
        again = self.twin.handle(event)
        assert (again.grant, again.placement, again.changes) == (
            decision.grant,
            decision.placement,
            decision.changes,
        )
        return decision

    def attempt(self, event: Any) -> bool:
        """Apply *event*; return whether it was accepted."""
        try:
            self.handle(event)
        except PlacementError:
            return False
        return True

    def act(self, action: str, number: int, which: int, cpus: int) -> None:  # noqa: C901, PLR0912
        """Do one of the actions to a pod, or one of its containers."""
        qos, milli, requests = PODS[number]
        pod = self.pods.setdefault(number, rooms.pod(milli, qos=qos, name=f"pod{number}"))
        which %= len(requests)
        name, key = f"c{which}", f"{number}-{which}"
        running = self.running.get(key)
        match action:
            case "create" if running is None:
                container = self.tenant(pod, name, requests[which])
                if self.attempt(Created(container=container)):
                    self.running[key] = container
            case "late" if running is None:
                container = self.tenant(pod, name, requests[which])
                self.handle(Created(container=container, admitted=True))
                self.running[key] = container
            case "stop" if running is not None:
                del self.running[key]
                self.stop(running)
            case "resize" if running is not None:
                asked = nodes.resources(1000 * cpus + 500 * which, 1000 * cpus + 500 * which)
                if self.attempt(Resized(container_id=running.id, resources=asked, certain=False)):
                    refused = cpus % 2 == 0
                    if refused:  # nobody knows what it has
                        self.runtime.forget(running.id)
                    self.handle(ResizeEnded(container_id=running.id, refused=refused))
            case "resize pod" if pod.id in self.engine.state.rooms:
                asked = nodes.resources(1000 * cpus, 1000 * cpus)
                self.attempt(Resized(container_id=pod.id, resources=asked))
            case "end":
                self.end(pod)
            case "other":
                other = nodes.container(500 * cpus)
                if self.attempt(Created(container=other)):
                    self.running[other.id] = other
            case "restart":
                self.restart()
            case "settings":
                spec = {"packing": ("spread", "tight")[cpus % 2]}
                self.reconfigure(**spec)
                self.twin = self.engine.fork()
            case "offline":
                machine = self.engine.layout.machine
                online = machine.possible - CPUSet([cpus + 1])
                self.reconfigure(machine=rooms.with_cpus(machine, online))
                self.twin = self.engine.fork()
            case _:
                pass

    def tenant(self, pod: Pod, name: str, milli: int) -> Container:
        """Return a container of *pod*."""
        container = rooms.tenant(pod, name, milli)
        count, rest = divmod(milli, 1000)
        if rest or not count or not self.engine.layout.memory.hugepages:
            return container
        asked = replace(container.resources, hugepages=((1 << 30, count << 30),))
        return replace(container, resources=asked)

    def reconfigure(self, **change: Any) -> Any:
        """Give new settings or another machine; not to the twin."""
        twin, self.twin = self.twin, self.engine.fork()
        decision = super().reconfigure(**change)
        self.twin = twin
        return decision

    def end(self, pod: Pod) -> None:
        """Stop a pod."""
        for key, each in [*self.running.items()]:
            if each.pod.id == pod.id:
                self.runtime.forget(each.id)
                del self.running[key]
        self.handle(PodStopped(pod_id=pod.id))

    def restart(self) -> None:
        """Go on with what is stored: nobody moves."""
        view = view_of(self.engine)
        held = {
            each: decode_grant(encode(view.to_store(each))) for each in (*view.placed, *view.rooms)
        }
        listed = tuple(
            nodes.running(
                view.placed[each.id].container,
                self.runtime.cpus[each.id],
                self.runtime.mems[each.id],
                self.runtime.quotas.get(each.id),
            )
            for each in self.running.values()
        )
        pods = tuple(each.container.pod for each in view.rooms.values())
        before = self.grants()
        layout = self.engine.layout
        self.engine = Engine(layout.machine, layout.settings)
        self.twin = Engine(layout.machine, layout.settings)
        event = Synchronized(containers=listed, pods=pods, held=held)
        assert decode_event("synchronized", encode_event(event), "") == event
        self.handle(event)
        assert self.grants() == before

    def grants(self) -> dict[str, Any]:
        """Return who holds what."""
        state = self.engine.state
        holders = {**state.placed, **state.rooms}
        return {each: placed.grant for each, placed in sorted(holders.items())}


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(MACHINES), steps)
def test_rooms_are_their_pods_alone_whatever_happens(
    machine: str, actions: Sequence[tuple[str, int, int, int]]
) -> None:
    life = Life(machine)
    for action in actions:
        life.act(*action)
        bookkeeping.check(life.engine, life.runtime)
    for each in {each.pod.id: each.pod for each in life.running.values()}.values():
        life.end(each)
    for pod in life.pods.values():
        life.end(pod)
    assert not life.engine.state.rooms
    assert life.engine.state.supply.free_cpus() == life.engine.layout.capacity.sharable
    assert not life.engine.state.memory.bookings


def cuttable(free: CPUSet, sharers: Sequence[tuple[int, int]], count: int) -> bool:
    """Whether any *count* CPUs of *free* can be cut so that all *sharers* can go up to the top.

    That is all a request of exclusive CPUs needs before it is refused (§2): a last CPU for who
    shares with a request, and enough for their requests.
    """
    milli = sum(asked for _, asked in sharers)
    return any(
        1000 * len(free - CPUSet(chosen)) >= max(milli, 1000 * bool(milli))
        for chosen in combinations(free, count)
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(("package:1 core:8", "package:2 core:4", "package:2 numa:2 core:2")),
    st.lists(st.sampled_from((300, 700, 1000, 2000)), max_size=6),
    st.integers(1, 7),
    st.integers(2, 8),
)
def test_a_room_and_its_growth_are_refused_only_if_none_fits(
    machine: str, others: list[int], size: int, larger: int
) -> None:
    driver = EngineDriver(machine)
    for milli in others:
        container = nodes.container(milli, milli + 100, qos=QoS.BURSTABLE)
        if milli >= 1000:
            container = nodes.container(milli)
        try:
            driver.create(container)
        except PlacementError:
            continue
    state = driver.engine.state
    sharers = [
        (each.grant.pool, each.grant.shared)
        for each in state.placed.values()
        if each.grant.shares and not each.grant.preemptible
    ]
    fits = cuttable(state.supply.free_cpus(), sharers, size)
    tenant = rooms.tenant(rooms.pod(1000 * size), "main", 1000 * size)
    try:
        driver.create(tenant)
    except PlacementError:
        assert not fits
        return
    assert fits
    own = driver.engine.state.rooms[tenant.pod.id].grant.exclusive
    assert len(own) == size
    if larger <= size:
        return
    fits = cuttable(driver.engine.state.supply.free_cpus() | own, sharers, larger)
    try:
        driver.resize(tenant, nodes.resources(1000 * larger, 1000 * larger))
    except PlacementError:
        assert not fits, "a new pod of that size would be placed"
        return
    assert fits
    assert len(driver.engine.state.rooms[tenant.pod.id].grant.exclusive) == larger


def width(driver: EngineDriver, cpus: CPUSet) -> tuple[int, ...]:
    """Return how many packages, and NUMA nodes, *cpus* are in."""
    pools = driver.engine.layout.tree.pools
    deepest = max(pool.depth for pool in pools)
    return tuple(
        sum(pool.depth == depth and bool(pool.cpus & cpus) for pool in pools)
        for depth in range(1, deepest + 1)
    )


def narrowest(driver: EngineDriver, among: CPUSet, count: int) -> tuple[int, ...]:
    """Return the least width of any *count* CPUs of *among*."""
    return min(width(driver, CPUSet(chosen)) for chosen in combinations(among, count))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(("package:1 core:8", "package:2 core:4", "package:2 numa:2 core:2")),
    st.lists(st.integers(1, 3), max_size=4),
    st.sets(st.integers(0, 3)),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(0, 2),
)
def test_no_cpus_for_a_room_or_a_slice_of_it_lie_closer_together(
    machine: str, others: list[int], gone: set[int], slices: list[int], rest: int
) -> None:
    driver = EngineDriver(machine)
    there = {}
    for number, size in enumerate(others):
        if size <= len(driver.engine.state.supply.free_cpus()):
            there[number] = nodes.container(1000 * size)
            driver.create(there[number])
    for number in gone & there.keys():
        driver.stop(there[number])
    free = driver.engine.state.supply.free_cpus()
    size = sum(slices) + rest
    if size > len(free):
        return
    whole = rooms.pod(1000 * size)
    left = CPUSet()
    for number, count in enumerate(slices):
        tenant = rooms.tenant(whole, f"c{number}", 1000 * count)
        driver.create(tenant)
        room = driver.engine.state.rooms[whole.id].grant.exclusive
        if not number:
            assert len(room) == size
            assert width(driver, room) == narrowest(driver, free, size)
            left = room
        own = driver.grant(tenant).exclusive
        assert own <= left
        assert width(driver, own) == narrowest(driver, left, count)
        left -= own
