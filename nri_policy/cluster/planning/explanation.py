"""Why a group goes where it goes, or what would make it fit: data that the command line shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import nsmallest

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.group_placement import find_shared_level
from nri_policy.cluster.engine.search.crowding import find_crowded_domains
from nri_policy.cluster.engine.search.placement import count
from nri_policy.cluster.engine.search.unfit_message import count_exclusions
from nri_policy.cluster.engine.state.filter import Filter
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.unit_placement import plan_of
from nri_policy.cluster.objects.assignment import MAX_COUNT
from nri_policy.cluster.objects.document import Amounts, with_place
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.planning.changes import SuggestedChange, find_changes
from nri_policy.cluster.planning.queue_position import (
    QueuePosition,
    find_position,
    without_reserved,
)
from nri_policy.cluster.requests.group import (
    GroupStatus,
    PlacementGroup,
    PlacementRequest,
    Together,
)
from nri_policy.cluster.requests.request import (
    PlacementPlan,
    Unit,
    Unplaceable,
    exclusive_of,
    is_spread,
    together_of,
    units_of,
)
from nri_policy.native._counts import Counts

MAX_EXAMPLES = 3  # of leaves that a reason excludes
IN_ZONES = "NUMA zones"  # the reason of hosts whose zones take no pod


class AtLevel(Struct, frozen=True, rename="camel"):
    """How many slices of a pod set fit at one level; pods where it has no slices.

    Workers are counted with their leader in one of the domains.
    """

    level: str
    domains: int
    holding_all: int  # domains that hold the whole pod set together with its leader
    most: int  # that fits into one domain, which the leader need not be in if the request allows it
    in_all: int  # that fits into all domains in sum


class Excluded(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Some of the leaves that one reason excludes: if it is a resource, those with most of it."""

    leaves: list[str]  # MAX_EXAMPLES at most; zones as HOST/ZONE
    resource: str = ""  # that there is too little of, if that is the reason
    left: int | None = None  # of it, on the first of them; negative where pods use too much


class PodSetExplanation(Struct, frozen=True, rename="camel"):
    """One pod set, or workers with their leader, or a leader alone, on the cluster as it is."""

    pod_set: str
    unit: str  # what is counted: pods, slices
    wanted: int
    levels: list[AtLevel]
    in_no_slice: int  # pods that there is room for, but in no whole slice
    nodes: int  # leaves that take part
    excluded: dict[str, int]  # reason -> leaves that cannot take one pod
    leaf: str  # the level of leaves
    asks: dict[str, int] = {}  # what one pod requests: CPU in milli, all else absolute
    examples: dict[str, Excluded] = {}  # reason -> some of these leaves
    leader: str = ""  # the pod set of one pod that it is placed with
    leads: str = ""  # the pod set of a leader's workers, which are not counted here


class GroupExplanation(Struct, frozen=True, rename="camel"):
    """What would come of a group, and the changes, each by itself, that would make it fit."""

    status: GroupStatus
    pod_sets: list[PodSetExplanation]
    changes: list[SuggestedChange] = []
    standing: QueuePosition | None = None  # None for a placed group
    refused: dict[str, int] = {}  # pods that nodes refuse at the places that it has, by pod set
    notes: list[str] = []  # why, and what else people should know of it
    movable: int = 0  # pods that may move: whether that would help is for a plan to find
    malformed: bool = False  # see `is_malformed`


def explain(engine: Engine, group: PlacementGroup, pods: Iterable[Pod] = ()) -> GroupExplanation:
    """Return why *group* fits or not; nothing changes. Raises DocumentError.

    A placed group keeps its places except on failed nodes. Victims may include *pods* of lower
    priority without a group.
    """
    standing, status = None, group.status
    if not status.assignments:
        standing = find_position(engine.state, group)
        engine = without_reserved(engine, group)
    if not status.assignments or status.unhealthy_nodes:
        status = engine.place(group)
    steps = [unit for unit in units_of(group) if unit.workers.count]
    found = {unit.workers.name: _pod_set(engine, unit) for unit in steps}
    pod_sets = [
        each
        for unit in steps
        for each in (found[unit.workers.name], _leader(engine, unit))
        if each is not None
    ]
    changes: list[SuggestedChange] = []
    if status.state == "Unplaceable" and None not in found.values():
        room = {unit.workers.name: _most(unit, found[unit.workers.name]) for unit in steps}
        changes = find_changes(engine, group, steps, room, pods)
    return GroupExplanation(status=status, pod_sets=pod_sets, changes=changes, standing=standing)


def _leader(engine: Engine, unit: Unit) -> PodSetExplanation | None:
    """Return where the leader of *unit* fits, without its workers; None if it has none."""
    if unit.leader is None:
        return None
    request = replace(unit.workers.request or PlacementRequest(), slices=[], leader_group=None)
    found = _pod_set(engine, Unit(workers=replace(unit.leader, request=request)))
    return None if found is None else replace(found, leads=unit.workers.name)


def _most(unit: Unit, found: PodSetExplanation | None) -> int:
    """Return the most slices of a pod set for which there may be room, whatever else there is."""
    assert found is not None
    if is_spread(unit.workers):  # on all nodes, including nodes outside any topology
        return MAX_COUNT
    request = unit.workers.request
    required = None if request is None else request.required
    named = (each.most for each in found.levels if each.level == required)
    return next(named, found.levels[0].in_all)


def is_malformed(engine: Engine, group: PlacementGroup) -> bool:
    """Whether *group* has no answer on any such cluster.

    It names a topology or a level that there is not, or levels in the wrong order.
    """
    trees, together, exclusive = [], together_of(group), exclusive_of(group.pod_sets)
    try:
        for unit in units_of(group):
            tree, _ = plan_of(engine.state, unit)
            find_crowded_domains(group, unit, tree, (), engine.state.view)
            trees.append(tree)
        if trees and together is not None:
            find_shared_level(engine.state, together, trees)
        if trees and exclusive is not None:
            find_shared_level(engine.state, Together(required=exclusive), trees)
    except Unplaceable:
        return True
    return False


def _pod_set(engine: Engine, unit: Unit) -> PodSetExplanation | None:
    """Return how much of a pod set fits at every level; None for an invalid request."""
    try:
        tree, wanted = plan_of(engine.state, unit)
        most = engine.state.limits.of(replace(unit, workers=replace(unit.workers, count=MAX_COUNT)))
        counts, kind = count(tree, unit, wanted, engine.state.settings, {}, most)
    except Unplaceable:
        return None
    total, excluded = count_exclusions(counts, kind)
    full = {
        zone
        for leaf, pods in tree.by_leaf(most.get(unit.workers.name, {})).items()
        if not pods
        for zone in tree.shape.zones_from(leaf)
    }
    asked = unit.workers.amounts
    parts = [counts.of(domain) for domain in tree.shape.domains.of_level(wanted.slice_level)]
    without = _find_excluded(tree, kind, asked, full) if excluded or full else {}
    excluded |= {reason: len(found) for reason, found in without.items() if reason == IN_ZONES}
    return PodSetExplanation(
        pod_set=unit.workers.name,
        unit="slices" if wanted.size > 1 else "pods",
        wanted=unit.workers.count // wanted.size,
        levels=[
            _at_level(tree, counts, unit, wanted, index) for index in range(wanted.slice_level + 1)
        ],
        in_no_slice=sum(pods - slices * wanted.size for pods, slices, *_ in parts),
        nodes=total,
        excluded=excluded,
        leaf=tree.shape.levels[-1],
        asks={name: amount for name, amount in sorted(asked.items()) if amount},
        examples={reason: _examples(tree, found) for reason, found in without.items()},
        leader=unit.leader.name if unit.leader else "",
    )


def _at_level(tree: Tree, counts: Counts, unit: Unit, wanted: PlacementPlan, index: int) -> AtLevel:
    """Return how many slices fit at the level with this *index*."""
    domains = tree.shape.domains
    found = {each: counts.of(each) for each in domains.of_level(index)}
    most = max((slices for _, slices, *_ in found.values()), default=0)
    in_all = sum(slices for _, slices, *_ in found.values())
    if unit.leader is not None:
        most, lost = _beside_leader(tree, found, wanted, index)
        in_all -= lost
    number = unit.workers.count // wanted.size
    return AtLevel(
        level=tree.shape.levels[index],
        domains=len(found),
        holding_all=sum(
            slices >= number and (leaders > 0 or unit.leader is None)
            for _, _, _, slices, leaders, _ in found.values()
        ),
        most=most,
        in_all=in_all,
    )


def _beside_leader(
    tree: Tree, found: Mapping[int, tuple[int, ...]], wanted: PlacementPlan, index: int
) -> tuple[int, int]:
    """Return the most slices in one of the domains *found*, and those that the leader displaces.

    Where the request allows it, the leader is in another domain. If none can have it, nothing fits.
    """
    domains = tree.shape.domains

    def around(domain: int) -> int | None:
        """Return the domain that has to take the leader and this one's workers, if one has to."""
        if not wanted.required:
            return None
        if index <= wanted.level:
            return domain
        return domains.above(domains.leaves_below(domain).start, wanted.level)

    hosting: dict[int | None, set[int]] = {}
    for domain, (_, _, _, _, leaders, _) in found.items():
        if leaders:
            hosting.setdefault(around(domain), set()).add(domain)
    most = 0
    for domain, (_, alone, _, beside, *_) in found.items():
        own = hosting.get(around(domain), set())
        if own:
            most = max(most, alone if own - {domain} else beside)
    lost = (alone - beside for _, alone, _, beside, leaders, _ in found.values() if leaders)
    return most, min(lost, default=sum(alone for _, alone, *_ in found.values()))


class _Leaf(Struct, frozen=True, order=True):
    """A leaf that cannot take one pod; those with most left of what is short are the first."""

    lacking: int  # what is left of the resource, with the other sign
    leaf: int
    resource: str = ""


def _find_excluded(
    tree: Tree, kind: Filter, pod: Amounts, full: Collection[int]
) -> dict[str, list[_Leaf]]:
    """Return the leaves that cannot take one pod, by reason, as the message counts them.

    Zones of *full* nodes have no room.
    """
    asked = sorted((name, amount) for name, amount in with_place(pod).items() if amount)
    rows = tree.rows
    found: dict[str, list[_Leaf]] = {}
    for leaf in range(tree.shape.domains.leaves):
        if not rows.nodes_at(leaf):
            continue
        code = kind.mask.get(leaf)
        if code:
            found.setdefault(kind.reason(code), []).append(_Leaf(0, leaf))
            continue
        room = rows.room(leaf)
        name = next((name for name, amount in asked if room[name] < amount), None)
        if name is not None:
            short = _Leaf(-room[name], leaf, name)
            found.setdefault(f'resource "{name}"', []).append(short)
        elif leaf in full:
            found.setdefault(IN_ZONES, []).append(_Leaf(0, leaf))
    return found


def _examples(tree: Tree, leaves: Collection[_Leaf]) -> Excluded:
    """Return the first of the leaves that one reason excludes."""
    first = nsmallest(MAX_EXAMPLES, leaves)
    return Excluded(
        ["/".join(tree.shape.values(each.leaf)) for each in first],
        first[0].resource,
        -first[0].lacking if first[0].resource else None,
    )
