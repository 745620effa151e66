"""Ungated pods that kube-scheduler does not bind; spec cluster.md §9.

Times begin when this replica sees the pod's condition. Pods with preemption under way are about to
be bound; kube-scheduler ignores pods behind another gate.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec import Struct

from nri_policy.cluster.groups.record import PodRecord
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.group import GROUP_LABEL

UNBOUND_SECONDS = 30.0
NOT_BOUND = "PodsNotBound"  # condition of a group, and reason of what happens to its pods


class UnboundPod(Struct, frozen=True):
    """A pod that is not bound in time, and why by kube-scheduler's first words."""

    pod: Pod
    words: str


def is_unbound(pod: Pod) -> bool:
    """Whether kube-scheduler has no room for a pod that was let go."""
    waits = pod.unschedulable and GROUP_LABEL in pod.annotations and not pod.gates
    return bool(waits) and not (pod.node or pod.finished or pod.deleted)


def find_overdue(pods: Iterable[PodRecord], now: float) -> tuple[list[UnboundPod], float]:
    """Return those of *pods* that are not bound in time, and when to ask again without news."""
    found, again = [], inf
    for each in pods:
        if each.state.unbound is not None:
            since, words = each.state.unbound
            if since + UNBOUND_SECONDS <= now:
                found.append(UnboundPod(each.pod, words))
            again = min(again, max(since, now) + UNBOUND_SECONDS)
    found.sort(key=lambda each: each.pod.name)
    return found, again
