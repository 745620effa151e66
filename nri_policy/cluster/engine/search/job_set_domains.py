"""Which domains a group shares with other groups of its JobSet; spec cluster.md §3.

Jobs of a JobSet that start one after the other are a group for each step. Groups that name the same
level to share go where the others have places. Places on failed hosts do not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from nri_policy.cluster.engine.search.replacement import find_kept_leaf, host_of_place
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.requests.request import Unplaceable, exclusive_of, together_of


def find_other_steps(own: PlacementGroup, groups: Iterable[PlacementGroup]) -> list[PlacementGroup]:
    """Return the *groups* with places that a group shares a domain with; none if it is exclusive.

    They are of its JobSet, and name the same level.
    """
    together = together_of(own) if own.job_set else None
    if together is None or exclusive_of(own.pod_sets) is not None:
        return []
    return [
        each
        for each in groups
        if each.job_set == own.job_set
        and each.namespace == own.namespace
        and each.name != own.name
        and each.status.assignments
        and exclusive_of(each.pod_sets) is None
        and together_of(each) == together
    ]


def find_domains_of_steps(
    steps: Iterable[PlacementGroup], level: int, tree: Tree
) -> dict[Path, str]:
    """Return the domains of *level* that groups are in, by path, each with the name of a group."""
    found: dict[Path, str] = {}
    for each in steps:
        failed = each.status.unhealthy_nodes
        for assignment in each.status.assignments:
            for one in assignment.domains:
                if host_of_place(assignment, one) in failed:
                    continue
                with suppress(Unplaceable):  # its node is gone
                    leaf = find_kept_leaf(tree, assignment.levels, one.values)
                    found.setdefault(tree.shape.paths[leaf][: level + 1], each.full_name)
    return dict(sorted(found.items()))
