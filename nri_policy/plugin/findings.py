"""Findings: anomalies that a look at the cgroups showed, kept for metrics, events and `status`.

They are in the metrics, in the cluster as events of the pod or the Node, and in `status` for an
hour. Each was acted on already, as far as that was possible and wanted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum

from nri_policy.delivery.reporter import Overlap
from nri_policy.foundation.clock import Clock
from nri_policy.kube.events import ClusterEvent, Subject
from nri_policy.workload.pod import Container

SHOWN = 3600.0  # seconds
MOST_SHOWN = 5


class Anomaly(StrEnum):
    """What was found, as metrics name it."""

    OVERLAP = "overlap"  # a container on an exclusive CPU of another container
    COMPANY = "company"  # an unpinned container on the exclusive CPUs of another
    ENDED = "ended-without-event"  # a container ended without a runtime's event
    UNKNOWN = "unknown-container"  # a container runs that no runtime has announced


class Findings:
    """The findings of one daemon."""

    def __init__(
        self,
        node: str,
        *,
        record: Callable[[ClusterEvent], None],
        count: Callable[[Anomaly], None],
        clock: Clock,
    ) -> None:
        """Take the node's name, what records an event and what counts."""
        self._node = Subject.node(node)
        self._record = record
        self._count = count
        self._clock = clock
        self._latest: deque[tuple[float, str]] = deque(maxlen=MOST_SHOWN)

    def recent(self) -> Iterator[str]:
        """Yield what was found of containers within the last hour."""
        now = self._clock.now()
        return (text for at, text in self._latest if now - at < SHOWN)

    def overlap(self, found: Overlap) -> None:
        """Record a container that was on exclusive CPUs of another container."""
        container, owners = found.container, ", ".join(found.owners)
        ran = f"was on CPUs {found.cpus}, which only {owners} may use"
        done = f"it is still there: {found.error}" if found.error else "it was moved off them"
        self._found(Anomaly.OVERLAP, container, "ExclusiveCPUsShared", f"{ran}; {done}")

    def accompanied(self, container: Container, reason: str) -> None:
        """Record a container that shares its exclusive CPUs, which cannot be mended here."""
        text = f"shares its exclusive CPUs: {reason}"
        self._found(Anomaly.COMPANY, container, "ExclusiveCPUsNotAlone", text)

    def report_end(self, container: Container) -> None:
        """Record a container that was released without an event of the runtime."""
        text = "has no process any more, but the runtime did not report its end; its CPUs are free"
        self._found(Anomaly.ENDED, container, "EndedWithoutEvent", text)

    def report_given_up(self, container: Container) -> None:
        """Take note of a container that was created and will not be started."""
        text = "was never started and has no process; its CPUs are free"
        self._found(Anomaly.ENDED, container, "EndedWithoutEvent", text)

    def unknown(self, cgroups: Collection[str]) -> None:
        """Take note of cgroups with processes that no runtime told us of."""
        for cgroup in cgroups:
            self._count(Anomaly.UNKNOWN)
            text = f"a container runs in {cgroup}, but the runtime has not reported it"
            self._record(ClusterEvent(about=self._node, reason="UnknownContainer", text=text))

    def _found(self, finding: Anomaly, container: Container, reason: str, text: str) -> None:
        self._count(finding)
        self._latest.append((self._clock.now(), f"{container.full_name} {text}"))
        pod = container.pod
        about = Subject.pod(pod.namespace, pod.name, pod.uid)
        self._record(
            ClusterEvent(about=about, reason=reason, text=f"container {container.name} {text}")
        )
