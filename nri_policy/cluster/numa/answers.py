"""What people are told of groups: by the command line from files, and by the running service.

Where they would go, or why they would not, and what the nodes there would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.explanation import Explanation, explain
from nri_policy.cluster.engine.trial import TriedGroup, try_group
from nri_policy.cluster.numa.alignment import Alignment, ForkOf
from nri_policy.cluster.objects.constraints import describe
from nri_policy.cluster.objects.group import GroupStatus, PlacementGroup


def try_groups(
    engine: Engine,
    groups: Iterable[PlacementGroup],
    fork_of: ForkOf,
    failures: Mapping[str, int] = MappingProxyType({}),
) -> list[TriedGroup]:
    """Place *groups* one after another: *engine*, a fork, takes in each. Raises DocumentError.

    *failures* are recent ones of their pods, by node. Zones come from *fork_of*.
    """
    alignment = Alignment(engine, fork_of)
    tried = []
    for group in groups:
        found = try_group(engine, group, failures)
        refusals = alignment.check(group, found.status)
        alignment.add(replace(group, status=found.status))
        notes = [*constraint_notes(group), *refusals.notes]
        tried.append(replace(found, refused=refusals.pods, notes=notes))
    return tried


def explain_group(engine: Engine, group: PlacementGroup, fork_of: ForkOf) -> Explanation:
    """Return why *group* fits or not; nothing changes. Raises DocumentError.

    Zones come from *fork_of*.
    """
    found = explain(engine, group)
    refusals = Alignment(engine, fork_of).check(group, found.status)
    notes = [*constraint_notes(group), *refusals.notes]
    return replace(found, refused=refusals.pods, notes=notes)


def constraint_notes(group: PlacementGroup) -> list[str]:
    """Return a sentence for each pod set of which kube-scheduler may refuse what is found here."""
    name = f"{group.namespace}/{group.name}"
    return [
        f"{name}, pod set {each.name}: {describe(each.template.constraints)}"
        for each in group.pod_sets
        if each.count and each.template.constraints
    ]


def verdict(status: GroupStatus, refused: Mapping[str, int]) -> str:
    """Return in a few words what came of a group of which nodes would refuse so many pods."""
    pods = sum(place.count for each in status.assignments for place in each.domains)
    left = sum(refused.values())
    if not left:
        return status.message or "it fits"
    if left == pods:
        return "its hosts have room, but would refuse all of its pods"
    return f"{pods - left} of {pods} pods fit; their hosts would refuse the others"
