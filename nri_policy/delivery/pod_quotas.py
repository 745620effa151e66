"""Pod quotas: the CFS quota of the cgroups of pods; spec placement.md §3.1.

A pod's cgroup has the sum of its containers' quotas, which throttles them as their own would. While
no started container has a quota, the pod has none; otherwise it has the kubelet's. The runtime does
not set this quota, so the file is written here.

Rule 1: a request waits for a file only where a container starts, `MAX_WAIT` at most. Rule 2: a
kubelet that resizes a pod writes its quota after the last request that we hear of (nri.md §3.10),
so we look again for ten seconds, and every minute at those that systemd may have undone.
Rule 3: write only the pod's own cgroup, whose name contains its uid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable

from nri_policy.delivery.executor import Executor
from nri_policy.delivery.host_cgroups import HostCgroups, Limited
from nri_policy.delivery.inputs import Action, PodGone, PodsChanged, QuotaWritten
from nri_policy.delivery.record import LIVING
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import Node
from nri_policy.settings import ExclusiveQuota
from nri_policy.workload.pod import Container

log = logging.getLogger(__name__)

MAX_WAIT = 0.2  # seconds that a start waits for files


class PodQuotas:
    """The quotas of the pods of one runtime."""

    def __init__(self, node: Node, executor: Executor, files: HostCgroups | None) -> None:
        """Write *files*, if there are any."""
        self._node = node
        self._executor = executor
        self._state = executor.state
        # the kubelet's quotas of pods that have lost them
        self._taken = executor.state.pod_quotas.taken
        self._files = files
        self._turn = asyncio.Lock()
        self.trouble = ""  # why quotas of pods cannot be written, empty if they can
        executor.looks[Action.QUOTAS] = self.look

    async def start(self, pod_id: str) -> None:
        """Set the quota of a pod of which a container starts."""
        if self._files is None or not self._concerns(pod_id):
            return
        if not await self._executor.in_time(self._write([pod_id]), MAX_WAIT):
            log.warning("cgroups-slow", extra={"pod": pod_id})

    def expect(self, pod_ids: Iterable[str]) -> None:
        """Look at pods soon: their containers have changed, or the kubelet writes their quota."""
        concerned = [*filter(self._is_candidate, pod_ids)]
        if concerned:
            self._executor.apply(PodsChanged(pod_ids=concerned))

    def expect_all(self) -> None:
        """Look at all pods soon, and now and then."""
        self._executor.apply(PodsChanged(pod_ids=self._list_candidates()))

    def forget(self, pod_id: str) -> None:
        """Forget a pod that is gone."""
        self._executor.apply(PodGone(pod_id))

    async def look(self) -> None:
        """Write the quotas that differ from what is due."""
        await self._write([*self._state.pod_quotas.doubtful] or self._concerned())

    async def widen(self) -> None:
        """Give all pods their quota back: the policy leaves."""
        await self._write(self._concerned())

    def _concerned(self) -> list[str]:
        """Return the pods that have no quota, or must lose it."""
        return [*filter(self._concerns, self._list_candidates())]

    def _list_candidates(self) -> list[str]:
        view = self._node.view
        return [*filter(self._is_candidate, dict.fromkeys((*view.pods, *view.rooms)))]

    def _is_candidate(self, pod_id: str) -> bool:
        """Whether a pod is of those whose quota may be taken: Guaranteed, or with a room."""
        view = self._node.view
        pod = view.pods.get(pod_id)
        return (pod is not None and pod.whole is not None) or pod_id in view.rooms

    def _concerns(self, pod_id: str) -> bool:
        """Whether a pod has no quota, or must lose it."""
        if pod_id in self._taken or self._has_room(pod_id):
            return True
        quotas = self._node.view.quotas
        return any(quotas.get(each) == NO_QUOTA for each in self._node.of_pod(pod_id))

    async def _write(self, pod_ids: Collection[str]) -> None:
        """Write the quotas of these pods that differ from what is due."""
        if self._files is None:
            return
        async with self._turn:
            due = {each: quota for each in pod_ids if (quota := self._due(each)) is not None}
            pods = self._node.view.pods
            folders = {each: pods[each].folder for each in due}
            wanted = {folders[each]: quota for each, quota in due.items()}
            if not wanted:
                return
            done = await asyncio.to_thread(self._files.limit, wanted)
            for each, quota in due.items():
                if folders[each] in done:
                    self._conclude(each, quota, done[folders[each]])

    def _due(self, pod_id: str) -> int | None:
        """Return the quota that is due to a pod; None: leave it alone."""
        placed = self._node.view.placed
        containers = [placed[each].container for each in self._node.of_pod(pod_id)]
        started = [each.id for each in containers if self._state.phase(each.id) in LIVING]
        pod = self._node.view.pods.get(pod_id)
        folder = "" if pod is None else pod.folder
        uid = containers[0].pod.uid if containers else ""
        if not started or not uid or uid.replace("-", "_") not in folder.replace("-", "_"):
            return None
        quotas = self._node.view.quotas
        alone = all(quotas.get(each) == NO_QUOTA for each in started)
        if not self._state.leaves and (alone or self._has_room(pod_id)):
            return NO_QUOTA
        limits = [each.resources.cpu_quota for each in containers]
        if min(limits) <= 0 or containers[0].pod.qos is not QoS.GUARANTEED:
            before = self._recall(pod_id, containers) if self._has_room(pod_id) else 0
            return self._taken.get(pod_id) or before or None
        # never less than its containers have: version 1 of cgroups refuses that
        least = max(limits) if any(each.pod_level for each in containers) else sum(limits)
        return max(least, self._taken.get(pod_id) or self._recall(pod_id, containers))

    def _has_room(self, pod_id: str) -> bool:
        """Whether a pod has a room, and no quota because of it (placement.md §3.3.6)."""
        view = self._node.view
        room = view.rooms.get(pod_id)
        if room is None or not view.layout.settings.pin_cpu:
            return False
        return room.request.steering.exclusive_quota is ExclusiveQuota.NONE

    def _recall(self, pod_id: str, containers: Iterable[Container]) -> int:
        """Return what the kubelet gave a pod whose quota an earlier life of the daemon took."""
        whole = [each.pod.amounts.cpu_quota for each in containers if each.pod.amounts is not None]
        pod = self._node.view.pods.get(pod_id)
        return max(whole, default=0) + (0 if pod is None else pod.overhead)

    def _conclude(self, pod_id: str, quota: int, done: Limited) -> None:
        if done.error and done.error != self.trouble:
            log.warning("pod-quota-not-written", extra={"pod": pod_id, "reason": done.error})
        self.trouble = done.error
        if not done.error:
            event = QuotaWritten(pod_id=pod_id, quota=quota, before=done.before)
            self._executor.apply(event)
