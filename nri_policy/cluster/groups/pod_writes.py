"""What is to be changed of a group's pods: let go, failed, deleted; each is asked for once.

A pod whose change failed is left alone for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from math import inf

from msgspec.structs import replace

from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.unit_capacity import find_nodes_with_room
from nri_policy.cluster.groups.assembly import Member, pod_set_names
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.placed_pods import PlacedPods
from nri_policy.cluster.groups.unbound_pods import NOT_BOUND
from nri_policy.cluster.groups.ungating import (
    CrowdedPlace,
    Ungating,
    assign_gated_pods,
    remove_places,
)
from nri_policy.cluster.groups.writes import (
    NODE_FAILED,
    DeletePod,
    FailPod,
    Notice,
    OpenGate,
    Write,
)
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.pod import template_of
from nri_policy.cluster.requests.group import GROUP_LABEL, PlacementGroup, hosts_of
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.wording import quoted


class PendingPodWrites:
    """Pending writes of pods."""

    def __init__(
        self, state: ClusterState, members: Members, placed_pods: PlacedPods, clock: Clock
    ) -> None:
        self._state = state
        self._members = members
        self._placed_pods = placed_pods
        self._clock = clock

    @property
    def gate(self) -> str:
        """The gate behind which pods of groups wait."""
        return self._state.settings.groups.gate

    def under_way(self, group: Key) -> bool:
        """Whether a pod of a group is about to be let go to a place."""
        return group in self._members.opening

    def are_all_gated(self, group: Key) -> bool:
        """Whether a group has pods, and none of them has been let go."""
        members = self._members.live(group)
        return bool(members) and all(self.gate in each.pod.gates for each in members)

    def next_try(self, members: Sequence[Member]) -> float:
        """Return when the first pause ends of those that pods are left alone for."""
        now = self._clock.now()
        pauses = (each.state.back_off.until for each in self._members.records(members))
        return min((until for until in pauses if until > now), default=inf)

    def _may_ask(self, key: Key) -> bool:
        return self._members.state(key).may_change(self._clock.now())

    def open(
        self,
        group: PlacementGroup,
        members: Sequence[Member],
        closed: Collection[str],
        successor: Member | None = None,
    ) -> Iterator[Write]:
        """Yield the pods that may go, none to *closed* hosts.

        A *successor* of another template than its place is for goes only to a host with room for
        what it needs more.

        A pod keeps its place until its end, and takes it when the opening of its gate is sent, not
        when the watch shows that. Writes without an answer are repeated even to closed hosts: only
        the answer tells their outcome.
        """
        for key in sorted(self._members.unanswered.get(group.key, ())):
            state = self._members.state(key)
            if state.write is not None and state.back_off.until <= self._clock.now():
                yield state.write
        crowded = self.find_crowded(group, members, closed, successor)
        waiting = None if crowded is None else crowded.opening
        for opening in self._openings(group, members, closed):
            if opening != waiting and self._may_ask((group.namespace, opening.pod.name)):
                yield OpenGate(opening, group.name, self.gate)

    def find_crowded(
        self,
        group: PlacementGroup,
        members: Sequence[Member],
        closed: Collection[str],
        successor: Member | None,
    ) -> CrowdedPlace | None:
        """Return the place that a *successor* would get, if its host lacks room; else None."""
        if successor is None:
            return None
        (pod_set,) = group.pod_sets
        own, asked = pod_set.amounts, successor.pod.spec.effective()
        if all(amount <= own.get(name, 0) for name, amount in asked.items()):
            return None
        openings = self._openings(group, members, closed)
        opening = next((each for each in openings if each.pod.name == successor.pod.name), None)
        if opening is None or HOSTNAME not in opening.selector:
            return None
        pods = {pod_set.name: [opening.opened(self.gate)]}
        status, name = group.status, successor.pod.name
        left, _, _ = remove_places(status.assignments, pods, [name], self._state.nodes)
        lost = replace(status, assignments=left, given_back=status.given_back + 1)
        template = template_of(successor.pod)
        roomy = find_nodes_with_room(self._state, replace(group, status=lost), template)
        found = CrowdedPlace(opening, roomy)
        there = self._state.view.on_host(found.host)
        return None if any(each.name in roomy for each in there) else found

    def _openings(
        self, group: PlacementGroup, members: Sequence[Member], closed: Collection[str]
    ) -> Iterator[Ungating]:
        """Yield the pods that may go by the places of their group."""
        members = [
            each
            for each in members
            if not each.pod.finished and not (each.pod.deleted and each.pod.gates)
        ]
        names = pod_set_names(members, self._state.levels, group.pod_sets)
        for assignment in group.status.assignments:
            own = [
                replace(each, pod=self._members.as_asked(each.pod))
                for each, name in zip(members, names, strict=True)
                if name == assignment.pod_set
            ]
            yield from assign_gated_pods(assignment, own, self.gate, self._state.nodes, closed)

    def fail_lost(
        self, group: PlacementGroup, members: Sequence[Member], unhealthy: Collection[str]
    ) -> Iterator[Write]:
        """Yield the pods that were let go to a host that failed before they were there.

        That is one of the *unhealthy*, or one that the group has no place on any more; or has fewer
        places on than pods, because one that kube-scheduler did not bind has its place elsewhere.
        """
        places = hosts_of(group)
        left = Counter(places)
        left.subtract(
            self._placed_pods.host(each.pod) for each in members if self.gate not in each.pod.gates
        )
        for each in members:
            pod = each.pod
            key = pod.key
            host = pod.spec.node_selector.get(HOSTNAME)
            if pod.node or not host or self.gate in pod.gates or not self._may_ask(key):
                continue
            if pod.annotations.get(GROUP_LABEL) != group.name:
                continue
            if pod.unschedulable and left[host] < 0:
                left[host] += 1
                reason, message = (
                    NOT_BOUND,
                    f"kube-scheduler did not bind it to host {quoted(host)}",
                )
            elif host in unhealthy or host not in places:
                reason, message = (
                    NODE_FAILED,
                    f"host {quoted(host)} failed before the pod was there",
                )
            else:
                continue
            yield FailPod(pod, group.name, reason, message)
            yield from self._events(key, reason, message)

    def evict(self, group: PlacementGroup, members: Sequence[Member]) -> Iterator[Write]:
        """Yield the pods that have to go with their group's places."""
        status = group.status
        for each in members:
            pod = each.pod.key
            if self.gate not in each.pod.gates and self._may_ask(pod):
                yield DeletePod(each.pod, group.name, status.evicted, status.message)
                yield from self._events(pod, status.evicted, status.message)

    def _events(self, pod: Key, reason: str, message: str) -> Iterator[Notice]:
        """Yield an Event that a pod has to go, and why: once, however often it is asked."""
        if self._members.state(pod).ended != message:
            yield Notice(pod, reason, message, pod=True)
