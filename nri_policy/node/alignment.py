"""Alignment: whether a container has its CPUs in one NUMA node, and its memory near them."""

from __future__ import annotations

from nri_policy.engine.grant import Grant
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.state import Placed
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node.view import NodeView
from nri_policy.workload.request import Sort


def is_split(view: NodeView, placed: Placed) -> bool:
    """Return whether the CPUs of a container are in more than one NUMA node."""
    cpus = view.cpus(placed)
    nodes = (node.cpus for node in view.layout.machine.nodes if node.cpus)
    return bool(cpus) and not any(cpus <= node for node in nodes)


def is_spilled(view: NodeView, placed: Placed) -> bool:
    """Return whether a container has memory beyond that of its pool."""
    pool = view.layout.tree.pools[placed.grant.pool]
    own = CPUSet.union(pool.memory.values())
    return placed.grant.sort is Sort.NORMAL and not placed.grant.mems <= own


def is_remote(layout: Layout, grant: Grant, free: CPUSet) -> bool:
    """Return whether a container that shares some of the *free* CPUs has no memory near them.

    A container that was moved up keeps its memory, and the CPUs near it may be exclusive to others.
    """
    if grant.sort is not Sort.NORMAL or not (grant.shares and grant.mems):
        return False
    near = layout.memory.beside(layout.cpus_of(grant, free, hide_hyperthreads=False))
    return grant.mems.isdisjoint(near)


def describe_misfit(view: NodeView, placed: Placed) -> str | None:
    """Return why a container is split over nodes; None if it is not, or if it asked for that.

    Containers that are not Guaranteed may use a wide part of the machine for bursts on purpose.
    """
    aligns = placed.request.qos is QoS.GUARANTEED and has_cpu_request(placed)
    if aligns and is_split(view, placed) and not _is_spread_by_hints(view.layout, placed):
        return "its CPUs are in more than one NUMA node"
    if is_remote(view.layout, placed.grant, view.free):
        ids = placed.grant.mems
        where = f"node{'s' * (len(ids) > 1)} {ids}"
        return f"its memory is on {where}, none of its CPUs is"
    if is_spilled(view, placed):
        return "its memory is not all beside its CPUs"
    return None


def _is_spread_by_hints(layout: Layout, placed: Placed) -> bool:
    """Return whether a container has CPUs near each of its devices, as it asked (§6)."""
    steering, own = placed.request.steering, placed.grant.exclusive
    if not steering.pick_by_hints or placed.request.shares:
        return False
    places = [*layout.topology_hints.localities(steering.hints)]
    return own <= CPUSet.union(places) and all(not own.isdisjoint(each) for each in places)


def has_cpu_request(placed: Placed) -> bool:
    """Return whether a container has a CPU request: without one it is not aligned."""
    return placed.grant.sort is Sort.NORMAL and placed.asked.milli > 0
