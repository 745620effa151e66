"""How the pod sets of a group follow the pods that are there: other requests, more pods or fewer.

Only the owner of a group may change its size; a group that a user wrote stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from nri_policy.cluster.groups.assembly import (
    Incomplete,
    Member,
    assemble_group,
    check_complete,
    check_members,
    find_unlike,
    pod_set_names,
)
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.record import SeenGroup
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.requests.group import PlacementGroup, PodSet, places_by_pod_set


def fit_to_pods(
    seen: SeenGroup, members: Sequence[Member], known: Members, levels: Collection[str]
) -> PlacementGroup:
    """Return a complete group with the pod sets that its pods, *members*, request.

    If new pods use the name of a finished group again, or their owner has another template,
    their requests replace the old ones. Raises Incomplete and DocumentError.
    """
    group, spared = seen.group, known.count_spared(seen.group.key)
    lacks = None
    try:
        check_members(group, members, levels, spared)
        if not (group.made and find_unlike(group, members, levels)):
            return group
    except (Incomplete, DocumentError) as problem:
        if not (members and group.made):
            raise
        lacks = problem
    try:
        found = assemble_group(group.key, members, levels, spared, known.led(group.key))
    except (Incomplete, DocumentError) as problem:
        raise (seen.owners and lacks) or problem from None
    return replace(group, pod_sets=found.pod_sets, together=found.together)


def resize_to_pods(
    seen: SeenGroup, members: Sequence[Member], known: Members, levels: Collection[str]
) -> PlacementGroup | None:
    """Return a group with the size that its owner has by now, if all pods are there; else None."""
    group = seen.group
    if not seen.owners or not members:
        return None  # a user wrote this group
    try:
        check_complete(group.key, members, known.count_spared(group.key))
    except (Incomplete, DocumentError):
        return None
    counts = Counter(pod_set_names(members, levels, group.pod_sets))
    pod_sets = tuple(replace(each, count=counts.pop(each.name, 0)) for each in group.pod_sets)
    return None if counts or pod_sets == group.pod_sets else replace(group, pod_sets=pod_sets)


def grow(group: PlacementGroup, lacking: Mapping[str, int]) -> tuple[PodSet, ...]:
    """Return the pod sets of a placed group, large enough for the places that it is *lacking*."""
    places = places_by_pod_set(group)
    return tuple(
        replace(each, count=max(each.count, places[each.name] + lacking.get(each.name, 0)))
        for each in group.pod_sets
    )
