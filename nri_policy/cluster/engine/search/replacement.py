"""Replacement: the pods of failed nodes are placed anew, all others stay where they are.

Where to is what the group was promised: a slice that lost pods is completed in its own domain; a
required request stays in the domain of its level where the rest is; else anywhere. The rules are in
spec cluster.md §9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.search.placement import make_assignment, make_demand, search
from nri_policy.cluster.engine.state.host_limits import Limits
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.objects.assignment import Assignment, DomainAssignment
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.requests.group import GroupStatus, PlacementRequest, PodSet
from nri_policy.cluster.requests.request import Unit, Unplaceable, make_plan, with_slices

_NO_NODE = ""  # name of additional pods beside failed nodes


def replace_failed(  # noqa: PLR0913 - keywords: what is replaced, and in what
    tree: Tree,
    unit: Unit,
    status: GroupStatus,
    settings: ClusterSettings,
    *,
    implied: bool,
    paths: Mapping[str, Path],
    more: Mapping[str, int],
    limits: Limits,
    within: int,
    leader_first: bool,
) -> tuple[dict[str, Assignment], dict[str, Assignment]]:
    """Return the assignments of the new pods, and the whole ones, by pod set.

    *paths* are paths of existing failed nodes; *more* counts additional pods, by pod set. *limits*
    are how many new pods of a pod set nodes take. All go *within* a domain, if it is none below 0.
    Raises Unplaceable.
    """
    new: dict[str, Assignment] = {}
    whole: dict[str, Assignment] = {}
    given = {each.pod_set: each for each in status.assignments}
    members = [each for each in unit.pod_sets if each.name in given][:: -1 if leader_first else 1]
    failed = status.unhealthy_nodes
    kept = {each.name: find_kept_leaves(tree, given[each.name], failed) for each in members}
    trial = tree.fork()
    for pod_set in members:
        asked = pod_set
        if pod_set is unit.leader and unit.workers.request is not None:  # of its workers, not whole
            request = with_slices(unit.workers.request, [])
            asked = replace(pod_set, request=request)
        places = kept[pod_set.name]
        added: Counter[int] = Counter()
        own = given[pod_set.name]
        left = tree.by_leaf(limits.get(pod_set.name, {}))
        lost: Counter[str] = Counter()
        for one in own.domains:
            if (name := host_of_place(own, one)) in failed:
                lost[name] += one.count
        if more.get(pod_set.name):
            lost[_NO_NODE] = more[pod_set.name]
        while lost:
            # a leader and its workers have one request, so their required domain is the same
            rest = sum(kept.values(), Counter())
            search = partial(_Search, trial, asked, settings, implied, failed, left, within)
            names = _together(search, lost, places, rest, paths)
            missing = sum(lost.pop(name) for name in names)
            path = paths.get(names[0])
            found = search(missing).find_some(places, rest, path)
            if (later := missing - sum(found.values())) > 0:
                lost[names[0]] = later
            pod = pod_set.amounts
            trial.take(found, pod)
            added.update(found)
            left = {leaf: most - found.get(leaf, 0) for leaf, most in left.items()}
            places.update(found)
        new[pod_set.name] = make_assignment(tree, pod_set.name, sorted(added.items()))
        whole[pod_set.name] = make_assignment(tree, pod_set.name, sorted(places.items()))
    return new, whole


def _together(
    search: Callable[[int], _Search],
    lost: Mapping[str, int],
    places: Mapping[int, int],
    rest: Mapping[int, int],
    paths: Mapping[str, Path],
) -> list[str]:
    """Return the failed nodes whose pods need one common domain, for one search.

    Otherwise the first node's pods could take a domain with too little room for the rest. A deleted
    node has no labels: it broke a slice if only its pods complete that slice. Those that broke none
    come last: their pods may complete a coarser slice beside others'.
    """

    def is_vague(name: str) -> bool:
        return name not in paths and not search(lost[name]).breaks_slice(places)

    domains = {
        name: search(lost[name]).domain(places, rest, paths.get(name))
        for name in sorted(lost, key=lambda each: (is_vague(each), each))
    }
    first, domain = next(iter(domains.items()))
    if first not in paths and domain is not None:
        return [first]
    return [
        name
        for name, other in domains.items()
        if other == domain and (name in paths) == (first in paths)
    ]


def host_of_place(given: Assignment, place: DomainAssignment) -> str:
    """Return the host of a place, which may be a zone of it."""
    return place.values[given.levels.index(HOSTNAME) if HOSTNAME in given.levels else -1]


def find_kept_leaves(tree: Tree, given: Assignment, failed: Collection[str]) -> Counter[int]:
    """Return the pods that stay, by leaf; raises Unplaceable if one of their domains is gone."""
    places: Counter[int] = Counter()
    for each in given.domains:
        if host_of_place(given, each) in failed:
            continue
        places[find_kept_leaf(tree, given.levels, each.values)] += each.count
    return places


def find_kept_leaf(tree: Tree, levels: Sequence[str], values: Sequence[str]) -> int:
    """Return the leaf of a domain that pods stay in; raises Unplaceable if it is gone.

    They stay on a host that is cordoned, too: it only takes no new ones.
    """
    leaf = tree.shape.find(levels, values)
    if leaf is None or not tree.has_node(leaf):
        raise stale_domain(values[0], tree.left_out.get(values[0], ""))
    return leaf


def stale_domain(value: str, why: str = "") -> Unplaceable:
    """Return Kueue's refusal of a group with a place in a domain that is gone, or left out: *why*.

    Its pods there run on, but the others cannot be placed beside them.
    """
    reason = f" ({why})" if why else ""
    return Unplaceable(
        "Cannot replace the node, because the existing topologyAssignment is invalid, as it"
        f" contains the stale domain {value}{reason}"
    )


class _Search(Struct, frozen=True):
    """The pods that failed nodes took with them."""

    tree: Tree
    pod_set: PodSet
    settings: ClusterSettings
    implied: bool
    failed: Collection[str]
    limits: Mapping[int, int]  # leaf -> pods that it takes at most
    within: int  # domain of the whole group, -1 for any
    missing: int

    def domain(
        self, places: Mapping[int, int], rest: Mapping[int, int], failed: Path | None
    ) -> int | None:
        """Return the domain that `find` requires for these pods; None without such a rule."""
        shape, request = self.tree.shape, self.pod_set.request or PlacementRequest()
        found, _ = self._broken(request, places, failed)
        if found is None and request.required in shape.levels and rest:
            found = shape.domains.above(min(rest), shape.levels.index(request.required))
        both = [each for each in (found, self.within) if each is not None and each >= 0]
        return min(both, key=lambda each: len(shape.domains.leaves_below(each)), default=None)

    def breaks_slice(self, places: Mapping[int, int]) -> bool:
        """Return whether these pods, of a deleted node, complete a slice of *places*."""
        request = self.pod_set.request or PlacementRequest()
        return self._broken(request, places, None)[0] is not None

    def find_some(
        self, places: Mapping[int, int], rest: Mapping[int, int], failed: Path | None
    ) -> dict[int, int]:
        """Return places for the missing pods that need one common domain.

        Of single pods these are only those that complete a slice. Of whole inner slices all, or, if
        the domain does not hold them, those that complete the outer one.
        """
        request = self.pod_set.request or PlacementRequest()
        broken, lacking = self._broken(request, places, failed)
        only = self if broken is None else replace(self, missing=min(self.missing, lacking))
        if all(self.missing % each.size for each in request.slices):
            return only.find(places, rest, failed)
        try:
            return self.find(places, rest, failed)
        except Unplaceable as refused:
            with suppress(Unplaceable):
                if only.missing < self.missing:
                    return only.find(places, rest, failed)
            raise refused from None

    def find(
        self, places: Mapping[int, int], rest: Mapping[int, int], failed: Path | None
    ) -> dict[int, int]:
        """Return where they go, given where the others are and the path of the failed node.

        *places* are those of the same pod set, *rest* what a required request stays with.
        """
        tree, pod_set, missing = self.tree, self.pod_set, self.missing
        request = pod_set.request or PlacementRequest()
        within = self.domain(places, rest, failed)
        if request.slices and missing % request.slices[0].size:
            pod_set = replace(pod_set, request=_finer(request, missing))
        unit = Unit(workers=replace(pod_set, count=missing))
        wanted = make_plan(
            unit, implied=self.implied, levels=tree.shape.levels, settings=self.settings
        )
        demand = make_demand(tree, unit, wanted, self.settings, places)
        trial = tree.fork()
        trial.close_hosts(self.failed, demand.kind)
        leaves = None if within is None else tree.shape.domains.leaves_below(within)
        counts = trial.count_once(replace(demand, limits=self.limits), leaves)
        return dict(search(trial, counts, demand.kind, wanted, unit)[0])

    def _broken(
        self, request: PlacementRequest, places: Mapping[int, int], failed: Path | None
    ) -> tuple[int | None, int]:
        """Return the domain of the slice that lost pods, and how many; None if it is whole.

        Where the failed node is gone with its labels, it is the one that the missing pods complete.
        """
        tree = self.tree
        for layer in reversed(request.slices):  # the innermost first: it promises most (§9)
            if layer.level not in tree.shape.levels:
                continue
            level = tree.shape.levels.index(layer.level)
            kept: Counter[int] = Counter()
            for leaf, count in places.items():
                if failed is None or tree.shape.paths[leaf][: level + 1] == failed[: level + 1]:
                    kept[tree.shape.domains.above(leaf, level)] += count
            for domain, count in sorted(kept.items()):
                if count % layer.size and (
                    failed is not None or (count + self.missing) % layer.size == 0
                ):
                    return domain, layer.size - count % layer.size
        return None, 0


def _finer(request: PlacementRequest, missing: int) -> PlacementRequest:
    """Return *request* with those inner layers that divide what is missing, else single pods.

    Slices alone name no level: single pods of them are unconstrained.
    """
    return with_slices(request, [each for each in request.slices[1:] if missing % each.size == 0])
