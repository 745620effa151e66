"""Which domains are taken by groups that have theirs to themselves; spec cluster.md §3.

Only groups with such a request keep each other out, of whatever owner and namespace; all others go
anywhere. Of two that name different levels the coarser one counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from nri_policy.cluster.engine.search.crowding import domains_of
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.requests.request import exclusive_of
from nri_policy.cluster.view import ClusterView


def find_taken_domains(
    own: PlacementGroup, level: int, tree: Tree, groups: Iterable[PlacementGroup], view: ClusterView
) -> dict[Path, str]:
    """Return the domains that *own* must not use, of *level* or coarser, and which group is there.

    *own* asks for a domain of *level* to itself, and other *groups* may have such domains.
    """
    levels = tree.shape.topology.levels
    found: dict[Path, str] = {}
    for each in groups:
        other = exclusive_of(each.pod_sets) if each.status.assignments else None
        if other is None or each.key == own.key:
            continue
        at = min(level, levels.index(other)) if other in levels else level
        for assignment in each.status.assignments:
            for path in domains_of(assignment, tuple(levels[: at + 1]), view):
                found.setdefault(path, each.full_name)
    return found
