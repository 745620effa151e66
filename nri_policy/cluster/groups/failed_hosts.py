"""Which of a group's hosts have failed, by their nodes, its pods there, and the clock; cluster.md §9.

| a host fails | when |
|---|---|
| its node is deleted, or has no Ready condition | at once |
| its node is not ready, or has a NoExecute taint that is not tolerated | none of the group's pods makes progress there any more (`PodTermination`); 30 s later (`Fixed30s`) |
| its node is cordoned, or has a NoSchedule taint that is not tolerated | none of the group's pods makes progress there any more: one that runs is not evicted by it |

A toleration with `tolerationSeconds` holds for so long. Times begin when this replica sees what is
wrong. A host that has failed is failed until its node is in order again.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import inf

from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.objects.matching import Toleration
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode, Taint
from nri_policy.foundation.clock import Clock

FIXED_SECONDS = 30.0


class FailedHosts:
    """Since when something is wrong with the hosts of a cluster, by their names as labels."""

    def __init__(self, state: ClusterState, clock: Clock) -> None:
        """Judge the nodes of *state* by its settings."""
        self._state = state
        self._clock = clock
        self._since: dict[str, dict[Taint | None, float]] = {}  # by host; None: it is not ready

    def change_node(self, old: ClusterNode | None, new: ClusterNode | None) -> list[str]:
        """Update a node; return the hosts whose groups need another look."""
        hosts = [each.labels[HOSTNAME] for each in (old, new) if each and HOSTNAME in each.labels]
        changed = []
        for host in dict.fromkeys(hosts):
            node, before = self._node(host), self._since.pop(host, {})
            wrong: list[Taint | None] = []
            if node is not None:
                wrong = [each for each in node.all_taints if each.effect != "PreferNoSchedule"]
                wrong += [None] * (not node.ready)
            after = {each: before.get(each, self._clock.now()) for each in wrong}
            if after:
                self._since[host] = after
            labels = [None if each is None else each.labels for each in (old, new)]
            if before or after or labels[0] != labels[1]:
                changed.append(host)
        return changed

    def missing_label(
        self, hosts: Iterable[str], labels: Collection[str]
    ) -> tuple[str, str] | None:
        """Return the first host whose node lacks one of *labels*, and this label; None if none."""
        for host in sorted(hosts):
            node = self._node(host)
            for label in sorted(labels) if node is not None else [HOSTNAME]:
                if node is None or label not in node.labels:
                    return host, label
        return None

    def failed_hosts(
        self,
        hosts: Iterable[str],
        tolerations: Collection[Iterable[Toleration]],
        busy: Collection[str],
        known: Collection[str],
    ) -> tuple[list[str], float]:
        """Return those of *hosts* that failed, in order, and when to ask again without news.

        *tolerations* are those of each pod set, *busy* the hosts where a pod of the group makes
        progress, *known* those that had failed already.
        """
        found, again = [], inf
        for host in sorted({*hosts}):
            at = self._fails_at(host, tolerations, host in busy)
            if at <= self._clock.now() or (at < inf and host in known):
                found.append(host)
            else:
                again = min(again, at)
        return found, again

    def _node(self, host: str) -> ClusterNode | None:
        return next(iter(self._state.view.on_host(host)), None)

    def _fails_at(
        self, host: str, tolerations: Collection[Iterable[Toleration]], busy: bool
    ) -> float:
        """Return when a host fails if all stays as it is; -inf: at once, inf: never."""
        node = self._node(host)
        if node is None:
            return inf if busy else -inf  # a label was taken from a node that runs on
        if not node.known:
            return -inf
        times = [*self._times(host, tolerations, busy)]
        return min(times, default=inf)

    def _times(
        self, host: str, tolerations: Collection[Iterable[Toleration]], busy: bool
    ) -> Iterator[float]:
        fixed = self._state.settings.failure.policy == "Fixed30s"
        for taint, since in self._since.get(host, {}).items():
            tolerated = 0.0
            if taint is not None:
                tolerated = min(
                    (_seconds_tolerated(taint, each) for each in tolerations), default=inf
                )
            if fixed and (taint is None or taint.effect == "NoExecute"):
                yield since + tolerated + FIXED_SECONDS
            elif not busy:
                yield since + tolerated


def _seconds_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> float:
    """Return for how many seconds a taint is tolerated."""
    seconds = [
        inf if each.toleration_seconds is None else max(float(each.toleration_seconds), 0.0)
        for each in tolerations
        if each.tolerates(taint)
    ]
    return min(seconds, default=0.0)
