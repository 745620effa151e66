"""A plain-Python twin of the engine's bookkeeping, and a runtime that believes every decision.

Everything is recomputed from the grants with Python sets; nothing of the engine's own accounting is
used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nri_policy.engine.engine import Engine
from nri_policy.engine.grant import Decision, Grant, Placement
from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.pools.tree import Pool
from nri_policy.settings import Preserve
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Entitlement, Sort


class Runtime:
    """What a runtime holds that applies each decision as it is told."""

    def __init__(self) -> None:
        self.cpus: dict[str, CPUSet] = {}
        self.mems: dict[str, CPUSet] = {}
        self.quotas: dict[str, int] = {}  # container id -> quota that the engine has sent
        self.moved: list[str] = []  # ids whose CPUs or nodes the last decision changed

    def list(self, containers: Iterable[Container]) -> None:
        """The runtime lists *containers* with these quotas."""
        for each in containers:
            self.quotas[each.id] = each.resources.cpu_quota

    def apply(self, decision: Decision) -> None:
        """Apply a decision; every change must change something, and not who was asked about."""
        if decision.placement is not None:
            assert decision.container_id is not None
            self._set(decision.container_id, decision.placement)
        self.moved = []
        for each, change in decision.changes.items():
            told = self.cpus.get(each), self.mems.get(each), self.quotas.get(each)
            now = change.cpus, change.mems, told[2] if change.quota is None else change.quota
            assert told != now, f"{change} changes nothing"
            assert each != decision.container_id
            if told[:2] != now[:2]:
                self.moved.append(each)
            self._set(each, change)

    def _set(self, container_id: str, placement: Placement) -> None:
        self.cpus[container_id] = placement.cpus
        self.mems[container_id] = placement.mems
        if placement.quota is not None:
            self.quotas[container_id] = placement.quota

    def forget(self, container_id: str) -> None:
        """The container is gone."""
        self.cpus.pop(container_id, None)
        self.mems.pop(container_id, None)
        self.quotas.pop(container_id, None)


def check(engine: Engine, runtime: Runtime) -> None:
    """Assert I1 to I5 of placement.md §2 and I7 of §3.3, with claims, and what the runtime has.

    Of huge pages I6 as well.
    """
    state = engine.state
    holders = {
        container_id: (placed.grant, placed.request)
        for container_id, placed in state.placed.items()
    }
    check_rooms(engine, runtime)
    check_claims(engine)
    check_huge_pages(engine)
    claims = {each: (held.grant, held.request) for each, held in state.claims.items()}
    others = [room.grant for room in state.rooms.values()]
    others += [grant for grant, _ in claims.values()]
    free = check_grants(engine.layout, holders, runtime, others)
    for pool in engine.layout.tree.pools:
        booked = shared_milli(engine.layout, {**holders, **claims}, pool)
        assert booked <= 1000 * len(free & set(pool.cpus)), f"I2: {pool.name} with its claims"
        assert state.supply.shared_milli_in(pool.id) == booked, "I5: bookings"
    assert set(state.supply.free_cpus()) == free, "I5: free CPUs"
    assert state.reserved_milli == sum(
        grant.shared for grant, _ in holders.values() if grant.sort is Sort.RESERVED
    )
    for pool in engine.layout.tree.pools:
        sharing = [
            key for key, (grant, _) in holders.items() if grant.pool == pool.id and grant.shares
        ]
        assert [*state.members(pool.id)] == sharing, "who shares a pool, in order of placement"
        if pool.id in state.common:
            cpus, mems = state.common[pool.id]
            for each, own in state.sharing.get(pool.id, {}).items():
                assert state.sent[each] == (cpus, mems)
                assert own == mems
                assert each not in {*state.resizing, *state.quotas}
    for container_id, placed in state.placed.items():
        assert state.find(placed.container.identity) == container_id
        assert container_id in state.of_pod(placed.container.pod.id)


def check_rooms(engine: Engine, runtime: Runtime) -> None:
    """Assert I7: a room's CPUs are its pod's alone, slices are disjoint, and the rest is shared."""
    state = engine.state
    for pod_id, room in state.rooms.items():
        whole, free = set(room.grant.exclusive), set(room.grant.exclusive)
        own = [each for each in state.placed.values() if each.container.pod.id == pod_id]
        tenants = [each for each in own if each.grant.tenant]
        for each in tenants:
            assert set(each.grant.exclusive) <= free, "I7: a slice outside its room, or in another"
            free -= set(each.grant.exclusive)
            if each.request.memory_preserve:
                assert not each.grant.mems
                continue
            pages = state.memory.bookings.get(each.container.id)
            nodes = CPUSet() if pages is None else pages.zone
            assert each.grant.mems == room.grant.mems | nodes
        for each in tenants:
            if each.container.id in state.resizing:
                free -= set(state.resizing[each.container.id].kept)
        for each in tenants:
            sharer = each.request.shares or not each.grant.exclusive
            assert set(each.grant.rest) == (free if sharer else set())
            assert each.grant.shares == (sharer and not free)
        for container_id, each in state.placed.items():
            if each not in tenants:
                assert not whole & set(runtime.cpus[container_id]), "I7: another's cpuset"


def check_huge_pages(engine: Engine) -> None:
    """Assert I5 and I6 of the huge pages of each size, and that every container has its own."""
    state, memory = engine.state, engine.layout.memory
    for placed in state.placed.values():
        booking = state.memory.bookings.get(placed.container.id)
        pages = () if booking is None else booking.request.hugepages
        asked = () if placed.request.memory_preserve else placed.request.hugepages
        assert pages == asked, f"{placed.container.full_name} has {pages}, not {asked}"
        assert not pages or (booking is not None and booking.zone <= placed.grant.mems)
    for size, capacity in memory.hugepages.items():
        laid = [
            (set(each.zone & memory.nodes), amount)
            for each in state.memory.bookings.values()
            for its, amount in each.laid_pages
            if its == size and amount
        ]
        left = sum(capacity.values()) - sum(amount for _, amount in laid)
        assert state.memory.free_pages(size, memory.nodes) == left, "I5: free huge pages"
        zones = {frozenset(zone) for zone, _ in laid}
        for zone in zones | {one | other for one in zones for other in zones}:
            inside = sum(amount for its, amount in laid if its <= zone)
            assert inside <= sum(capacity[node] for node in zone), f"I6: huge pages on {zone}"


def check_claims(engine: Engine) -> None:
    """Assert I4 for parts of claims, and that a container has all CPUs of its parts."""
    state, pools = engine.state, engine.layout.tree.pools
    for part in state.claims.values():
        assert part.grant.exclusive <= pools[part.grant.pool].cpus & engine.layout.capacity.sharable
    for each in state.placed.values():
        used = CPUSet.union(state.claims[part].grant.exclusive for part in each.container.claims)
        assert each.grant.claimed == used


def check_grants(
    layout: Layout,
    holders: Mapping[str, tuple[Grant, Entitlement]],
    runtime: Runtime,
    others: Iterable[Grant] = (),
) -> set[int]:
    """Assert I1 to I4 of *holders*, by container id, on *layout*; return the free CPUs.

    *others* are what pods and claims hold; tenants hold parts of it, claimants use all of it.
    """
    pools = layout.tree.pools
    taken: set[int] = set()
    for grant in others:
        assert not set(grant.exclusive) & taken, "I1: a CPU is in two rooms or claims"
        taken |= set(grant.exclusive)
    for grant, request in holders.values():
        own = set(grant.exclusive)
        assert grant.tenant or not own & taken, "I1: a CPU is in two exclusive grants"
        taken |= own
        side = layout.capacity.isolated if grant.isolated else layout.capacity.sharable
        assert own <= set(side) & set(pools[grant.pool].cpus), "I4: CPUs outside the pool"
        assert bool(grant.mems) != (request.memory_preserve or not layout.memory.nodes), (
            "I4: no memory node"
        )
    free = set(layout.capacity.sharable) - taken
    reserved = set(layout.capacity.reserved)
    for container_id, (grant, request) in holders.items():
        if grant.sort is Sort.PRESERVE:
            told = set(runtime.cpus[container_id])
            if layout.settings.preserve is Preserve.ALL or not layout.settings.pin_cpu:
                assert not told
            else:
                online = layout.machine.online
                had = set((grant.preserved & online) or online)
                assert told == (had - taken or reserved), "others' own CPUs"
            continue
        wanted = reserved if grant.sort is Sort.RESERVED else set(grant.own | grant.rest)
        if grant.shares:
            shared = free & set(pools[grant.pool].cpus)
            assert shared or (grant.preemptible and pools[grant.pool] is layout.tree.top), (
                "I3: no CPU"
            )
            wanted |= shared or reserved
        assert wanted, "I3: an empty cpuset"
        if request.hide_hyperthreads:
            wanted = {
                min(wanted & set(core.cpus))
                for core in layout.machine.cores
                if wanted & set(core.cpus)
            }
        told = set(runtime.cpus[container_id])
        assert told == wanted, f"the runtime was not told: {container_id} has {told}, not {wanted}"
        assert runtime.mems[container_id] == grant.mems, "the runtime was not told of its memory"
        if grant.sort is not Sort.RESERVED:
            foreign = taken - set(grant.own | grant.rest)
            assert not wanted & foreign, "I1: another's exclusive CPU"
    for pool in pools:
        booked = shared_milli(layout, holders, pool)
        assert booked <= 1000 * len(free & set(pool.cpus)), f"I2: {pool.name} is overbooked"
    return free


def due(engine: Engine) -> dict[str, tuple[CPUSet, CPUSet]]:
    """Return the CPUs and memory nodes that the runtime should have recorded, by container id.

    A set that the policy does not pin is empty. Only the resized container shares the CPUs that a
    pending resize frees.
    """
    layout, state = engine.layout, engine.state
    settings, capacity = layout.settings, layout.capacity
    kept = {each: resizing.kept for each, resizing in state.resizing.items()}
    holders = [*state.placed.values(), *state.rooms.values(), *state.claims.values()]
    taken = CPUSet.union(placed.grant.exclusive for placed in holders)
    free = capacity.sharable - taken - CPUSet.union(kept.values())
    result = {}
    for container_id, placed in state.placed.items():
        grant, request = placed.grant, placed.request
        own = grant.own | grant.rest
        cpus = capacity.reserved if grant.sort is Sort.RESERVED else own
        if grant.shares:
            shared = free | (kept.get(container_id, CPUSet()) & capacity.sharable)
            cpus |= (shared & layout.tree.pools[grant.pool].cpus) or capacity.reserved
        if request.hide_hyperthreads:
            cores = (core.cpus & cpus for core in layout.machine.cores)
            cpus = CPUSet(threads.lowest for threads in cores if threads)
        pinned = settings.pin_cpu
        if grant.sort is Sort.PRESERVE:
            pinned = pinned and settings.preserve is Preserve.UNOWNED
            others = taken | CPUSet.union(kept.values())
            cpus = ((grant.preserved & layout.machine.online) or layout.machine.online) - others
            cpus = cpus or capacity.reserved
        mems = grant.mems if settings.pin_memory and not request.memory_preserve else CPUSet()
        result[container_id] = cpus if pinned else CPUSet(), mems
    return result


def shared_milli(
    layout: Layout, holders: Mapping[str, tuple[Grant, Entitlement]], pool: Pool
) -> int:
    """Return the milli-CPU booked on *pool* and below it."""
    tree = layout.tree
    below = {pool.id} | {p.id for p in tree.pools if pool in tree.path(p)}
    return sum(
        grant.shared
        for grant, _ in holders.values()
        if grant.sort is Sort.NORMAL and grant.pool in below
    )
