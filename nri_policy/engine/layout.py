"""Layout: what follows from the machine and the settings alone, made once and then only read."""

from __future__ import annotations

from dataclasses import dataclass

from nri_policy.engine.nearness import Nearness
from nri_policy.hardware.machine import Machine
from nri_policy.pools.attraction import Attraction
from nri_policy.pools.capacity import NOTHING, Capacity, Earlier, capacity_of
from nri_policy.pools.memory_map import MemoryMap
from nri_policy.pools.picker import Picker, picker_of
from nri_policy.pools.priority import PriorityClasses, classes_of
from nri_policy.pools.tree import Pool, PoolTree, build
from nri_policy.settings import Alignment, Level, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A machine under some settings: its pools, capacities and picking orders."""

    machine: Machine
    settings: Settings
    tree: PoolTree
    capacity: Capacity
    picker: Picker
    classes: PriorityClasses
    memory: MemoryMap
    attraction: Attraction
    nearness: Nearness
    burst_levels: dict[
        Level, tuple[int, ...]
    ]  # closeness of each pool to a level: 0 at it, -links off it
    too_coarse: tuple[
        int, ...
    ]  # pools that `alignment` forbids to Guaranteed containers with exclusive CPUs


def layout_of(machine: Machine, settings: Settings, earlier: Earlier = NOTHING) -> Layout:
    """Return the layout of *machine* under *settings*; CapacityError if they ask the impossible.

    What was reserved *earlier* stays so as far as possible.
    """
    picker = picker_of(machine)
    capacity = capacity_of(machine, settings, picker, earlier)
    tree = build(machine, capacity.available)
    return Layout(
        machine=machine,
        settings=settings,
        tree=tree,
        capacity=capacity,
        picker=picker,
        classes=classes_of(machine),
        memory=MemoryMap(machine, tree, settings),
        attraction=Attraction(tree),
        nearness=Nearness(machine, tree),
        burst_levels={level: _closeness(tree, level) for level in Level},
        too_coarse=tuple(
            pool.id
            for pool in tree.pools
            if settings.alignment is Alignment.NUMA and not _within_numa(tree, pool)
        ),
    )


def _within_numa(tree: PoolTree, pool: Pool) -> bool:
    return any(Level.NUMA in above.levels for above in tree.path(pool))


def _closeness(tree: PoolTree, level: Level) -> tuple[int, ...]:
    """Return for each pool minus the links to the nearest pool at *level* above or below it."""
    leaves = [pool for pool in tree.pools if not pool.children]
    targets = {tree.at_level(leaf, level).id for leaf in leaves}
    closeness = [-len(tree.pools)] * len(tree.pools)
    for pool in tree.pools:
        for above in tree.path(pool):
            links = above.depth - pool.depth
            if above.id in targets:
                closeness[pool.id] = max(closeness[pool.id], links)
            if pool.id in targets:
                closeness[above.id] = max(closeness[above.id], links)
    return tuple(closeness)
