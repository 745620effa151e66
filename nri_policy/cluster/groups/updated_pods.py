"""Pods of another template that take the places of those that a StatefulSet replaces one by one.

A rolling update deletes a pod, and waits until its successor is ready before the next one. So the
successor gets the place that its group has for it, if it asks for no other nodes, and the host has
room for what it requests more; else the place moves. Pods that request more go one by one: what a
pod uses beyond its place counts once it is bound.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from nri_policy.cluster.groups.assembly import Member, is_like_but_for_amounts, is_replaced_singly
from nri_policy.cluster.objects.pod import template_of
from nri_policy.cluster.requests.group import PlacementGroup


def find_successor(
    group: PlacementGroup, unlike: Sequence[Member], levels: Collection[str], gate: str
) -> Member | None:
    """Return the pod that may go next to a place for a pod of the old template, None if none may.

    *unlike* are the pods of the group that are of another template.
    """
    own = [each for each in unlike if is_replaced_singly(each) and len(group.pod_sets) == 1]
    waiting = [each for each in own if gate in each.pod.gates]
    if not waiting or any(gate not in each.pod.gates and not each.pod.node for each in own):
        return None
    first = min(waiting, key=lambda each: each.pod.name)
    return first if is_like_but_for_amounts(group.pod_sets[0], first, levels) else None


def with_new_template(
    group: PlacementGroup, members: Sequence[Member], unlike: Sequence[Member]
) -> PlacementGroup | None:
    """Return a group with the template that all of its pods have by now, if it has an older one.

    None as long as pods of the old template are there, or new ones are not bound.
    """
    if len(group.pod_sets) != 1 or len(unlike) < group.pod_sets[0].count:
        return None
    if len(unlike) != len(members) or len({each.likeness for each in unlike}) != 1:
        return None
    if not all(each.pod.node and is_replaced_singly(each) for each in unlike):
        return None
    renewed = replace(group.pod_sets[0], template=template_of(unlike[0].pod))
    return replace(group, pod_sets=(renewed,))
