"""Which domains have too large a share of a service's groups: the rules of `TopologySpreading`.

A domain D of a rule's level is *crowded* if it has more than the rule's share of the groups there
are: 100 · count(D) > share · N, the new group not counted. Each pod set counts once in each domain
that it is in, a leader with its workers as one. Crowded domains are closed by a required rule; by a
preferred one they come last, the least crowded first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from nri_policy.cluster.engine.search.unfit_message import describe_unknown_level
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.state.usage import find_named_nodes
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.requests.request import Unit, Unplaceable, units_of
from nri_policy.cluster.requests.topology_spreading import TopologySpreading, selector_of
from nri_policy.cluster.view import ClusterView


class CrowdedDomain(Struct, frozen=True):
    """A domain that has too many groups of a service."""

    path: Path
    level: str
    groups: int
    of: int
    share: int  # percent, that it may have
    closed: bool  # else only the last resort

    def __str__(self) -> str:
        level = self.level.rpartition("/")[2]
        return f"{level} {self.path[-1]} has {self.groups} of {self.of}, more than {self.share}%"


def find_crowded_domains(
    group: PlacementGroup,
    unit: Unit,
    tree: Tree,
    groups: Iterable[PlacementGroup],
    view: ClusterView,
) -> list[CrowdedDomain]:
    """Return the crowded domains for *unit* of *group*, among *groups*; the least crowded first.

    Raises Unplaceable for a rule about what is no level.
    """
    spreading = spreading_of(unit)
    if spreading is None:
        return []
    levels = tree.shape.topology.levels
    for rule in spreading.rules:
        if rule.key not in levels:
            raise Unplaceable(describe_unknown_level(rule.key, tree.shape.topology, view))
    selector = selector_of(spreading, unit.workers.template.labels)
    if selector is None:
        return []
    own = group.key
    alike = [
        each
        for each in groups
        if each.status.assignments
        and each.namespace == group.namespace
        and each.key != own
        and any(selector.selects(one.template.labels) for one in each.pod_sets)
    ]
    found = []
    for rule in spreading.rules:
        path = tuple(levels[: levels.index(rule.key) + 1])
        counts = Counter(place for each in alike for place in _places(each, path, view))
        total, share = counts.total(), rule.max_share_allowing_placement
        found += [
            CrowdedDomain(
                domain, rule.key, count, total, share, rule.enforcement_mode == "Required"
            )
            for domain, count in counts.items()
            if 100 * count > share * total
        ]
    return sorted(found, key=lambda each: (each.groups / each.of, each.path))


def spreading_of(unit: Unit) -> TopologySpreading | None:
    """Return the rules of a pod set, and of its leader."""
    request = unit.workers.request
    return None if request is None else request.topology_spreading


def _places(group: PlacementGroup, levels: Path, view: ClusterView) -> Iterator[Path]:
    """Yield the domains of the last of *levels* in which each of a group's units is."""
    given = {each.pod_set: each for each in group.status.assignments}
    for unit in units_of(group):
        own = [given[each.name] for each in unit.pod_sets if each.name in given]
        yield from {path for each in own for path in domains_of(each, levels, view)}


def domains_of(assignment: Assignment, levels: Path, view: ClusterView) -> Iterator[Path]:
    """Yield the domain of the last of *levels* that each place of an assignment is in."""
    named = tuple(assignment.levels[: len(levels)]) == levels
    for each in assignment.domains:
        if named:
            yield tuple(each.values[: len(levels)])
            continue
        for name in find_named_nodes(assignment.levels, each.values, view)[:1]:
            yield tuple(view.nodes[name].labels.get(level, "") for level in levels)


def nodes_in(paths: Iterable[Path], tree: Tree) -> frozenset[str]:
    """Return the nodes of domains."""
    domains = (tree.shape.domain(path) for path in paths)
    leaves = [tree.shape.domains.leaves_below(each) for each in domains if each is not None]
    return frozenset(tree.nodes_in(leaves)) if leaves else frozenset()
