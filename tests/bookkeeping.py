"""A plain-Python twin of the engine's bookkeeping, and a runtime that believes every decision.

Everything is recomputed from the grants with Python sets; nothing of the engine's own accounting is
used.
"""

from __future__ import annotations

from nri_policy.cpuset import CPUSet
from nri_policy.engine.engine import Engine
from nri_policy.engine.grant import Decision
from nri_policy.workload.request import Sort


class Runtime:
    """What a runtime holds that applies each decision as it is told."""

    def __init__(self) -> None:
        self.cpus: dict[str, CPUSet] = {}
        self.mems: dict[str, CPUSet] = {}

    def apply(self, decision: Decision) -> None:
        """Apply a decision; every change must change something, and not who was asked about."""
        if decision.placement is not None:
            self.cpus[decision.placement.container_id] = decision.placement.cpus
            self.mems[decision.placement.container_id] = decision.placement.mems
        for change in decision.changes:
            told = self.cpus.get(change.container_id), self.mems.get(change.container_id)
            assert told != (change.cpus, change.mems), f"{change} changes nothing"
            assert change.container_id != decision.container_id
            self.cpus[change.container_id] = change.cpus
            self.mems[change.container_id] = change.mems

    def forget(self, container_id: str) -> None:
        """The container is gone."""
        self.cpus.pop(container_id, None)
        self.mems.pop(container_id, None)


def check(engine: Engine, runtime: Runtime) -> None:
    """Assert I1 to I5 of placement.md §2, and that the runtime has what was decided."""
    layout, state = engine.layout, engine.state
    grants = {container_id: placed.grant for container_id, placed in state.placed.items()}
    pools = layout.tree.pools
    taken: set[int] = set()
    for container_id, grant in grants.items():
        own = set(grant.exclusive)
        assert not own & taken, "I1: a CPU is in two exclusive grants"
        taken |= own
        side = layout.capacity.isolated if grant.isolated else layout.capacity.sharable
        assert own <= set(side) & set(pools[grant.pool].cpus), "I4: CPUs outside the pool"
        preserved = state.placed[container_id].request.memory_preserve
        assert bool(grant.mems) != (preserved or not layout.memory.nodes), "I4: no memory node"
    free = set(layout.capacity.sharable) - taken
    reserved = set(layout.capacity.reserved)
    for container_id, grant in grants.items():
        if grant.sort is Sort.PRESERVE:
            assert not runtime.cpus[container_id]
            continue
        wanted = reserved if grant.sort is Sort.RESERVED else set(grant.exclusive)
        if grant.shares:
            shared = free & set(pools[grant.pool].cpus)
            assert shared or (grant.guest and pools[grant.pool] is layout.tree.top), "I3: no CPU"
            wanted |= shared or reserved
        assert wanted, "I3: an empty cpuset"
        if state.placed[container_id].request.hide_hyperthreads:
            wanted = {
                min(wanted & set(core.cpus))
                for core in layout.machine.cores
                if wanted & set(core.cpus)
            }
        assert set(runtime.cpus[container_id]) == wanted, "the runtime was not told"
        assert runtime.mems[container_id] == grant.mems, "the runtime was not told of its memory"
        if grant.sort is not Sort.RESERVED:
            others = taken - set(grant.exclusive)
            assert not wanted & others, "I1: another's exclusive CPU"
    for pool in pools:
        below = {pool.id} | {p.id for p in pools if pool in layout.tree.path(p)}
        booked = sum(g.shared for g in grants.values() if g.sort is Sort.NORMAL and g.pool in below)
        assert booked <= 1000 * len(free & set(pool.cpus)), f"I2: {pool.name} is overbooked"
        assert state.supply.shared_milli_in(pool.id) == booked, "I5: bookings"
    assert set(state.supply.free_cpus()) == free, "I5: free CPUs"
