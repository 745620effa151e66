"""Spreading of a service's pods that no gate holds, one by one, as kube-scheduler asks about them.

A service is the controller that owns pods; of a ReplicaSet, its Deployment. Where its next pod
should go is the rule of spreading for one pod: at each level the branch with the fewest of its pods
by weight, then the host with the fewest recent failures, of its own pods, of all pods (§6 of spec
cluster.md).

kube-scheduler asks about the next pod before it has bound the last one. A pod counts on the node
that was chosen for it, or to which we bind it, until it is seen bound, asks again, or
PROMISE_SECONDS pass: no host gets more pods of a service than allowed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Generic, TypeVar

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.annotations import MAX_PER_HOST, SPREAD_OVER, read_request
from nri_policy.cluster.requests.group import PlacementRequest, named_group
from nri_policy.cluster.requests.spread_preferences import Preference, read_preferences
from nri_policy.cluster.view import ClusterView
from nri_policy.foundation.clock import Clock

PROMISE_SECONDS = 30.0
FAILURE_SECONDS = 300.0  # for which a failure counts
FEW_FAILURES = 5  # fewer than these count as none
MOST_SCORE = 10
_ASKING = frozenset((SPREAD_OVER, MAX_PER_HOST))
_HASH = "pod-template-hash"

Of = TypeVar("Of")
Service = tuple[str, str, str]  # namespace, kind and name


class RecentFailures(Generic[Of]):
    """Pods that failed in the last minutes, by node: those of a group, or of a service."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: defaultdict[Of, list[tuple[float, str]]] = defaultdict(list)

    def add(self, whose: Of, node: str) -> None:
        """Take in that a pod failed."""
        now = self._clock.now()
        for each in [
            each for each, at in self._times.items() if at[-1][0] <= now - FAILURE_SECONDS
        ]:
            del self._times[each]
        self._times[whose].append((now, node))

    def of(self, whose: Of) -> Counter[str]:
        """Return the pods that failed recently, by node."""
        since = self._clock.now() - FAILURE_SECONDS
        return Counter(node for at, node in self._times.get(whose, ()) if at > since)


class ServiceSpread:
    """Where the pods of services run that ask to be spread."""

    def __init__(self, view: ClusterView, clock: Clock) -> None:
        self._view = view
        self._every: Counter[str] = Counter()  # pods by node
        self._at: dict[Key, tuple[str, Service | None]] = {}  # by pod
        self._own: defaultdict[Service, Counter[str]] = defaultdict(Counter)  # by node
        self._failures: RecentFailures[Service] = RecentFailures(clock)
        self._promised: dict[Key, float] = {}  # pods that are not bound yet, until when they count
        self._clock = clock

    def set_pod(self, pod: Pod) -> None:
        """Take in that a pod came or changed."""
        if not pod.node and pod.key in self._promised:
            return
        before = self.remove_pod(*pod.key)
        if not pod.node:
            return
        service = _service(pod) if _asks(pod) else None
        if pod.finished:
            if service is not None and before is not None and pod.phase == "Failed":
                self._failures.add(service, pod.node)
            return
        self._count(pod, pod.node, service)

    def _count(self, pod: Pod, node: str, service: Service | None) -> None:
        self._at[pod.key] = (node, service)
        self._every[node] += 1
        if service is not None:
            self._own[service][node] += 1

    def choose(self, pod: Pod, names: Sequence[str]) -> str | None:
        """Return the best node for a pod of a service with a limit, None for other pods."""
        request = _request(pod)
        if request is None or request.max_per_host is None or not names:
            return None
        scores = self.scores(pod, names) or {}
        own = self._own.get(_service(pod), Counter())
        return min(names, key=lambda name: (-scores[name], own[name], self._every[name], name))

    def promise(self, pod: Pod, node: str) -> None:
        """Count a pod on a node where it is about to be bound, if its service is spread."""
        if _request(pod) is not None:
            self.withdraw(*pod.key)
            self._count(pod, node, _service(pod))
            self._promised[pod.key] = self._clock.now() + PROMISE_SECONDS

    def withdraw(self, namespace: str, name: str) -> None:
        """Take back what was promised to a pod, if it is not bound."""
        if (namespace, name) in self._promised:
            self.remove_pod(namespace, name)

    def expire(self) -> None:
        """Take back the promises whose time is over."""
        now = self._clock.now()
        for key in [key for key, until in self._promised.items() if until <= now]:
            self.remove_pod(*key)

    def remove_pod(self, namespace: str, name: str) -> str | None:
        """Take in that a pod went; return the node where it was."""
        self._promised.pop((namespace, name), None)
        found = self._at.pop((namespace, name), None)
        if found is None:
            return None
        node, service = found
        self._every[node] -= 1
        if service is not None:
            self._own[service][node] -= 1
            if not +self._own[service]:
                del self._own[service]
        return node

    def full(self, pod: Pod, names: Iterable[str]) -> dict[str, str]:
        """Return the nodes that have as many pods of the pod's service as it allows, and why."""
        request = _request(pod)
        if request is None or request.max_per_host is None:
            return {}
        own = self._own.get(_service(pod), Counter())
        text = f"has as many pods of its service as {MAX_PER_HOST} allows: {request.max_per_host}"
        return {name: text for name in names if own[name] >= request.max_per_host}

    def scores(self, pod: Pod, names: Sequence[str]) -> dict[str, int] | None:
        """Return scores of nodes, 0 to 10 (best); None if the pod does not request spreading."""
        request = _request(pod)
        if request is None:
            return None
        preferences = read_preferences(request.spread_over, SPREAD_OVER)
        service = _service(pod)
        own = self._own.get(service, Counter())
        failures = self._failures.of(service)
        branches = [self._branches(own, preferences[: n + 1]) for n in range(len(preferences))]
        keys = {}
        for name in names:
            path = self._path(name, preferences)
            keys[name] = (
                *(
                    _load(preference, branch[path[: n + 1]], path[n])
                    for n, (preference, branch) in enumerate(
                        zip(preferences, branches, strict=True)
                    )
                ),
                failures[name] if failures[name] >= FEW_FAILURES else 0,
                own[name],
                self._every[name],
            )
        ranks = {key: rank for rank, key in enumerate(sorted({*keys.values()}))}
        worst = max(len(ranks) - 1, 1)
        return {name: round(MOST_SCORE * (1 - ranks[keys[name]] / worst)) for name in names}

    def _branches(
        self, own: Mapping[str, int], preferences: Sequence[Preference]
    ) -> Counter[tuple[str, ...]]:
        """Return a service's pods by the values of the preferences' labels."""
        found: Counter[tuple[str, ...]] = Counter()
        for node, count in own.items():
            found[self._path(node, preferences)] += count
        return found

    def _path(self, name: str, preferences: Sequence[Preference]) -> tuple[str, ...]:
        node = self._view.nodes.get(name)
        labels = {} if node is None else node.labels
        return tuple(labels.get(each.key, "") for each in preferences)


def _load(preference: Preference, count: int, value: str) -> tuple[Fraction, int, bool, str]:
    """Return by what branches are ordered: the first takes the next pod.

    Of equal ones, nodes without the label come last.
    """
    if preference.packed:
        return Fraction(-count), 0, not value, value
    weight = preference.weights.get(value, 1)
    return Fraction(count, weight), -weight, not value, value


def _asks(pod: Pod) -> bool:
    return not (_ASKING.isdisjoint(pod.annotations) and _ASKING.isdisjoint(pod.labels))


def _request(pod: Pod) -> PlacementRequest | None:
    """Return the request of a pod; None without spreading, or for a pod of a placed group."""
    if not _asks(pod) or named_group(pod):
        return None
    try:
        return read_request(pod.annotations, pod.labels, "metadata")
    except DocumentError:  # an invalid request must not delay the pod
        return None


def _service(pod: Pod) -> Service:
    for owner in pod.owners:
        if owner.controller:
            name = owner.name
            if owner.kind == "ReplicaSet":
                name = name.removesuffix(f"-{pod.labels.get(_HASH, '')}")
            return pod.namespace, owner.kind, name
    return pod.namespace, "Pod", pod.name
