"""Why a pod set does not fit: texts that users of Kueue know and search for; cluster.md §5."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from nri_policy.cluster.engine.state.filter import Filter
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.state.zone_tree import ZoneTree
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.settings import ZONE_LEVEL, Topology
from nri_policy.cluster.requests.request import PlacementPlan, Unit
from nri_policy.cluster.view import ClusterView
from nri_policy.cluster.zones.zone import NodeZones
from nri_policy.foundation.wording import counted, did_you_mean, some
from nri_policy.native._counts import Counts


def describe_lack(  # noqa: PLR0913 - what the text is made of
    topology: str,
    levels: tuple[str, ...],
    plan: PlacementPlan,
    counts: Counts,
    kind: Filter,
    *,
    count: int,
    fits: int,
    beside: int | None,
    level: int,
) -> str:
    """Return why *count* pods do not fit on *topology*: *fits* of its units would at *level*.

    So many *beside* the leader, if they have one and must be in one domain with it.
    """
    if plan.layers:
        text = f'topology "{topology}" doesn\'t allow to fit'
        best = counts.best_of_level(level)
        for each in plan.layers if best >= 0 else ():
            own = counts.whole_below(best, levels.index(each.level), each.size)
            text += f"; {own}/{count // each.size} slice(s) fit on level {each.level}"
    else:
        unit = "slice(s)" if plan.size > 1 else "pod(s)"
        wanted = count // plan.size
        text = f'topology "{topology}" '
        if fits > 0:
            text += f"allows to fit only {fits} out of {wanted} {unit}"
        else:
            text += f"doesn't allow to fit any of {wanted} {unit}"
        if beside is not None and beside < fits:
            text += f", {beside or 'none'} beside the leader"
    if plan.apart >= 0:
        text += f", at most one in each {levels[plan.apart]}"
    return text + describe_limit(plan.most) + _exclusion_text(levels[-1], counts, kind)


def describe_limit(most: int | None) -> str:
    """Return the end of the text for pods of which *most* may be on a host."""
    return "" if most is None else f", at most {most} on each host"


def _exclusion_text(level: str, counts: Counts, kind: Filter) -> str:
    """Return the end of the text: the leaves, of *level*, that cannot take one pod, by reason."""
    total, reasons = count_exclusions(counts, kind)
    if not reasons:
        return ""
    parts = ", ".join(f"{reason}: {number}" for reason, number in reasons.items())
    leaves = "zones" if level.startswith(ZONE_LEVEL) else "nodes"  # the latter is Kueue's word
    return f". Total {leaves}: {total}; excluded: {parts}"


def count_exclusions(counts: Counts, kind: Filter) -> tuple[int, dict[str, int]]:
    """Return how many leaves take part, and those that cannot take one pod, by sorted reason."""
    total, codes, outside, resources = counts.exclusions()
    reasons = {kind.reason(code): number for code, number in codes.items()}
    reasons |= {f'resource "{name}"': number for name, number in resources.items()}
    if outside:
        reasons["topologyDomain"] = outside
    return total, dict(sorted(reasons.items()))


def describe_empty_tree(tree: Tree, level: str) -> str:
    """Return why a tree is empty: no node takes part, or none that does has the zones.

    Where nodes take no part because they lack the label of a level, that is the level to name.
    """
    if not isinstance(tree, ZoneTree) or tree.hosts.is_empty():
        why_not = {*tree.left_out.values()}
        lacking = (each for each in tree.shape.levels if f"no label {each}" in why_not)
        return f"no topology domains at level: {next(lacking, level)}"
    of_hosts = tree.hosts.left_out
    reasons = Counter(why for node, why in tree.left_out.items() if node not in of_hosts)
    return ", ".join(f"{why} on {counted(number, 'node')}" for why, number in reasons.items())


def group_by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the nodes that are left out for each reason, by name; *left_out* has why by node."""
    reasons: dict[str, list[str]] = {}
    for node, reason in sorted(left_out.items()):
        reasons.setdefault(reason, []).append(node)
    return reasons


def describe_left_out(reason: str, nodes: Collection[str]) -> str:
    """Return that *nodes* take no part in a topology for one *reason*."""
    return f"{counted(len(nodes), 'node')} left out: {reason} ({some(nodes)})"


def describe_unknown_level(
    level: str, topology: Topology, view: ClusterView, others: Sequence[str] = ()
) -> str:
    """Return that there is no such level, which there are, and how many nodes carry each.

    The message lists the *others*, topologies with this level.
    """
    nodes = view.nodes.values()
    labels = Counter(label for node in nodes for label in node.labels)
    zones = Counter(ZONE_LEVEL + kind for each in view.zones.values() for kind in _types(each))
    known = ", ".join(f"{each} ({labels[each]} nodes)" for each in topology.levels)
    if topology.below_host:
        known += "".join(f", {each}" for each in topology.every_level[len(topology.levels) :])
    # A level that no node has is itself a mistake: who followed a hint to it would be sent back.
    found = zones if level.startswith(ZONE_LEVEL) else labels
    alike = [each for each in topology.every_level if labels[each] or zones[each]]
    hint = _nearest(level, alike) or ("" if found[level] else _nearest(level, found))
    if level.startswith(ZONE_LEVEL):
        known += f"; {_describe_zones(level.removeprefix(ZONE_LEVEL), zones[level])}"
        if zones[level]:
            known += _describe_misspelt(level, topology, zones)
    else:
        known += f"; {counted(labels[level], 'node')} carry the label {level}"
    if others:
        chosen = f"the annotation placement.nri/topology: {others[0]} chooses it"
        known += f'; topology "{others[0]}" has it: {chosen}'
    elif labels[level]:
        known += _describe_misspelt(level, topology, labels)
        known += _offer(level, topology, nodes)
    return f'no requested topology level: {level}{hint}; topology "{topology.name}" has {known}'


def nearest_label(level: str, labels: Collection[str]) -> str:
    """Return `; did you mean 'x'?` for a *level* that is no label of any node, or nothing."""
    return "" if level in labels else did_you_mean(level, labels)


def _describe_misspelt(level: str, topology: Topology, found: Collection[str]) -> str:
    """Return which level of the settings is perhaps meant to be *level*, or nothing.

    *found* are the labels of nodes, or the levels of zones that they report.
    """
    wrong = (
        each
        for each in topology.every_level
        if each not in found and f"'{level}'" in _nearest(each, found)
    )
    other = next(wrong, None)
    return f"; no node has {other}, perhaps a misspelt {level} in the settings" if other else ""


def _nearest(level: str, known: Iterable[str]) -> str:
    """Return what `did_you_mean` says; of levels of zones only the types are compared."""
    kind = level.removeprefix(ZONE_LEVEL)
    if kind == level:
        return did_you_mean(level, known)
    kinds = [each.removeprefix(ZONE_LEVEL) for each in known if each.startswith(ZONE_LEVEL)]
    return did_you_mean(kind, kinds).replace("'", f"'{ZONE_LEVEL}", 1)


def _types(zones: NodeZones) -> set[str]:
    return {each.type for each in zones.zones}


def _describe_zones(kind: str, having: int) -> str:
    """Return how many nodes report zones of a type, and what makes them a level."""
    setting = "; the topology's setting belowHost makes them a level"
    nodes = "1 node reports" if having == 1 else f"{having} nodes report"
    return f"{nodes} zones of type {kind}{setting if having else ''}"


def _offer(level: str, topology: Topology, nodes: Collection[ClusterNode]) -> str:
    """Return levels among which the label would be one.

    It comes before the first level that has more domains, as the coarser one of the two. Levels
    whose label no node carries are left out: no node would take part.
    """
    values = {
        each: len({node.labels[each] for node in nodes if each in node.labels})
        for each in (level, *topology.levels)
    }
    known = [each for each in topology.levels if values[each] or each == HOSTNAME]
    finer = (at for at, each in enumerate(known) if values[each] > values[level])
    at = next(finer, len(known) - topology.by_host)
    levels = [*known[:at], level, *known[at:]]
    return (
        f"; `nri-policy cluster place --levels {','.join(levels)}` tries it as one; a"
        f' ClusterPlacement with these levels in topology "{topology.name}" makes it one'
    )


def describe_closest(level: str, closest: Path, why: str, job_set: str = "") -> str:
    """Return why no domain of *level* holds all units, by the one that comes *closest*.

    *why* comes from `describe_refused`. *job_set* names a group of the same JobSet whose
    domain the units share; empty without one.
    """
    name = level.rpartition("/")[2]
    text = f"no {name} holds all pod sets together; in {name} {closest[-1]}"
    if job_set:
        text = f"it shares {name} {closest[-1]} with {job_set} of its JobSet; there"
    return text + why


def describe_refused(steps: Sequence[Unit], refused: Unit | None, why: str) -> str:
    """Return the end of a sentence: of units placed in *steps*, which one is *refused*, and why."""
    if refused is None:
        return f": {why}"
    before = [each for unit in steps[: steps.index(refused)] for each in unit.names]
    beside = f" beside {', '.join(before)}" if before else ""
    return f", {' with '.join(refused.names)} finds no room{beside}: {why}"
