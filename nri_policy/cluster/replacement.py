"""Replacement: the pods of failed nodes are placed anew, all others stay where they are.

Where to is what the group was promised: a slice that lost pods is completed in its own domain; a required request
stays in the domain of its level where the rest is; else anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nri_policy.cluster.group import Assignment, Placed, Request, Slice, Status
from nri_policy.cluster.placement import assignment, search
from nri_policy.cluster.request import NO_LEVEL, Plan, Refused, Unit, asks, plan
from nri_policy.cluster.settings import Settings
from nri_policy.cluster.tree import Tree

Places = list[tuple[int, int]]  # leaf and pods


def replace_failed(
    tree: Tree, unit: Unit, status: Status, settings: Settings, *, implied: bool
) -> tuple[dict[str, Assignment], dict[str, Assignment]]:
    """Return the assignments of the new pods, and the whole ones, by pod set; raises Refused."""
    new: dict[str, Assignment] = {}
    whole: dict[str, Assignment] = {}
    for pod_set in unit.pod_sets:
        for each in status.assignments:
            if each.pod_set != pod_set.name:
                continue
            kept, lost = _split(each, status.unhealthy_nodes)
            places = _leaves(tree, kept, each.levels)
            missing = sum(one.count for one in lost)
            found: Places = []
            if missing:
                found = _search(
                    tree, Unit(workers=pod_set), places, lost, missing, settings, implied=implied
                )
            new[pod_set.name] = assignment(tree, pod_set.name, found)
            total = dict(places)
            for leaf, count in found:
                total[leaf] = total.get(leaf, 0) + count
            whole[pod_set.name] = assignment(tree, pod_set.name, sorted(total.items()))
    return new, whole


def _split(each: Assignment, failed: Sequence[str]) -> tuple[list[Placed], list[Placed]]:
    """Return what stays and what is lost, by the last value, which is the node's."""
    kept = [one for one in each.domains if one.values[-1] not in failed]
    return kept, [one for one in each.domains if one.values[-1] in failed]


def _leaves(tree: Tree, kept: Sequence[Placed], levels: Sequence[str]) -> Places:
    """Return where the kept pods are; raises Refused if one of their domains is gone."""
    places = []
    for each in kept:
        leaf = tree.find(levels, each.values)
        if leaf is None or not tree.rows.nodes_at(leaf):
            raise Refused(
                "Cannot replace the node, because the existing topologyAssignment is invalid, as it"
                f" contains the stale domain {each.values[0]}"
            )
        places.append((leaf, each.count))
    return places


def _search(  # noqa: PLR0913 - what a replacement follows from
    tree: Tree,
    unit: Unit,
    places: Places,
    lost: Sequence[Placed],
    missing: int,
    settings: Settings,
    *,
    implied: bool,
) -> Places:
    """Return where the missing pods go."""
    request = unit.workers.request or Request()
    within = _broken(tree, request, places, missing)
    if within is None and request.required is not None and places:
        levels = tree.topology.every_level
        if request.required in levels:
            within = tree.domains.above(places[0][0], levels.index(request.required))
    if request.slices and within is not None and missing % request.slices[0].size:
        unit = _finer(unit, request, missing)
    wanted = plan(unit, implied=implied, topology=tree.topology, settings=settings)
    spec = unit.workers.template.spec
    kind = tree.filter(spec, scored=settings.preferred_node_affinity)
    counts = tree.count(
        spec.effective(),
        kind,
        size=wanted.size,
        slice_level=wanted.slice_level,
        inner=wanted.inner,
        within=None if within is None else tree.domains.leaves_below(within),
    )
    return search(tree, counts, kind, wanted, missing)[0]


def _broken(tree: Tree, request: Request, places: Places, missing: int) -> int | None:
    """Return the domain of the slice that lost pods, None if only whole slices were lost."""
    levels = tree.topology.every_level
    if not request.slices or missing % request.slices[0].size == 0:
        return None
    for layer in reversed(request.slices):
        if missing % layer.size == 0 or layer.level not in levels:
            continue
        held: dict[int, int] = {}
        for leaf, count in places:
            domain = tree.domains.above(leaf, levels.index(layer.level))
            held[domain] = held.get(domain, 0) + count
        for domain, count in sorted(held.items()):
            if (count + missing) % layer.size == 0:
                return domain
        return None
    return None


def _finer(unit: Unit, request: Request, missing: int) -> Unit:
    """Return *unit* with the largest inner layer that divides what is missing, else single pods."""
    fitting = [each for each in reversed(request.slices) if missing % each.size == 0]
    slices = [Slice(level=fitting[0].level, size=fitting[0].size)] if fitting else []
    finer = Request(
        required=request.required,
        preferred=request.preferred,
        unconstrained=request.unconstrained,
        slices=slices,
        topology=request.topology,
        algorithm=request.algorithm,
    )
    if not asks(finer):
        raise Refused(NO_LEVEL)
    return replace(unit, workers=replace_request(unit, finer))
