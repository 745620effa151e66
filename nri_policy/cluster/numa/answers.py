"""What people are told of groups: by the command line from files, and by the running service.

Where they would go, or why they would not, and what the nodes there would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.explanation import Explanation, explain
from nri_policy.cluster.engine.message import by_reason, left_out_text
from nri_policy.cluster.engine.standing import standing, without_reserved
from nri_policy.cluster.engine.trial import TriedGroup, take_in, tree_of_hosts
from nri_policy.cluster.numa.alignment import Alignment, ForkOf, Refusals
from nri_policy.cluster.objects.constraints import describe
from nri_policy.cluster.objects.group import GroupStatus, PlacementGroup, PodSet
from nri_policy.cluster.objects.request import requested
from nri_policy.cluster.objects.spread_preferences import read_preferences
from nri_policy.foundation.wording import did_you_mean, quoted


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
        using = without_reserved(engine, standing(engine, group))
        status, refusals = alignment.place(using, group, failures)
        found = take_in(engine, group, status)
        alignment.add(replace(group, status=status))
        notes = [*notes_of(engine, group), *_notes_of_zones(alignment, group, status, refusals)]
        if status.state != "Placed":
            notes += _left_out(engine, group)
        tried.append(replace(found, refused=refusals.pods, notes=notes))
    return tried


def explain_group(engine: Engine, group: PlacementGroup, fork_of: ForkOf) -> Explanation:
    """Return why *group* fits or not; nothing changes. Raises DocumentError.

    Zones come from *fork_of*.
    """
    alignment = Alignment(engine, fork_of)
    found = explain(engine, group, lambda using, asked: alignment.place(using, asked)[0])
    refusals = alignment.check(group, found.status)
    notes = [*notes_of(engine, group), *_notes_of_zones(alignment, group, found.status, refusals)]
    notes += _left_out(engine, group)
    return replace(found, refused=refusals.pods, notes=notes)


def _notes_of_zones(
    alignment: Alignment, group: PlacementGroup, status: GroupStatus, refusals: Refusals
) -> Iterator[str]:
    """Yield what nodes refuse where a group is, or would refuse of one without places."""
    yield from refusals.notes
    if not status.assignments:
        yield from alignment.too_small(group)


def notes_of(engine: Engine, group: PlacementGroup) -> Iterator[str]:
    """Yield what of a group does not decide where it goes, though it is asked for.

    That is what only kube-scheduler can judge, labels and resources that no node has, a
    PriorityClass that is not known.
    """
    if group.unknown_class:
        yield (
            f"{group.namespace}/{group.name}: its PriorityClass {quoted(group.unknown_class)} is in"
            " no file of -f, so priority 0 counts"
        )
    for each in requested(group):
        name = f"{group.namespace}/{group.name}, pod set {each.name}"
        if each.count and each.template.constraints:
            yield f"{name}: {describe(each.template.constraints)}"
        unknown = (*_unknown_labels(engine, each), *_unknown_resources(engine, each))
        for text in unknown if each.count else ():
            yield f"{name}: {text}"


def _unknown_resources(engine: Engine, pod_set: PodSet) -> Iterator[str]:
    nodes = engine.nodes.values()
    for name, amount in pod_set.template.spec.effective().items():
        if amount and not any(name in node.allocatable for node in nodes):
            own = name.rpartition("/")[2]
            known = {each for node in nodes for each in node.allocatable}
            same = [each for each in sorted(known) if each.rpartition("/")[2] == own]
            hint = f"; did you mean {same[0]!r}?" if same else did_you_mean(name, known)
            yield f"asks for {quoted(name)}, a resource that no node has{hint}"


def _left_out(engine: Engine, group: PlacementGroup) -> list[str]:
    """Return a sentence for each reason for which nodes take no part in a group's topology."""
    reasons = by_reason(tree_of_hosts(engine, group).left_out)
    return [left_out_text(reason, nodes) for reason, nodes in reasons.items()]


def _unknown_labels(engine: Engine, pod_set: PodSet) -> Iterator[str]:
    over = pod_set.request.spread_over if pod_set.request else []
    nodes = engine.nodes.values()
    for label in (each.key for each in read_preferences(over, "spreadOver")):
        if not any(label in node.labels for node in nodes):
            labels = {label for node in nodes for label in node.labels}
            hint = did_you_mean(label, labels)
            yield f"spread over {quoted(label)}, a label that no node has{hint}"


def verdict(status: GroupStatus, refused: Mapping[str, int]) -> str:
    """Return in a few words what came of a group of which nodes would refuse so many pods."""
    pods = sum(place.count for each in status.assignments for place in each.domains)
    left = sum(refused.values())
    if not left:
        return status.message or "it fits"
    if left == pods:
        return "its hosts have room, but would refuse all of its pods"
    return f"{pods - left} of {pods} pods fit; their hosts would refuse the others"
