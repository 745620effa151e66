"""Layout: what follows from the machine and the settings alone, made once and then only read."""

from __future__ import annotations

from array import array

import msgspec
from msgspec import Struct

from nri_policy.engine.grant import Grant
from nri_policy.engine.state.topology_hints import TopologyHints
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.pools.affinity_scores import AffinityScorer
from nri_policy.pools.capacity import (
    NOTHING,
    Capacity,
    CapacityError,
    Earlier,
    capacity_left,
    capacity_of,
    note_absent,
    note_lost,
)
from nri_policy.pools.cpu_priority import Classes, classes_of
from nri_policy.pools.memory_map import MemoryMap
from nri_policy.pools.picker import Picker, picker_of
from nri_policy.pools.tree import PoolTree, build
from nri_policy.pools.width import Widths, widths_of
from nri_policy.settings import Alignment, Level, Preserve, Settings
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.annotations import ZONE
from nri_policy.workload.hints import Hint
from nri_policy.workload.request import Sort
from nri_policy.workload.request_reader import RequestReader


class Layout(Struct, frozen=True, kw_only=True):
    """A machine under some settings: its pools, capacities and picking orders."""

    machine: Machine
    settings: Settings
    memory_bytes: int  # of all nodes, by which the kubelet reckons OOM scores
    tree: PoolTree
    capacity: Capacity
    shortages: tuple[str, ...]  # what of the settings the machine can no longer give, for people
    picker: Picker
    widths: Widths
    classes: Classes
    numa_nodes: tuple[CPUSet, ...]  # the domains of the level, by which CPUs are shared out (§6)
    l3_domains: tuple[CPUSet, ...]
    memory: MemoryMap
    affinity_scorer: AffinityScorer
    topology_hints: TopologyHints
    # closeness of each pool to a level: 0 at it, -links off it
    burst_levels: dict[Level, array[float]]
    gives_classes: bool  # to containers without an annotation
    # pools that `alignment` forbids to Guaranteed containers with exclusive CPUs (§4)
    too_coarse: tuple[int, ...]
    aligned: bool  # whether Guaranteed containers with exclusive CPUs must be in a NUMA node
    requests: RequestReader  # reads what containers ask for

    def cpus_of(self, grant: Grant, free: CPUSet, hide_hyperthreads: bool) -> CPUSet:
        """Return the CPUs that a grant allows (§9); empty for `preserve`.

        *free* are all free CPUs; a sharer gets those in its pool.
        """
        if grant.sort is Sort.PRESERVE:
            return EMPTY
        own = grant.exclusive | grant.claimed | grant.rest
        cpus = self.capacity.reserved if grant.sort is Sort.RESERVED else own
        if grant.shares:
            # a preemptible one at the top uses the reserved CPUs while all others are exclusive
            cpus |= (free & self.tree.pools[grant.pool].cpus) or self.capacity.reserved
        return self.picker.first_threads(cpus) if hide_hyperthreads else cpus

    def unowned(self, grant: Grant, taken: CPUSet) -> CPUSet:
        """Return the CPUs of a container with `cpu.preserve`; empty if they are not set.

        With `preserve: unowned`: the CPUs that it had before, without the *taken* CPUs.
        """
        if self.settings.preserve is Preserve.ALL:
            return EMPTY
        had = (grant.preserved & self.machine.online) or self.machine.online
        return (had - taken) or self.capacity.reserved

    @property
    def notes(self) -> tuple[str, ...]:
        """What is odd about it, for people."""
        absent = note_absent(self.settings, self.machine)
        return (*self.machine.notes, *self.tree.notes, *self.capacity.notes, *absent)


def layout_of(
    machine: Machine, settings: Settings, earlier: Earlier = NOTHING, *, forced: bool = False
) -> Layout:
    """Return the layout of *machine* under *settings*; raises CapacityError if impossible.

    The CPUs reserved *earlier* stay reserved as far as possible. A *forced* layout always succeeds,
    and lists its shortages; one that is not forced can only lack reserved CPUs that went offline.
    """
    tree = build(machine, machine.online)
    picker = picker_of(machine, tree)
    if forced:
        capacity, shortages = capacity_left(machine, settings, picker, earlier)
    else:
        capacity = capacity_of(machine, settings, picker, earlier)
        shortages = note_lost(settings, capacity.available, capacity)
    if capacity.available != machine.online:
        tree = build(machine, capacity.available)
        picker = picker_of(machine, tree)
    try:
        memory = MemoryMap(machine, tree, settings)
    except CapacityError as error:
        if not forced:
            raise
        shortages += (f"{error}: none is reserved",)
        none = msgspec.structs.replace(settings.reserved, memory=0)
        memory = MemoryMap(machine, tree, msgspec.structs.replace(settings, reserved=none))
    aligned = settings.alignment is Alignment.NUMA
    return Layout(
        machine=machine,
        settings=settings,
        memory_bytes=machine.memory,
        requests=RequestReader(settings, machine.memory, _zones(machine, tree)),
        tree=tree,
        capacity=capacity,
        shortages=shortages,
        picker=picker,
        widths=widths_of(tree, picker, capacity.sharable),
        classes=classes_of(machine),
        numa_nodes=tree.domains_of(Level.NUMA),
        l3_domains=tree.domains_of(Level.L3CACHE),
        memory=memory,
        affinity_scorer=AffinityScorer(tree),
        topology_hints=TopologyHints(machine, tree),
        gives_classes=settings.gives_classes,
        burst_levels={level: _closeness(tree, level) for level in Level},
        too_coarse=tuple(pool.id for pool in tree.pools if aligned and not tree.within_numa(pool)),
        aligned=aligned,
    )


def _zones(machine: Machine, tree: PoolTree) -> dict[str, Hint]:
    """Return the hint that each name of a zone is (§8).

    Zones are named as in the NodeResourceTopology: `node-N`, or as pools are.
    """
    names = {f"node-{each.id}": CPUSet([each.id]) for each in machine.nodes}
    pools = {pool.name: pool.cpus for pool in tree.pools}
    return {
        name: Hint(
            source=ZONE,
            kind=HintKind.ZONE,
            cpus=pools.get(name, EMPTY),
            nodes=names.get(name, EMPTY),
        )
        for name in names | pools
    }


def _closeness(tree: PoolTree, level: Level) -> array[float]:
    """Return for each pool minus the links to the nearest pool at *level* above or below it."""
    leaves = [pool for pool in tree.pools if not pool.children]
    targets = {tree.at_level(leaf, level).id for leaf in leaves}
    closeness = array("d", [-len(tree.pools)]) * len(tree.pools)
    for pool in tree.pools:
        for above in tree.path(pool):
            links = above.depth - pool.depth
            if above.id in targets:
                closeness[pool.id] = max(closeness[pool.id], links)
            if pool.id in targets:
                closeness[above.id] = max(closeness[above.id], links)
    return closeness


def successors(old: PoolTree, new: PoolTree) -> list[int | None]:
    """Return for each pool of *old* its successor in *new*: the one around its remaining CPUs.

    Names are not enough: a socket that loses one of its two NUMA nodes becomes the other. None if
    no CPU remains.
    """
    left = [pool.cpus & new.top.cpus for pool in old.pools]
    return [new.around(cpus).id if cpus else None for cpus in left]
