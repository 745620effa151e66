"""Devices: what the daemon publishes as a DRA driver, one for each NUMA node; spec dra.md §2.1.

Owns names, attributes, and how many CPUs ordinary containers leave to claims (§2.2); the scheduler
subtracts claims. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from nri_policy.dra.projection import Left, project
from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import NodeView
from nri_policy.pools.tree import Pool, numa_cpus
from nri_policy.settings import FullCores
from nri_policy.workload.request import Sort


class CPUDevice(Struct, frozen=True, kw_only=True):
    """CPUs that claims can be allocated."""

    name: str  # a DNS label
    node: int  # NUMA node
    pool: int  # id in the tree


class Published(Struct, frozen=True, kw_only=True):
    """The CPUs of a device for claims, existing claims included."""

    device: CPUDevice
    cpus: int  # whole CPUs
    granule: int  # CPUs that are only given together: threads of a core


def devices_of(layout: Layout) -> tuple[CPUDevice, ...]:
    """Return the devices of a machine: NUMA nodes with CPUs that are a pool each."""
    tree, found = layout.tree, []
    for node, cpus in sorted(numa_cpus(layout.machine).items()):
        here = cpus & tree.top.cpus
        if here and (pool := tree.around(here)).cpus == here:
            found.append(CPUDevice(name=f"numa{node}", node=node, pool=pool.id))
    return tuple(found)


def pools_by_device(layout: Layout) -> dict[str, str]:
    """Return the name of the pool that each device stands for."""
    return {each.name: layout.tree.pools[each.pool].name for each in devices_of(layout)}


def published(view: NodeView, last: Mapping[str, int]) -> tuple[Published, ...]:
    """Return the CPUs for claims, as close as possible to the *last* values by device name."""
    devices = devices_of(view.layout)
    named = {each.name: each.pool for each in devices}
    before = {named[name]: value for name, value in last.items() if name in named}
    values = project(_left(view, {each.pool for each in devices}), before)
    granule = _granule(view.layout)
    return tuple(
        Published(
            device=each, cpus=values[each.pool] - values[each.pool] % granule, granule=granule
        )
        for each in devices
    )


def _left(view: NodeView, named: set[int]) -> list[Left]:
    """Return what ordinary containers leave of each pool."""
    tree, sharable = view.layout.tree, view.layout.capacity.sharable
    shared, shares = [0] * len(tree.pools), [False] * len(tree.pools)
    own = [view.held_by(each).grant.exclusive for each in (*view.rooms, *view.placed)]
    own += [each.kept for each in view.resizing.values()]
    for placed in view.placed.values():
        grant = placed.grant
        by_claim = placed.container.claims and not (grant.shared or grant.preemptible)
        if grant.sort is Sort.NORMAL and grant.shares and not by_claim:
            shared[grant.pool] += grant.shared
            shares[grant.pool] = True
    free = sharable - CPUSet.union(own)
    return [
        Left(
            parent=pool.parent,
            free=len(pool.cpus & free),
            shared=shared[pool.id],
            shares=shares[pool.id],
            published=pool.id in named,
        )
        for pool in tree.pools
    ]


def _granule(layout: Layout) -> int:
    """Return how many CPUs are only given together."""
    if layout.settings.full_cores is not FullCores.REQUIRE:
        return 1
    return threads_per_core(layout, layout.tree.top)


def threads_per_core(layout: Layout, pool: Pool) -> int:
    """Return how many threads the cores of a pool have at most."""
    cores = (core.cpus & layout.machine.online for core in layout.machine.cores)
    return max((len(each) for each in cores if not each.isdisjoint(pool.cpus)), default=1)
