"""Spreading of a pod set when its group is placed: everywhere, or inside what it is packed into.

A request that names a level beside `spreadOver` is packed first: the domain of that level (or above
it, if only preferred) that would hold all is chosen by the rules of packing. Its hosts are then
filled by the rules of spreading (spec cluster.md §6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from nri_policy.cluster.engine.search.placement import PackedUnit
from nri_policy.cluster.engine.search.replacement import find_kept_leaf, stale_domain
from nri_policy.cluster.engine.search.unfit_message import describe_limit
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.objects.assignment import Assignment, DomainAssignment
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.requests.group import GroupStatus, PlacementRequest, PodSet
from nri_policy.cluster.requests.request import Unit, Unplaceable
from nri_policy.cluster.view import ClusterView


def nodes_around(tree: Tree, found: PackedUnit) -> frozenset[str]:
    """Return the nodes of the domain that something is packed into."""
    leaves = [leaf for leaf, _ in found.places] + [found.leader] * (found.leader >= 0)
    return _around(tree, leaves, found.level)


def _around(tree: Tree, leaves: Collection[int], level: int) -> frozenset[str]:
    """Return the nodes of the one domain at *level*, or above it, that has all *leaves*."""
    domains = {tree.shape.domains.above(leaf, level) for leaf in leaves}
    while len(domains) > 1 and level:
        level -= 1
        domains = {tree.shape.domains.above(leaf, level) for leaf in leaves}
    return frozenset(tree.nodes_in(tree.shape.domains.leaves_below(each) for each in domains))


def replace_spread(  # noqa: PLR0913 - what is replaced, and in what
    tree: Tree,
    unit: Unit,
    status: GroupStatus,
    spread: Callable[[PodSet, Counter[str], Collection[str]], Assignment],
    view: ClusterView,
    *,
    more: Mapping[str, int],
) -> tuple[dict[str, Assignment], dict[str, Assignment]]:
    """Return the assignments of the pods that failed nodes had, and the whole ones; Unplaceable.

    *more* pods of a pod set go with them. Like the others they are spread, a required request in
    the domain where the rest is.
    """
    new: dict[str, Assignment] = {}
    whole: dict[str, Assignment] = {}
    failed = frozenset(status.unhealthy_nodes)
    given = {each.pod_set: each for each in status.assignments}
    request = unit.workers.request or PlacementRequest()
    members = [each for each in unit.pod_sets if each.name in given]
    stay = {
        each.name: [one for one in given[each.name].domains if one.values[0] not in failed]
        for each in members
    }
    hosts = [one.values[0] for own in stay.values() for one in own]
    if gone := [host for host in hosts if not view.on_host(host)]:
        raise stale_domain(gone[0])
    required = request.required in tree.shape.levels
    # Without a required level hosts need no labels: they may be in no topology.
    rest = [find_kept_leaf(tree, [HOSTNAME], [host]) for host in hosts if required]
    for pod_set in reversed(members):  # the leader first, as one host must hold it
        domains, kept = given[pod_set.name].domains, stay[pod_set.name]
        missing = sum(each.count for each in domains) - sum(each.count for each in kept)
        missing += more.get(pod_set.name, 0)
        within = view.nodes.keys() - failed
        if rest:
            level = tree.shape.levels.index(request.required)
            within &= _around(tree, rest[:1], level)
        own = count_by_node([Assignment(pod_set.name, [HOSTNAME], kept)], view)
        asked = replace(pod_set, count=missing, request=request)
        added = spread(asked, own, within)
        if required:
            found = (tree.shape.find([HOSTNAME], one.values) for one in added.domains)
            rest += [leaf for leaf in found if leaf is not None]
        pods = own + count_by_node([added], view)
        new[pod_set.name] = added
        whole[pod_set.name] = make_host_assignment(pod_set.name, pods, view.nodes)
    return new, whole


def count_by_node(assignments: Iterable[Assignment], view: ClusterView) -> Counter[str]:
    """Return the pods of assignments whose leaves are hosts, by the names of nodes."""
    pods: Counter[str] = Counter()
    for each in assignments:
        for place in each.domains if each.levels[0] == HOSTNAME else ():
            for node in view.on_host(place.values[0])[:1]:
                pods[node.name] += place.count
    return pods


def make_host_assignment(
    name: str, pods: Mapping[str, int], nodes: Mapping[str, ClusterNode]
) -> Assignment:
    """Return where a pod set is, by the names of nodes, as groups store it."""
    hosts = sorted((nodes[node].host, number) for node, number in pods.items())
    domains = [DomainAssignment(values=[host], count=number) for host, number in hosts]
    return Assignment(pod_set=name, levels=[HOSTNAME], domains=domains)


def spread_refusal(pod_set: PodSet, left: int) -> Unplaceable:
    """Return the refusal of a pod set of which *left* pods find no place."""
    fits = f"spreading allows to fit only {pod_set.count - left} out of {pod_set.count} pod(s)"
    request = pod_set.request or PlacementRequest()
    apart = [f", at most one in each {label}" for label in request.apart_over]
    return Unplaceable("".join((fits, *apart, describe_limit(request.max_per_host))))
