"""Which domains a group shares with other groups of its JobSet; spec cluster.md §3.

Jobs of a JobSet that start one after the other are a group for each step. Groups that name the same
level to share go where the others have places. Places on failed hosts do not count. Of steps that
lack places at the same time, none may take the room that another one needs: they are placed as one.
Steps that have no group yet are placed with them, if a domain has room for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from nri_policy.cluster.engine.search.replacement import find_kept_leaf, host_of_place
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup, PodSet
from nri_policy.cluster.requests.request import (
    Unplaceable,
    exclusive_of,
    job_set_sharing,
    together_of,
)


def find_other_steps(own: PlacementGroup, groups: Iterable[PlacementGroup]) -> list[PlacementGroup]:
    """Return the *groups* with places that a group shares a domain with; none if it is exclusive.

    They are of its JobSet, and name the same level.
    """
    return [each for each in find_steps(own, groups) if each.status.assignments]


def find_steps(own: PlacementGroup, groups: Iterable[PlacementGroup]) -> list[PlacementGroup]:
    """Return the *groups* that share a domain with a group, with places or without."""
    together = together_of(own) if job_set_sharing(own) else None
    if together is None or exclusive_of(own.pod_sets) is not None:
        return []
    return [
        each
        for each in groups
        if each.job_set == own.job_set
        and each.namespace == own.namespace
        and each.name != own.name
        and exclusive_of(each.pod_sets) is None
        and together_of(each) == together
    ]


def find_lacking_steps(
    own: PlacementGroup, groups: Iterable[PlacementGroup]
) -> list[PlacementGroup]:
    """Return those that share a domain with a group, and have lost places or have none."""
    return [
        each
        for each in find_steps(own, groups)
        if each.status.unhealthy_nodes or not each.status.assignments
    ]


def merge_steps(own: PlacementGroup, others: Sequence[PlacementGroup]) -> PlacementGroup:
    """Return a group with the pod sets and places of *own* and of *others*, to be placed as one.

    The pod sets of *own* keep their names. Those of *others* get their group's name before theirs.
    """
    pod_sets, assignments = [*own.pod_sets], [*own.status.assignments]
    failed = [*own.status.unhealthy_nodes]
    for each in others:
        pod_sets += [_rename(each, pod_set) for pod_set in each.pod_sets]
        assignments += [
            replace(one, pod_set=f"{each.name}/{one.pod_set}") for one in each.status.assignments
        ]
        failed += each.status.unhealthy_nodes
    status = GroupStatus(assignments=assignments, unhealthy_nodes=[*dict.fromkeys(failed)])
    return replace(own, pod_sets=(*pod_sets,), status=status)


def _rename(group: PlacementGroup, pod_set: PodSet) -> PodSet:
    request = pod_set.request
    if request is not None and request.leader_group is not None:
        request = replace(request, leader_group=f"{group.name}/{request.leader_group}")
    return replace(pod_set, name=f"{group.name}/{pod_set.name}", request=request)


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
