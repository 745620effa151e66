"""What is to be changed of a group's pods: let go, failed, deleted; each is asked for once.

A pod whose change failed is left alone for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.groups.gates import openings
from nri_policy.cluster.groups.gathering import Member, pod_set_names
from nri_policy.cluster.groups.occupancy import Occupancy
from nri_policy.cluster.groups.refusals import Refusals
from nri_policy.cluster.groups.unbound_pods import NOT_BOUND
from nri_policy.cluster.groups.writes import (
    NODE_FAILED,
    DeletePod,
    FailPod,
    Notice,
    OpenGate,
    PodWrite,
    Write,
    pod_of,
)
from nri_policy.cluster.objects.group import GROUP_LABEL, PlacementGroup, hosts_of
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.pod import Pod
from nri_policy.foundation.wording import quoted


class PodChanges:
    """The changes of pods that are under way."""

    def __init__(
        self,
        engine: Engine,
        occupancy: Occupancy,
        now: Callable[[], float],
    ) -> None:
        self._engine = engine
        self.refusals = Refusals(now)
        self._occupancy = occupancy
        self._asked: dict[Key, PodWrite] = {}
        self._unanswered: set[Key] = set()  # pods whose write is repeated
        self._ended: dict[Key, str] = {}  # reason of each announced deletion or failure

    @property
    def gate(self) -> str:
        """The gate behind which pods of groups wait."""
        return self._engine.settings.groups.gate

    def ask(self, write: PodWrite) -> None:
        """Record a pending write."""
        pod = pod_of(write)
        self._asked[pod.namespace, pod.name] = write
        self._unanswered.discard((pod.namespace, pod.name))

    def note_no_answer(self, write: OpenGate) -> None:
        """Repeat an unchanged write later whose answer was lost, unless its outcome was seen."""
        pod = write.opening.pod
        if self._asked.get((pod.namespace, pod.name)) is write:
            self._unanswered.add((pod.namespace, pod.name))

    def settle(self) -> None:
        """Drop writes without an answer: they failed, or the watch has shown them."""
        for key in [*self._unanswered]:
            self.forget(key)

    def forget(self, key: Key) -> None:
        """Forget the pending write of a pod."""
        self._asked.pop(key, None)
        self._unanswered.discard(key)

    def remove(self, key: Key) -> None:
        """Remove a pod."""
        self._settle(key)
        self._ended.pop(key, None)

    def _settle(self, key: Key) -> None:
        self.forget(key)
        self.refusals.remove(key)

    def under_way(self, group: Key) -> bool:
        """Whether a pod of a group is about to be let go to a place."""
        return any(
            isinstance(each, OpenGate) and (each.opening.pod.namespace, each.group) == group
            for each in self._asked.values()
        )

    def see(self, pod: Pod) -> None:
        """Update a pod: a pending write based on another revision is settled."""
        key = (pod.namespace, pod.name)
        asked = self._asked.get(key)
        if asked is not None and pod_of(asked).revision != pod.revision:
            self._settle(key)

    def _may_ask(self, key: Key) -> bool:
        """Whether a change of a pod may be asked: none is under way, and none has just failed."""
        return key not in self._asked and not self.refusals.holds(key)

    def open(
        self, group: PlacementGroup, members: Sequence[Member], closed: Collection[str]
    ) -> Iterator[Write]:
        """Yield the pods that may go, none to *closed* hosts.

        A pod keeps its place until its end, and takes it when the opening of its gate is sent, not
        when the watch shows that. Writes without an answer are repeated even to closed hosts: only
        the answer tells their outcome.
        """
        for key in sorted(self._unanswered):
            asked = self._asked[key]
            of = (key[0], asked.group)
            if of == (group.namespace, group.name) and not self.refusals.holds(key):
                yield asked
        members = [
            each
            for each in members
            if not each.pod.finished and not (each.pod.deleted and each.pod.gates)
        ]
        names = pod_set_names(members, self._engine.levels, group.pod_sets)
        nodes = self._occupancy.nodes
        for assignment in group.status.assignments:
            own = [
                self._as_asked(each)
                for each, name in zip(members, names, strict=True)
                if name == assignment.pod_set
            ]
            for opening in openings(assignment, own, self.gate, nodes, closed):
                if self._may_ask((group.namespace, opening.pod.name)):
                    yield OpenGate(opening, group.name, self.gate)

    def _as_asked(self, member: Member) -> Member:
        """Return a pod as it is once its gate is open, if that is under way."""
        asked = self._asked.get((member.pod.namespace, member.pod.name))
        if not isinstance(asked, OpenGate):
            return member
        return replace(member, pod=asked.opening.opened(self.gate))

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
            self._occupancy.host(each.pod) for each in members if self.gate not in each.pod.gates
        )
        for each in members:
            pod = each.pod
            key = (pod.namespace, pod.name)
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
            yield from self._tell(key, reason, message)

    def evict(self, group: PlacementGroup, members: Sequence[Member]) -> Iterator[Write]:
        """Yield the pods that have to go with their group's places."""
        status = group.status
        for each in members:
            pod = (each.pod.namespace, each.pod.name)
            if self.gate not in each.pod.gates and self._may_ask(pod):
                yield DeletePod(each.pod, group.name, status.evicted, status.message)
                yield from self._tell(pod, status.evicted, status.message)

    def _tell(self, pod: Key, reason: str, message: str) -> Iterator[Notice]:
        """Yield an Event that a pod has to go, and why: once, however often it is asked."""
        if self._ended.get(pod) != message:
            self._ended[pod] = message
            yield Notice(pod, reason, message, pod=True)
