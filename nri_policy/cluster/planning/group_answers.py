"""What people are told of groups: by the command line from files, and by the running service.

Where they would go, or why they would not, and what the nodes there would refuse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.search.unfit_message import (
    describe_left_out,
    group_by_reason,
    nearest_label,
)
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.objects.device_claims import DeviceClaims
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.scheduler_constraints import describe
from nri_policy.cluster.planning.explanation import GroupExplanation, explain, is_malformed
from nri_policy.cluster.planning.job_set_steps import expect_steps, without_ended_steps
from nri_policy.cluster.planning.pods_alone import place_singly
from nri_policy.cluster.planning.preview import TriedGroup, record_placed, tree_of_hosts
from nri_policy.cluster.planning.queue_position import without_reserved
from nri_policy.cluster.requests.annotations import GROUP_SIZE, MAX_PER_HOST, SPREAD_OVER
from nri_policy.cluster.requests.group import GROUP_LABEL, GroupStatus, PlacementGroup, PodSet
from nri_policy.cluster.requests.request import (
    exclusive_of,
    named_levels,
    resolve_requests,
    spread_labels,
    together_of,
)
from nri_policy.cluster.requests.spread_preferences import read_preferences
from nri_policy.foundation.wording import counted, did_you_mean, quoted

_HINT = '"cluster fit" shows which zones of each node take one of its pods'


def try_groups(
    engine: Engine,
    groups: Iterable[PlacementGroup],
    failures: Mapping[str, int] = MappingProxyType({}),
    *,
    live: bool = False,
) -> list[TriedGroup]:
    """Place *groups* one after another: *engine*, a fork, takes in each. Raises DocumentError.

    Groups of higher priority go first, as in the queue; nothing is preempted. Steps of a JobSet go
    as in their turn. *failures* are recent failures of their pods, by node.
    """
    tried, groups = [], [*groups]
    expect_steps(engine.state, groups)
    for group in sorted(groups, key=lambda each: -each.priority):
        if group.singly:
            status, _ = place_singly(engine, group, failures)
        else:
            trial = without_reserved(without_ended_steps(engine, group), group)
            status = trial.count_by_zones(group, trial.place(group, failures))
        notes = [*notes_of(engine.state, group), *notes_of_zones(engine.state, group, status)]
        if status.state == "Placed" and status.message:
            notes.append(f"{group.full_name}: {status.message}")
        if status.state != "Placed":
            notes += [*_left_out(engine.state, group, live=live), *_preempts(engine.state, group)]
        malformed = is_malformed(engine, group)
        found = record_placed(engine.state, group, status)
        tried.append(replace(found, notes=notes, malformed=malformed))
    return tried


def explain_group(
    engine: Engine, group: PlacementGroup, pods: Iterable[Pod] = (), *, live: bool = False
) -> GroupExplanation:
    """Return why *group* fits or not; nothing changes. Raises DocumentError.

    *pods* are the pods of the cluster, if known. *live*: the running service says it.
    """
    found = explain(engine, group, pods)
    if found.standing is not None:
        trial = without_reserved(engine, group)
        found = replace(found, status=trial.count_by_zones(group, found.status))
    refusals = engine.state.limits.check(group)  # empty for a group without places
    notes = [*notes_of(engine.state, group), *notes_of_zones(engine.state, group, found.status)]
    notes += [f"{group.full_name}, {text}" for text in refusals.texts]
    notes += _left_out(engine.state, group, live=live)
    malformed = is_malformed(engine, group)
    return replace(found, refused=refusals.pods, notes=notes, malformed=malformed)


def notes_of_devices(
    nodes: Mapping[str, ClusterNode], group: PlacementGroup, devices: DeviceClaims
) -> Iterator[str]:
    """Yield what devices the pods of a group claim, and which nodes have them."""
    for each in group.pod_sets:
        name = f"{group.full_name}, pod set {each.name}"
        for text in devices.describe(group.namespace, each.template.claims, nodes):
            yield f"{name}, {text}"


def notes_of_zones(
    state: ClusterState, group: PlacementGroup, status: GroupStatus
) -> Iterator[str]:
    """Yield what zones that are too small mean for a group that has no places, and what helps."""
    name = group.full_name
    if status.conditions:
        yield f"{name}: {_HINT}"
    elif not status.assignments:
        nodes = state.nodes
        for each in group.pod_sets:
            refused = state.limits.too_small(each.template.spec) if each.count else {}
            if refused:
                node, why = next(iter(refused.items()))
                yield (
                    f"{name}, pod set {each.name}: {len(refused)} of {counted(len(nodes), 'node')}"
                    f" would refuse its pods even when empty, as they align pods to one NUMA node"
                    f" ({node}: {why})"
                )


def _preempts(state: ClusterState, group: PlacementGroup) -> Iterator[str]:
    """Yield that a group which does not fit might yet preempt others, if it might."""
    others = state.groups.values() if state.settings.groups.preemption else ()
    if any(each.priority < group.priority and each.status.assignments for each in others):
        yield (
            f"{group.full_name}: preemption is not tried here:"
            ' "cluster explain" names the groups that would have to leave'
        )


def notes_of(state: ClusterState, group: PlacementGroup) -> Iterator[str]:
    """Yield notes about parts of a request that placement ignores.

    That is what only kube-scheduler can judge, labels and resources that no node has, a
    PriorityClass that is not known, spreading over what all pods share.
    """
    if group.unknown_class:
        yield (
            f"{group.full_name}: its PriorityClass {quoted(group.unknown_class)} is"
            " not known, so priority 0 counts"
        )
    if group.singly and any(each.request for each in group.pod_sets):
        yield (
            f"{group.full_name}: each of its pods is placed alone; {GROUP_LABEL} and {GROUP_SIZE}"
            " in the pod template make them one group"
        )
        if any(each.request and each.request.spread_over for each in group.pod_sets):
            yield (
                f"{group.full_name}: a pod that is placed alone is spread over nothing; pods"
                f" without a gate that ask only for {SPREAD_OVER} and {MAX_PER_HOST} are spread"
            )
    nodes = state.nodes.values()
    for each in resolve_requests(group):
        name = f"{group.full_name}, pod set {each.name}"
        template = each.template
        judged = [*template.constraints, *template.own.names(placed=True)]
        if each.count and judged:
            yield f"{name}: {describe(judged, state.levels)}"
        unknown = (
            *_unknown_labels(nodes, each),
            *_unknown_resources(nodes, each),
            *_idle_spreads(state, group, each),
        )
        for text in unknown if each.count else ():
            yield f"{name}: {text}"


def _unknown_resources(nodes: Collection[ClusterNode], pod_set: PodSet) -> Iterator[str]:
    for name, amount in pod_set.amounts.items():
        if amount and not any(name in node.allocatable for node in nodes):
            known = {each for node in nodes for each in node.allocatable}
            yield f"asks for {quoted(name)}, a resource that no node has{did_you_mean(name, known)}"


def _left_out(state: ClusterState, group: PlacementGroup, *, live: bool) -> list[str]:
    """Return a sentence for each reason for which nodes take no part in a group's topology.

    Another offers to leave out levels whose labels nodes lack, if the group names only others.
    """
    tree = tree_of_hosts(state, group)
    topology, reasons = tree.shape.topology, group_by_reason(tree.left_out)
    lacking = {each: f"no label {each}" for each in topology.levels}
    lacking = {each: reason for each, reason in lacking.items() if reason in reasons}
    others = [each for each in topology.levels if each not in lacking]
    named = {level for each in resolve_requests(group) for level in named_levels(each.request)}
    is_first = topology.name == state.settings.topologies[0].name  # which --levels is about
    offer = ""
    if lacking and others and named <= {*others, *topology.every_level[len(topology.levels) :]}:
        without = f"without {', '.join(lacking)}"
        if live:
            offer = f"the levels [{', '.join(others)}] in the settings would do {without}"
        elif is_first:
            offer = f"--levels {','.join(others)} tries {without}"
    hints: dict[str, str] = {}
    if live:  # a command says so of the cluster that it reads
        labels = {label for node in state.nodes.values() for label in node.labels}
        hints = {why: nearest_label(each, labels) for each, why in lacking.items()}
    found = [
        describe_left_out(reason, nodes) + hints.get(reason, "")
        for reason, nodes in reasons.items()
    ]
    return [*found, *filter(None, [offer and f"{group.full_name}: {offer}"])]


def _unknown_labels(nodes: Collection[ClusterNode], pod_set: PodSet) -> Iterator[str]:
    over = spread_labels(pod_set.request)
    for each in read_preferences(over, "spreadOver"):
        spread = f"spread over {quoted(each.key)}"
        if not any(each.key in node.labels for node in nodes):
            labels = {label for node in nodes for label in node.labels}
            yield f"{spread}, a label that no node has{did_you_mean(each.key, labels)}"
        elif each.weights:
            values = {node.labels.get(each.key, "") for node in nodes}
            for value in sorted(each.weights.keys() - values):
                hint = did_you_mean(value, values - each.weights.keys())
                yield f"{spread}: a weight is for {quoted(value)}, which no node has{hint}"


def _idle_spreads(state: ClusterState, group: PlacementGroup, pod_set: PodSet) -> Iterator[str]:
    """Yield over what pods cannot be spread, as all of them must share one domain."""
    topology, together = state.topology_of(pod_set), together_of(group)
    levels = topology.levels if topology is not None else []
    shared = {
        pod_set.request.required if pod_set.request else None,
        together.required if together else None,
        exclusive_of(group.pod_sets),
    }
    finest = next((each for each in reversed(levels) if each in shared), None)
    above = levels[: levels.index(finest) + 1] if finest is not None else []
    spread_over = pod_set.request.spread_over if pod_set.request else []
    for each in read_preferences(spread_over, "spreadOver"):
        if each.key in above:
            yield f"spread over {quoted(each.key)} has no effect: all pods are in one {finest}"


def describe_outcome(status: GroupStatus, refused: Mapping[str, int]) -> str:
    """Return in a few words what came of a group of which nodes would refuse so many pods."""
    pods = sum(place.count for each in status.assignments for place in each.domains)
    left = sum(refused.values())
    if not left:
        return status.message or "it fits"
    if left == pods:
        return "it has its places, but their hosts would refuse all of its pods"
    return f"it has its places, but their hosts would refuse {left} of {pods} pods"
