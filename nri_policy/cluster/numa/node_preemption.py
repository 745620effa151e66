"""Pods to evict from a node so that its zones take another pod: the extender's preempt verb.

kube-scheduler knows no zones: it evicts pods whose leaving makes room on the node, but maybe in no
zone. Rules are in spec cluster.md §8. What a pod leaves is free in its zone where that is known,
else in the fullest zone that can have held it (`freed_zones`), so that no more is counted on than
there will be.

A node reports that they left a little later, and nothing tells kube-scheduler then: for the pod
that they left for, they are gone at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations, islice

from msgspec import Struct

from nri_policy.cluster.numa.freed_zones import Held, add_freed, find_zone
from nri_policy.cluster.numa.node_pods import NodePods
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.objects.document import Amounts, with_place
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.zones.numa_node import select_zones
from nri_policy.cluster.zones.numa_request import NumaRequest
from nri_policy.cluster.zones.reported_pods import lists_pods, omits_pod
from nri_policy.cluster.zones.zone import NodeZones
from nri_policy.native._numa_fit import FITS, UNRESOLVABLE

MAX_KEPT = 1000  # pods for which others have left
MAX_SETS = 64  # of pods that are compared on a node, to find fewer than evicted one by one


class Victims(Struct, frozen=True):
    """Pods that leave a node, and how many of them a budget does not allow to."""

    pods: tuple[Pod, ...]
    violations: int


class _Chosen(Struct, frozen=True):
    pods: tuple[Pod, ...]
    report: NodeZones | None  # when they were chosen


class Preemption:
    """Chooses victims."""

    def __init__(self, zones: LiveZones, pods: NodePods) -> None:
        self._zones = zones
        self._pods = pods
        self._chosen: OrderedDict[str, dict[str, _Chosen]] = OrderedDict()  # by uid and node

    def choose(
        self, pod: Pod, proposed: Mapping[str, tuple[Collection[str], int]]
    ) -> dict[str, Victims]:
        """Return victims for *pod*, by node; nodes without enough victims are left out.

        *proposed* are the uids of kube-scheduler's victims, and how many violate a budget.
        """
        request, uses = self._zones.fits.request(pod), dict[int, Amounts]()
        found = {}
        for node, (uids, violations) in proposed.items():
            victims = self._choose(pod, request, uses, node, (uids, violations))
            if victims is not None:
                found[node] = victims
        reports = self._zones.view.zones
        self._chosen[pod.uid] = {
            node: _Chosen(each.pods, reports.get(node)) for node, each in found.items()
        }
        self._chosen.move_to_end(pod.uid)
        if len(self._chosen) > MAX_KEPT:
            self._chosen.popitem(last=False)
        return found

    def has_made_room(self, pod: Pod, node: str) -> bool:
        """Whether a node takes a pod for which others have left, as its report will say."""
        chosen = self._chosen.get(pod.uid, {}).get(node)
        report = self._zones.view.zones.get(node)
        if chosen is None or report is None:
            return False
        here = {each.uid for each in self._pods.on(node)}
        if any(each.uid in here for each in chosen.pods):
            return False
        if lists_pods(report):
            counted = [each for each in chosen.pods if not omits_pod(report, each.key)]
        else:
            counted = [*chosen.pods] if report is chosen.report else []
        return bool(counted) and self._fits(self._zones.fits.request(pod), node, counted)

    def _choose(
        self,
        pod: Pod,
        request: NumaRequest,
        uses: dict[int, Amounts],
        node: str,
        proposed: tuple[Collection[str], int],
    ) -> Victims | None:
        uids, violations = proposed
        here = self._pods.on(node)
        given = [each for each in here if each.uid in uids]
        if node not in self._zones.fits.slots:  # a new node without a report of zones
            return Victims((*given,), violations)
        verdict = self._zones.verdict(node, request)
        if verdict & UNRESOLVABLE:
            return None
        if verdict == FITS:
            return Victims((*given,), violations)
        room = _Room(self._zones, uses, node, here, pod, request)
        if room.fits(given) and self._fits(request, node, given):
            return Victims((*given,), violations)
        candidates = [each for each in here if each.priority < pod.priority and not each.deleted]
        candidates.sort(key=_importance)
        # what else kube-scheduler judges may need its victims to leave
        needed = given if pod.constraints or pod.own.names() else []
        budgets = self._pods.budgets_of(candidates)
        found = _fewest(candidates, needed, budgets, room.fits)
        if found is None or not self._fits(request, node, found):
            return None
        return Victims((*found,), _violations(found, budgets))

    def _fits(self, request: NumaRequest, node: str, leaving: Sequence[Pod]) -> bool:
        """Whether the filter would let a pod through to a node once others have left."""
        return self._zones.fork([node], {node: leaving}).verdict(node, request) == FITS


class _Room:
    """What a node and its zones have left for a pod, whichever other pods leave.

    This check is quicker than the filter, which checks the final result.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what there is, and what is asked
        self,
        zones: LiveZones,
        uses: dict[int, Amounts],
        node: str,
        here: Collection[Pod],
        pod: Pod,
        request: NumaRequest,
    ) -> None:
        """Add to *uses*, by the identity of a spec, what its pods use of their node."""
        report = zones.view.zones[node]
        offered = zones.view.nodes[node].allocatable
        asked = {name: each for name, each in with_place(pod.spec.effective()).items() if each}
        lacking = {name: each - offered.get(name, 0) for name, each in asked.items()}
        self._uses: dict[int, Amounts] = {}  # by pod
        for each in here:
            used = uses.get(id(each.spec))
            if used is None:
                used = uses[id(each.spec)] = with_place(each.spec.effective())
            own = self._uses[id(each)] = {name: used.get(name, 0) for name in asked}
            for name, amount in own.items():
                lacking[name] += amount
        self._lacking = {name: amount for name, amount in lacking.items() if amount > 0}
        every, _ = select_zones(report.zones)
        self._totals = {number: zone.total for number, zone in every.items()}
        self._free = {number: dict(zone.free) for number, zone in every.items()}
        steps = request.aligned_steps(report)
        self._steps = [(each.stays, request.own(each)) for each in steps]
        self._held: dict[int, Sequence[Held]] = {}
        for each in here:
            counted = each.key not in zones.promises
            self._held[id(each)] = zones.held(node, each) if counted else ()
        every_held = (one for own in self._held.values() for one in own)
        self._in_any_order = all(each.zone is not None for each in every_held)

    def fits(self, leaving: Collection[Pod]) -> bool:
        """Whether there is room once these pods have left."""
        for name, lacking in self._lacking.items():
            if lacking > sum([self._uses[id(each)][name] for each in leaving]):
                return False
        free = self._free_without(leaving)
        return all(self._take(free, *step) for step in self._steps)

    def _free_without(self, leaving: Collection[Pod]) -> dict[int, Amounts]:
        """Return what zones have left, by the rule of `freed_zones`."""
        free = {number: {**each} for number, each in self._free.items()}
        held = [each for pod in leaving for each in self._held[id(pod)]]
        if not self._in_any_order:
            held.sort(key=Held.order)
        for each in held:
            zone = find_zone(self._totals, free, each)
            if zone is not None:
                add_freed(free[zone], self._totals[zone], each)
        return free

    def _take(self, free: Mapping[int, Amounts], stays: bool, amounts: Amounts) -> bool:
        """Take what a step asks for off the first zone that has it, if it stays there."""
        for own in free.values():
            for name, amount in amounts.items():
                if own.get(name, amount) < amount:
                    break
            else:
                if stays:
                    for name in amounts.keys() & own.keys():
                        own[name] -= amounts[name]
                return True
        return False


def _fewest(
    candidates: Sequence[Pod],
    needed: Sequence[Pod],
    budgets: Sequence[tuple[int, list[Pod]]],
    fits: Callable[[Sequence[Pod]], bool],
) -> list[Pod] | None:
    """Return the victims, None if their leaving is not enough.

    Of *candidates*, the most important first, they violate the fewest budgets, then are the fewest,
    then the least important. All that are *needed* are among them.
    """
    if not fits(candidates):
        return None
    leaving = [*candidates]
    spent = {id(each) for allowed, covered in budgets if not allowed for each in covered}
    for each in sorted(candidates, key=lambda pod: id(pod) not in spent):  # stable
        rest = [one for one in leaving if one is not each]
        if each not in needed and fits(rest):
            leaving = rest
    least = _violations(leaving, budgets)
    others = [each for each in reversed(candidates) if each not in needed]
    for size in range(len(others) + 1):
        if not least and len(needed) + size >= len(leaving):
            break
        for chosen in islice(combinations(others, size), MAX_SETS):
            found = [*needed, *chosen]
            broken = _violations(found, budgets)
            if (broken, len(found)) < (least, len(leaving)) and fits(found):
                leaving, least = found, broken
    return leaving


def _violations(pods: Collection[Pod], budgets: Sequence[tuple[int, list[Pod]]]) -> int:
    """Return how many of *pods* leave beyond what budgets allow."""
    return sum(
        max(0, sum(each in covered for each in pods) - allowed) for allowed, covered in budgets
    )


def _importance(pod: Pod) -> tuple[int, str, str]:
    """Return by what pods are sorted, the most important first: priority, then age."""
    return -pod.priority, pod.created, pod.name
