"""Moves as a plan: which pods would have to go elsewhere so that a group that waits fits.

Only small pods that run, whose owners allow it (`placement.nri/movable`), that a controller would
make again, and that may be evicted. Each has a place elsewhere: a node that has room for it beside
the group and all others that move, in its zones, too. No pod moves to make room on a node that
would refuse the group's pods even if it were empty: it aligns pods, and its zones are too small.
Nothing changes by a plan.

The search: how many more of the group's pods a host would hold without 1, 2, … of its movable pods,
those first that free most; then, for 1, 2, … moves, the choice of hosts in each domain that the
group asks for that makes most room there. The first choice that is enough is a plan; those that
make less room than the domain lacks are not tried. A pod that may not or cannot go then is left
out, and the search begins anew. If there is no plan, or one of several moves, all sets of up to
SMALL fewer pods are tried, MAX_TRIES at most: without them the group is placed, then they are; on
few nodes also they first, each in several places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, combinations

from msgspec import field
from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.reservation import find_assigned_nodes
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.unit_capacity import UnitCapacity
from nri_policy.cluster.numa.host_fit import find_host_reason
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.report import live_zones
from nri_policy.cluster.objects.budget import Budget
from nri_policy.cluster.objects.document import DocumentError, with_place
from nri_policy.cluster.objects.metadata import Key, Namespaced
from nri_policy.cluster.objects.pod import Pod, Template
from nri_policy.cluster.planning.explanation import is_malformed
from nri_policy.cluster.planning.group_answers import notes_of, notes_of_zones
from nri_policy.cluster.planning.queue_position import without_reserved
from nri_policy.cluster.requests.annotations import is_movable
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup, PodSet
from nri_policy.cluster.requests.request import Unit, Unplaceable, units_of
from nri_policy.cluster.snapshot import ClusterSnapshot
from nri_policy.cluster.view import ClusterView
from nri_policy.cluster.zones.numa_node import aligns_pods

MOST_MOVES = 10  # by default
SMALL = 3  # pods of sets that are all tried
MAX_TRIES = 500  # such sets, and places of their pods
_FEW_NODES = 200  # on which the pods that move are also placed first
_PLACES = 8  # for each of these pods
_TRIES = 100  # attempts to leave a pod out of the plan
_NODES_TRIED = 50  # nodes tried for a pod's zone


class Move(Namespaced, frozen=True):
    """A pod that would go from one node to another."""

    owner: str  # kind and name of the controller that would make it again
    source: str = field(name="from")
    to: str  # a node that would have room for it then


class MovePlan(Namespaced, frozen=True, rename="camel"):
    """What would come of a group after moves: none where it fits, or where none are enough."""

    status: GroupStatus  # of the group, after the moves
    moves: list[Move]
    movable: int  # pods that could move
    staying: dict[str, int]  # number of movable pods that must stay, by reason
    notes: list[str] = field(default_factory=list)  # what people should know of the group
    malformed: bool = False  # invalid request, whatever the cluster has


def plan_moves(
    engine: Engine, group: PlacementGroup, snapshot: ClusterSnapshot, most: int = MOST_MOVES
) -> MovePlan:
    """Return the fewest moves, *most* at most, that are found after which *group* fits.

    *engine* knows what is in *snapshot*. Nothing changes. Raises DocumentError.
    """
    if group.status.assignments:
        raise DocumentError("", f"{group.full_name} has its places")
    movable, staying = find_movable_pods(engine.state, snapshot)
    search = _Search(engine, group, snapshot, most)
    status, moves = search.find(movable)
    status = engine.count_by_zones(group, status)
    return MovePlan(
        namespace=group.namespace,
        name=group.name,
        status=status,
        moves=moves,
        movable=len(movable),
        staying=dict(sorted(staying.items())),
        notes=[*notes_of(engine.state, group), *notes_of_zones(engine.state, group, status)],
        malformed=is_malformed(engine, group),
    )


def find_movable_pods(
    state: ClusterState, snapshot: ClusterSnapshot
) -> tuple[list[Pod], Counter[str]]:
    """Return the pods that could move; and how many others were to be movable, by why not."""
    known = state.pods()
    movable, staying = [], Counter[str]()
    for pod in snapshot.pods:
        if is_movable(pod.annotations, pod.labels) and pod.node and not pod.finished:
            alone = pod.key in known
            why = _why_not(pod, snapshot.budgets) if alone else "of a placement group"
            if why:
                staying[why] += 1
            else:
                movable.append(pod)
    return movable, staying


def _why_not(pod: Pod, budgets: Sequence[Budget]) -> str:
    """Return why a pod cannot move; empty if it can."""
    owner = next((each for each in pod.owners if each.controller), None)
    if owner is None:
        return "no controller would make it again"
    if owner.kind == "DaemonSet":
        return "of a DaemonSet"
    if pod.phase != "Running" or pod.deleted:
        return "not running"
    own = [each for each in budgets if each.covers(pod)]
    if len(own) > 1:
        return "in two PodDisruptionBudgets"
    if any(not each.allowed for each in own):
        return f"PodDisruptionBudget {own[0].name} allows none now"
    return next(iter((*pod.constraints, *pod.own.names())), "")


def _aligns(view: ClusterView, node: str) -> bool:
    report = view.zones.get(node)
    return report is not None and aligns_pods(report)


class _StaysError(Exception):
    """A pod cannot go, beside the others that would."""

    def __init__(self, pod: Pod) -> None:
        super().__init__(pod.name)
        self.pod = pod


class _Search:
    def __init__(
        self, engine: Engine, group: PlacementGroup, snapshot: ClusterSnapshot, most: int
    ) -> None:
        self._engine = without_reserved(engine, group)
        self._group = group
        self._snapshot = snapshot
        self._most = most
        self._units = [unit for unit in units_of(group) if unit.workers.count]
        self._asked = Counter[str]()  # of each resource, the largest request of a pod
        for unit in self._units:
            self._asked |= Counter(engine.state.kind_of(unit.workers))
        self._reserved = {
            host for each in engine.state.groups.values() for host in each.status.reserved
        }

    @cached_property
    def _zones(self) -> LiveZones:
        """The zones of all nodes, where pods that move are promised their places."""
        return live_zones(self._snapshot, self._engine.state.settings)

    def find(self, movable: Sequence[Pod]) -> tuple[GroupStatus, list[Move]]:
        """Return what would come of the group, and the moves for that."""
        now = self._engine.place(self._group)
        if now.state == "Placed":
            return now, []
        pods = [*movable]
        found: tuple[GroupStatus, list[Move]] | None = None
        for _ in range(_TRIES):
            try:
                found = self._enough(pods)
                break
            except _StaysError as stays:
                pods.remove(stays.pod)
        most = self._most if found is None else len(found[1]) - 1
        return self._small(movable, min(most, SMALL)) or found or (now, [])

    def _small(self, pods: Sequence[Pod], most: int) -> tuple[GroupStatus, list[Move]] | None:
        """Return the placement and moves of the first sufficient set of up to *most* pods."""
        tries, pods = iter(range(MAX_TRIES)), sorted(pods, key=self._order)
        for chosen in chain.from_iterable(combinations(pods, n + 1) for n in range(most)):
            if next(tries, None) is None:
                return None
            if _over_budget(chosen, self._snapshot.budgets):
                continue
            trial = self._without(chosen)
            status = trial.place(self._group, explain=False)
            if not status.assignments:
                continue
            try:
                return status, self._places(trial, status, chosen)
            except _StaysError:
                found = self._arrange(self._without(chosen), chosen, [], tries)
                if found is not None:
                    return found
        return None

    def _arrange(
        self, trial: Engine, pods: Sequence[Pod], moves: list[Move], tries: Iterator[int]
    ) -> tuple[GroupStatus, list[Move]] | None:
        """Return what comes of the group once *pods* have gone somewhere first, if it fits then."""
        if not pods:
            status = trial.place(self._group, explain=False)
            return (status, moves) if status.assignments else None
        pod, *others = pods
        kind = trial.state.kind(pod.spec.effective())
        for node in self._nodes_for(trial, pod):
            if next(tries, None) is None:
                return None
            trial.state.occupy(node, kind, 1)
            found = self._arrange(trial, others, [*moves, _move(pod, node)], tries)
            trial.state.occupy(node, kind, -1)
            if found is not None:
                return found
        return None

    def _nodes_for(self, trial: Engine, pod: Pod) -> list[str]:
        """Return some of the nodes that have room for a pod, those with the least of it first."""
        if len(trial.state.nodes) > _FEW_NODES or any(
            map(aligns_pods, trial.state.view.zones.values())
        ):
            return []
        alone = PodSet(name="main", count=1, template=Template(spec=pod.spec))
        room = UnitCapacity(trial.state, Unit(workers=alone))
        fits = {node: room.pods(node) for node in room.leaf}
        nodes = [
            node
            for node, number in sorted(fits.items(), key=lambda each: (each[1], each[0]))
            if number and node != pod.node and node not in self._reserved
        ]
        return nodes[:_PLACES]

    def _enough(self, pods: Sequence[Pod]) -> tuple[GroupStatus, list[Move]] | None:
        """Return the first choice of *pods* that is enough; raises _StaysError."""
        for chosen in self._choices(pods):
            if self._fits_without(chosen):
                needed = self._needed(chosen)
                if over := _over_budget(needed, self._snapshot.budgets):
                    raise _StaysError(over[0])
                trial = self._without(needed)
                status = trial.place(self._group)
                return status, self._places(trial, status, needed)
        return None

    def _needed(self, chosen: Sequence[Pod]) -> list[Pod]:
        """Return those of *chosen* without which the group does not fit."""
        needed = [*chosen]
        for pod in chosen:
            others = [each for each in needed if each is not pod]
            if self._fits_without(others):
                needed = others
        return needed

    def _fits_without(self, pods: Sequence[Pod]) -> bool:
        return bool(self._without(pods).place(self._group, explain=False).assignments)

    def _without(self, pods: Sequence[Pod]) -> Engine:
        """Return a fork in which these are out of the cluster."""
        trial = self._engine.fork()
        trial.state.end(pods)
        return trial

    def _choices(self, pods: Sequence[Pod]) -> Iterator[list[Pod]]:
        """Yield what to try, fewest pods first: each a choice with most room in a domain."""
        on_node: dict[str, list[Pod]] = {}
        for pod in sorted(pods, key=self._order):
            on_node.setdefault(pod.node, []).append(pod)
        on_node = {node: own[: self._most] for node, own in on_node.items()}
        try:
            gains = self._gains(on_node)
            domains = self._domains(on_node)
        except Unplaceable:
            return
        choices = [(lack, _choices_in(nodes, gains, self._most)) for lack, nodes in domains]
        seen: set[tuple[tuple[str, int], ...]] = set()
        for number in range(1, self._most + 1):
            for lack, of_domain in choices:
                gain, chosen = of_domain[number]
                if chosen and gain >= lack and chosen not in seen:
                    seen.add(chosen)
                    yield [pod for node, count in chosen for pod in on_node[node][:count]]

    def _order(self, pod: Pod) -> tuple[float, Key]:
        """Return by what pods are ordered: first those that free most of what the group needs."""
        freed = with_place(pod.spec.effective())
        asked = self._asked
        share = sum(amount / asked[name] for name, amount in freed.items() if asked[name])
        return -share, pod.key

    def _gains(self, on_node: Mapping[str, Sequence[Pod]]) -> dict[str, list[int]]:
        """Return how many more of the group's pods fit on a node without 0, 1, 2, … of its own."""
        fits: dict[str, list[int]] = {node: [] for node in on_node}
        trial = self._engine.fork()
        for number in range(max((len(own) for own in on_node.values()), default=-1) + 1):
            if number:
                trial.state.end([own[number - 1] for own in on_node.values() if len(own) >= number])
            rooms = [UnitCapacity(trial.state, unit) for unit in self._units]
            for node, own in on_node.items():
                if number <= len(own):
                    fits[node].append(sum(each.pods(node) for each in rooms))
        return {node: [each - own[0] for each in own] for node, own in fits.items()}

    def _domains(self, on_node: Mapping[str, Sequence[Pod]]) -> list[tuple[int, list[str]]]:
        """Return the nodes with movable pods, by the domains in which the group is to be.

        Beside them is how many pods of the first pod set more than fit are to be in the domain.
        """
        room = UnitCapacity(self._engine.state, self._units[0])
        every = [node for node in on_node if node in room.leaf]
        if room.plan.unconstrained:
            return [(room.lack(-1), every)]
        level = min(room.plan.level, room.host_level)
        found: dict[int, list[str]] = {}
        for node in every:
            found.setdefault(room.tree.shape.domains.above(room.leaf[node], level), []).append(node)
        domains = [(room.lack(key), found[key]) for key in sorted(found)]
        return domains if room.plan.required else [*domains, (room.lack(-1), every)]

    def _places(self, trial: Engine, status: GroupStatus, pods: Sequence[Pod]) -> list[Move]:
        """Return where *pods*, which are out, would go beside the group; raises _StaysError."""
        own = {*find_assigned_nodes(status, trial.state.view)}
        aligned = {each for each in own if _aligns(trial.state.view, each)}
        trial.state.set_group(replace(self._group, status=status))
        moves = []
        try:
            for pod in pods:
                to = self._place_of(trial, pod, own) or self._place_of(trial, pod, aligned)
                if not to:
                    raise _StaysError(pod)
                trial.state.occupy(to, trial.state.kind(pod.spec.effective()), 1)
                moves.append(_move(pod, to))
        finally:
            for pod in pods:
                self._zones.withdraw(pod.key)
        return moves

    def _place_of(self, engine: Engine, pod: Pod, closed: set[str]) -> str:
        """Return a node that has room for a pod, also in its zones; empty if there is none.

        The fullest host of the topology, to keep empty hosts empty; else any other host.
        """
        request = self._zones.fits.request(pod)
        alone = PodSet(name="main", count=1, template=Template(spec=pod.spec))
        group = PlacementGroup(namespace="", name="", pod_sets=(alone,))
        trial = engine.without_nodes(closed | self._reserved | {pod.node})
        for _ in range(_NODES_TRIED):
            fullest = sorted(
                find_assigned_nodes(trial.place(group, explain=False), trial.state.view)
            )
            node = next(iter(fullest or trial.spread(group)))
            if not node:
                break
            taken = find_host_reason(trial.state.nodes[node], {}, pod.spec)  # not its resources
            if not taken and self._zones.choose(pod, request, [node]):
                return node
            trial.state.close([node])
        return ""


def _move(pod: Pod, to: str) -> Move:
    owner = next(each for each in pod.owners if each.controller)
    return Move(
        namespace=pod.namespace,
        name=pod.name,
        owner=f"{owner.kind}/{owner.name}",
        source=pod.node,
        to=to,
    )


def _choices_in(
    nodes: Sequence[str], gains: Mapping[str, Sequence[int]], most: int
) -> list[tuple[int, tuple[tuple[str, int], ...]]]:
    """Return, for 0, 1, … *most* moves, for how many pods they make room, and those of each node.

    They are the ones that make most room together.
    """
    best: list[tuple[int, tuple[tuple[str, int], ...]]] = [(0, ())] * (most + 1)
    for node in nodes:
        own = gains[node]
        steps = [at for at in range(1, len(own)) if own[at] > own[at - 1]]
        for number in range(most, 0, -1):
            for count in steps:
                if count > number:
                    break
                gain, chosen = best[number - count]
                if gain + own[count] > best[number][0]:
                    best[number] = (gain + own[count], (*chosen, (node, count)))
    return best


def _over_budget(pods: Sequence[Pod], budgets: Sequence[Budget]) -> list[Pod]:
    """Return the pods that are too many for their budgets."""
    found = []
    for budget in budgets:
        covered = [pod for pod in pods if budget.covers(pod)]
        found += covered[budget.allowed :]
    return found
