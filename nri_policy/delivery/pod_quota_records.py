"""Pod quota records: the CFS quota of each pod's cgroup; a part of the delivery state, and as pure.

A kubelet that resizes a pod writes its quota after the last request that the runtime tells of
(nri.md §3.10): such a pod is in doubt, and its quota is looked at again, at growing intervals. A
look that finds the kubelet's quota does not end that: it may be the one before the resize.
"""

from __future__ import annotations

import math

from nri_policy.delivery.inputs import Action, PodGone, PodsChanged, QuotaWritten
from nri_policy.delivery.record_table import RecordTable
from nri_policy.engine.state.quota import NO_QUOTA

DOUBT = 10.0  # seconds after an event in which the kubelet may write a pod's quota (§3.10)
LOOK = 0.5  # seconds between looks in that time, at least; else as many as since the latest event
RECHECK = 60.0  # seconds between looks at other times


class PodQuotaRecords:
    """The quotas of pods that were seen and written, by pod id."""

    def __init__(self, table: RecordTable) -> None:
        self._table = table
        self.taken: dict[str, int] = {}  # µs a period that the kubelet wrote, of those without it
        self.doubtful: dict[str, float] = {}  # until when the kubelet may write their quota
        self._rest_until = -math.inf  # when the latest look is long enough ago

    def pods_changed(self, event: PodsChanged) -> None:
        """Look at these pods soon; at all others in a while, if no pod is named."""
        now = self._table.now
        self.doubtful |= dict.fromkeys(event.pod_ids, now + DOUBT)
        soon = max(now, self._rest_until)
        self._table.hasten(Action.QUOTAS, soon if event.pod_ids else now + RECHECK)

    def pod_gone(self, event: PodGone) -> None:
        """Forget a pod."""
        self.taken.pop(event.pod_id, None)
        self.doubtful.pop(event.pod_id, None)

    def quota_written(self, event: QuotaWritten) -> None:
        """Keep what the kubelet wrote while a pod is without it."""
        if event.quota != NO_QUOTA:
            self.taken.pop(event.pod_id, None)
        elif event.before > 0:
            self.taken[event.pod_id] = event.before

    def ended(self) -> None:
        """End the doubts that are over, and look again in a while."""
        now = self._table.now
        for each in [each for each, until in self.doubtful.items() if now >= until]:
            del self.doubtful[each]
        self._rest_until = now + LOOK
        again = now + RECHECK
        if self.doubtful:
            until = max(self.doubtful.values())
            age = now - (until - DOUBT)
            again = max(self._rest_until, min(now + age, until))
        self._table.due[Action.QUOTAS] = again
