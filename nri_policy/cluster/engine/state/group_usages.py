"""Groups and their bound pods, and what these use.

A group that has assignments uses what they say, whether its pods run or not, less what finished
pods gave back. A pod that was resized above what its pod set says uses the rest on its node, too.
Running pods of other groups use their requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from nri_policy.cluster.engine.state.usage import Usage, in_use
from nri_policy.cluster.objects.assignment import DomainAssignment
from nri_policy.cluster.objects.document import Amounts, with_place
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.annotations import POD_SET
from nri_policy.cluster.requests.group import PlacementGroup, PodSet
from nri_policy.cluster.requests.request import job_set_sharing
from nri_policy.cluster.view import ClusterView
from nri_policy.foundation.copies import copy_with

# what assignments use; else of each pod its node, what it uses, and whether it ends by itself
Count = tuple[list[Usage], list[tuple[str, Amounts, bool]]]
NOTHING: Count = ([], [])


class GroupUsages:
    """Groups, each with its bound pods."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.groups: dict[Key, PlacementGroup] = {}
        self.members: dict[Key, dict[str, Pod]] = {}  # group -> its bound pods
        self.out: frozenset[Key] = frozenset()  # groups without their places in this fork
        self.ended: tuple[Pod, ...] = ()  # pods without a group that end in this fork
        self._steps: dict[str, tuple[Key, ...]] = {}  # groups that name a level to share, by JobSet
        # steps of JobSets that share a domain and run at the same time, before they are groups, too
        self._plans: dict[Key, tuple[tuple[PlacementGroup, ...], ...]] = {}  # by JobSet
        self._planned: dict[Key, tuple[PlacementGroup, ...]] = {}  # by each group of them
        self._kinds: dict[tuple[tuple[str, int], ...], Amounts] = {}
        # what a pod of each pod set of a group uses
        self._kinds_of: dict[Key, tuple[tuple[PodSet, ...], dict[str, Amounts]]] = {}

    def fork(self) -> Self:
        """Return one with groups of its own, and the same pods."""
        return copy_with(
            self,
            groups=dict(self.groups),
            _steps=dict(self._steps),
            _plans=dict(self._plans),
            _planned=dict(self._planned),
        )

    def put(self, key: Key, group: PlacementGroup | None) -> None:
        """Add, replace or remove a group."""
        old, new = job_set_sharing(self.groups.get(key)), job_set_sharing(group)
        if old != new:
            if left := tuple(each for each in self._steps.pop(old, ()) if each != key):
                self._steps[old] = left
            if new:
                self._steps[new] = (*self._steps.get(new, ()), key)
        if group is None:
            self.groups.pop(key, None)
        else:
            self.groups[key] = group

    def steps_beside(self, group: PlacementGroup) -> list[PlacementGroup]:
        """Return the other groups of a group's JobSet, if all of them name a level to share."""
        keys = self._steps.get(job_set_sharing(group), ())
        return [self.groups[key] for key in keys if key != group.key]

    def plan(self, job_set: Key, together: tuple[tuple[PlacementGroup, ...], ...]) -> None:
        """Store which steps of a JobSet share a domain and run *together*; none forgets them."""
        for each in (each for steps in self._plans.pop(job_set, ()) for each in steps):
            self._planned.pop(each.key, None)
        for steps in together:
            self._planned |= {each.key: steps for each in steps}
        if together:
            self._plans[job_set] = together

    def forget_plans(self) -> None:
        """Forget the planned steps of all JobSets."""
        self._plans.clear()
        self._planned.clear()

    def steps_to_come(self, group: PlacementGroup) -> list[PlacementGroup]:
        """Return the steps planned beside a group that are no groups yet."""
        planned = self._planned.get(group.key, ())
        return [each for each in planned if each.key not in self.groups and each.key != group.key]

    def kind(self, amounts: Amounts) -> Amounts:
        """Return *amounts* with the place among `pods`, one object for all that are equal."""
        key = tuple(sorted(amounts.items()))
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = with_place(amounts)
        return found

    def running_of(self, group: Key) -> Counter[str]:
        """Return a group's running pods, by node."""
        found: Counter[str] = Counter()
        for pod in self.members.get(group, {}).values():
            if not pod.finished:
                found[pod.node] += 1
        return found

    def forget(self, key: Key) -> None:
        """Forget a removed group."""
        self._kinds_of.pop(key, None)

    def count(self, group: PlacementGroup | None, members: Mapping[str, Pod]) -> Count:
        """Return what a group with these pods uses."""
        if group is not None and group.status.assignments:
            return self._of_assignments(group, members), []
        running = [each for each in members.values() if not each.finished]
        return [], [self.of_pod(pod) for pod in running]

    def of_pod(self, pod: Pod) -> tuple[str, Amounts, bool]:
        """Return a pod's node, what it uses, and whether it ends by itself."""
        return pod.node, self.kind(pod.spec.effective()), pod.spec.ends

    def beyond(self, group: PlacementGroup, members: Iterable[Pod]) -> list[Usage]:
        """Return what running *members* use beyond a place of their pod set.

        Pods are resized in place, pod sets are not. A place stays as large for a smaller pod: the
        next pod there is made from the template.
        """
        kinds = self._kinds_in(group)
        found, more = [], dict[tuple[int, str], Amounts]()  # by the identity of a spec
        for pod in members:
            node = self.view.nodes.get(pod.node)
            if pod.finished or node is None:
                continue
            named = pod.labels.get(POD_SET) or pod.annotations.get(POD_SET, "")
            known = id(pod.spec), named
            if known not in more:
                own = [kinds[named]] if named in kinds else [*kinds.values()]
                more[known] = _least_beyond(self.kind(pod.spec.effective()), own)
            if more[known]:
                there = [DomainAssignment([node.host], 1)]
                found.append(Usage([HOSTNAME], there, more[known]))
        return found

    def in_use(self, key: Key) -> list[Usage]:
        """Return what a group's assignments use; nothing without any."""
        group = self.groups.get(key)
        if group is None or not group.status.assignments:
            return []
        return self._of_assignments(group, self.members.get(key, {}))

    def every(self) -> Iterator[Usage]:
        """Yield what the assignments of all groups use."""
        for key in self.groups:
            yield from self.in_use(key)

    def _of_assignments(self, group: PlacementGroup, members: Mapping[str, Pod]) -> list[Usage]:
        used = in_use(group, members.values(), self._kinds_in(group), self.view)
        return used + self.beyond(group, members.values())

    def _kinds_in(self, group: PlacementGroup) -> dict[str, Amounts]:
        key = group.key
        pod_sets, kinds = self._kinds_of.get(key, (None, {}))
        if pod_sets is not group.pod_sets:
            kinds = {each.name: self.kind(each.amounts) for each in group.pod_sets}
            self._kinds_of[key] = (group.pod_sets, kinds)
        return kinds


def _least_beyond(used: Amounts, kinds: Iterable[Amounts]) -> Amounts:
    """Return by how much *used* exceeds the one of *kinds* that is nearest to it."""
    beyond = [
        {name: more for name in used if (more := used[name] - each.get(name, 0)) > 0}
        for each in kinds
    ]
    return min(beyond, key=lambda each: sum(each.values()), default={})
