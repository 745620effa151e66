"""Ungated pods that kube-scheduler does not bind; spec cluster.md §9.

Times begin when this replica sees the pod's condition. Pods with preemption under way are about to
be bound; kube-scheduler ignores pods behind another gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from msgspec import Struct

from nri_policy.cluster.objects.group import GROUP_LABEL
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod

UNBOUND_SECONDS = 30.0
NOT_BOUND = "PodsNotBound"  # condition of a group, and reason of what happens to its pods


class UnboundPod(Struct, frozen=True):
    """A pod that is not bound in time, and why by kube-scheduler's first words."""

    pod: Pod
    words: str


class UnboundPods:
    """Since when kube-scheduler has had no room for pods, and its words."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[Key, tuple[float, str]] = {}

    def see(self, pod: Pod) -> None:
        """Update the state of a pod."""
        key = (pod.namespace, pod.name)
        waits = pod.unschedulable and GROUP_LABEL in pod.annotations and not pod.gates
        if waits and not (pod.node or pod.finished or pod.deleted):
            self._since.setdefault(key, (self._now(), pod.unschedulable))
        else:
            self.remove(key)

    def remove(self, key: Key) -> None:
        """Remove a pod."""
        self._since.pop(key, None)

    def find_overdue(self, pods: Iterable[Pod]) -> tuple[list[UnboundPod], float]:
        """Return those of *pods* that are not bound in time, and when to ask again without news."""
        found, again = [], inf
        for pod in pods:
            since, words = self._since.get((pod.namespace, pod.name), (inf, ""))
            if since + UNBOUND_SECONDS <= self._now():
                found.append(UnboundPod(pod, words))
            again = min(again, max(since, self._now()) + UNBOUND_SECONDS)
        found.sort(key=lambda each: each.pod.name)
        return found, again
