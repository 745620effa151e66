"""Pod quota records: the CFS quota of each pod's cgroup; a part of the delivery state, and as pure.

A kubelet that resizes a pod writes its quota after the last request that the runtime tells of
(nri.md §3.10): such a pod is in doubt, and its quota is looked at again.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.delivery.inputs import Action, PodGone, PodsChanged, QuotaWritten
from nri_policy.delivery.schedule import Schedule
from nri_policy.engine.state.quota import NO_QUOTA

DOUBT = 10.0  # seconds after an event in which the kubelet may write a pod's quota (§3.10)
LOOK = 0.5  # seconds between looks in that time, at least
RECHECK = 60.0  # seconds between looks at other times


class PodQuota(Struct, frozen=True, kw_only=True):
    """One pod's record."""

    taken: int | None = None  # µs a period that the kubelet wrote, of one that is without it
    until: float | None = None  # until when the kubelet may write another


NEW = PodQuota()  # the record of a pod that is not in the table


class PodQuotaRecords:
    """Records by pod id."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.records: dict[str, PodQuota] = {}
        self.doubtful: dict[str, float] = {}  # until when the kubelet may write their quota
        self._rest_until = -math.inf  # when the latest look is long enough ago

    def pods_changed(self, event: PodsChanged) -> None:
        """Look at these pods soon; at all others in a while, if no pod is named."""
        now = self._schedule.now
        for each in event.pod_ids:
            self._put(each, replace(self._record(each), until=now + DOUBT))
        soon = max(now, self._rest_until)
        self._schedule.hasten(Action.QUOTAS, soon if event.pod_ids else now + RECHECK)

    def pod_gone(self, event: PodGone) -> None:
        """Forget a pod."""
        self._put(event.pod_id, NEW)

    def quota_written(self, event: QuotaWritten) -> None:
        """Keep what the kubelet wrote while a pod is without it."""
        known = self._record(event.pod_id)
        if event.quota != NO_QUOTA:
            self._put(event.pod_id, replace(known, taken=None))
        elif event.before > 0:
            self._put(event.pod_id, replace(known, taken=event.before))

    def ended(self) -> None:
        """End the doubts that are over, and look again in a while."""
        now = self._schedule.now
        for each, until in [*self.doubtful.items()]:
            if now >= until:
                self._put(each, replace(self.records[each], until=None))
        self._rest_until = now + LOOK
        self._schedule.due[Action.QUOTAS] = self._rest_until if self.doubtful else now + RECHECK

    def _record(self, pod_id: str) -> PodQuota:
        return self.records.get(pod_id, NEW)

    def _put(self, pod_id: str, new: PodQuota) -> None:
        """Replace a pod's record; one of which nothing is known needs none."""
        self.doubtful.pop(pod_id, None)
        self.records.pop(pod_id, None)
        if new != NEW:
            self.records[pod_id] = new
        if new.until is not None:
            self.doubtful[pod_id] = new.until
