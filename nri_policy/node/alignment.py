"""Alignment: whether a container lies well: its CPUs in one NUMA node, its memory beside them."""

from __future__ import annotations

from nri_policy.engine.grant import Grant
from nri_policy.engine.layout import Layout
from nri_policy.engine.state import Placed
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node.view import NodeView
from nri_policy.workload.request import Sort


def spans(view: NodeView, placed: Placed) -> bool:
    """Whether the CPUs of a container lie in more than one NUMA node."""
    cpus = view.cpus(placed)
    nodes = (node.cpus for node in view.layout.machine.nodes if node.cpus)
    return bool(cpus) and not any(cpus <= node for node in nodes)


def spills(view: NodeView, placed: Placed) -> bool:
    """Whether the memory of a container reaches beyond what belongs to its pool."""
    pool = view.layout.tree.pools[placed.grant.pool]
    own = CPUSet.union(pool.memory.values())
    return placed.grant.sort is Sort.NORMAL and not placed.grant.mems <= own


def is_remote(layout: Layout, grant: Grant, free: CPUSet) -> bool:
    """Whether a container that shares some of the *free* CPUs has no memory beside any of them.

    One that was moved up keeps its memory, and others may own the CPUs beside it.
    """
    if grant.sort is not Sort.NORMAL or not (grant.shares and grant.mems):
        return False
    near = layout.memory.beside(layout.cpus_of(grant, free, hide_hyperthreads=False))
    return grant.mems.isdisjoint(near)


def misfit(view: NodeView, placed: Placed) -> str | None:
    """Return why a container is split over nodes, None where it is not, or asked for that.

    Containers that are not Guaranteed are meant to have a wide part of the machine to burst into.
    """
    aligns = placed.request.qos is QoS.GUARANTEED and asks_for_cpu(placed)
    if aligns and spans(view, placed) and not _is_spread_by_hints(view.layout, placed):
        return "its CPUs are in more than one NUMA node"
    if is_remote(view.layout, placed.grant, view.free):
        ids = placed.grant.mems
        where = f"node{'s' * (len(ids) > 1)} {ids}"
        return f"its memory is on {where}, none of its CPUs is"
    if spills(view, placed):
        return "its memory is not all beside its CPUs"
    return None


def _is_spread_by_hints(layout: Layout, placed: Placed) -> bool:
    """Whether a container's exclusive CPUs are beside each of its devices, as it asked (§6)."""
    steering, own = placed.request.steering, placed.grant.exclusive
    if not steering.pick_by_hints or placed.request.shares:
        return False
    places = [*layout.topology_hints.localities(steering.hints)]
    return own <= CPUSet.union(places) and all(not own.isdisjoint(each) for each in places)


def asks_for_cpu(placed: Placed) -> bool:
    """Whether it is the policy's to align: containers without a CPU request share what there is."""
    return placed.grant.sort is Sort.NORMAL and placed.asked.milli > 0
