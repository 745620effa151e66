"""Pods' objects: the requests of a pod's containers, from its object in the API server.

Owns when the API server is queried, how long a container waits for it, and which fields are read.
Rule 1: only the first container of a pod waits, for a moment, and none does while the server is
slow. Rule 2: if the daemon may not read pods, it does not try again soon. An object that arrives
too late goes to the callback `late`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http.client import FORBIDDEN, NOT_FOUND, UNAUTHORIZED
from typing import Any

import msgspec

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.units import parse_bytes, parse_cpu
from nri_policy.kube.errors import APIError
from nri_policy.kube.pod_reader import PodReader
from nri_policy.manifests.pod_object import PodObject, RequestedResources
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.pod import Pod
from nri_policy.workload.requirements import PodRequirements, Requirements

log = logging.getLogger(__name__)

PATIENCE = 0.1  # seconds that the first container of a pod waits
FORBIDDEN_FOR = 3600.0  # seconds without queries after the server forbids to read pods


class PodObjects:
    """The objects of one node's pods."""

    def __init__(
        self,
        reader: PodReader,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.late: Callable[[Pod, PodRequirements], Awaitable[None]] | None = None
        self._reader = reader
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by the pod's sandbox
        self._found: dict[str, PodRequirements] = {}  # by the same
        self._missed: set[str] = set()  # pods that went on without an answer
        self._slow = False  # whether the last wait ended without an answer
        self._forbidden_until = 0.0
        self._failed: int | None = None  # HTTP's code of the last failure, if the last try failed

    @property
    def readable(self) -> bool:
        """Whether pods may be read, as far as is known."""
        return self._clock.now() >= self._forbidden_until

    def ask(self, pod: Pod) -> None:
        """Query a pod's object, without waiting, unless it is BestEffort or already known."""
        known = pod.id in self._found or pod.id in self._tasks
        if not known and pod.qos is not QoS.BEST_EFFORT and self.readable:
            self._tasks[pod.id] = asyncio.create_task(self._find(pod), name="pod's object")

    def ask_late(self, pods: Iterable[Pod]) -> None:
        """Query the objects of pods that already run."""
        for pod in pods:
            self._missed.add(pod.id)
            self.ask(pod)

    async def ready(self, pod: Pod) -> None:
        """Wait a moment for the object of *pod*, once."""
        self.ask(pod)
        task = self._tasks.get(pod.id)
        if task is None or task.done() or pod.id in self._missed or self._slow:
            return
        patience = asyncio.ensure_future(self._clock.sleep(PATIENCE))
        try:
            await asyncio.wait({task, patience}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            patience.cancel()
        self._slow = not task.done()

    def of(self, pod: Pod) -> PodRequirements | None:
        """Return the requirements in the object of *pod*; None if unknown, or not yet known."""
        found = self._found.get(pod.id)
        if found is None and pod.id in self._tasks:
            self._missed.add(pod.id)
        return found

    def forget(self, pod_id: str) -> None:
        """Forget a pod that was deleted or changed."""
        self._found.pop(pod_id, None)
        self._missed.discard(pod_id)
        task = self._tasks.pop(pod_id, None)
        if task is not None:
            task.cancel()

    def restart(self) -> None:
        """Forget all pods."""
        for each in [*self._tasks, *self._found]:
            self.forget(each)

    async def close(self) -> None:
        """Cancel all queries."""
        tasks = [*self._tasks.values()]
        self.restart()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self, pod: Pod) -> None:
        try:
            found = await self._reader.read(pod.namespace, pod.name, pod.uid)
            read = None if found is None else read_object(found)
        except (APIError, ValueError) as error:
            self._fail(pod, error)
            return
        finally:
            self._tasks.pop(pod.id, None)
        self._failed, self._slow = None, False
        if read is None:
            return
        self._found[pod.id] = read
        if pod.id in self._missed and self.late is not None:
            self._missed.discard(pod.id)
            await self.late(pod, read)

    def _fail(self, pod: Pod, error: APIError | ValueError) -> None:
        """Log why a pod's object is unknown, unless the last one failed in the same way."""
        code = error.code if isinstance(error, APIError) else 0
        if code == NOT_FOUND:  # the pod is gone, or a static pod's object does not exist yet
            return
        if code in {FORBIDDEN, UNAUTHORIZED}:
            self._forbidden_until = self._clock.now() + FORBIDDEN_FOR
        if code != self._failed:
            remedy = "; configs/kubernetes/rbac.yaml has what is needed" * (code == FORBIDDEN)
            name = f"{pod.namespace}/{pod.name}"
            log.warning("pod-unknown", extra={"pod": name, "reason": f"{error}{remedy}"})
        self._failed = code


def read_object(found: Mapping[str, Any]) -> PodRequirements:
    """Return the requirements of a pod's containers in its object; raises ValueError."""
    spec = msgspec.convert(found, PodObject).spec
    whole = spec.resources
    return PodRequirements(
        containers={each.name: _requirements(each.resources) for each in spec.every_container},
        pod_level=whole is not None and bool(whole.requests or whole.limits),
    )


def _requirements(resources: RequestedResources) -> Requirements:
    def cpu(amounts: Mapping[str, Any]) -> int | None:
        return parse_cpu(amounts["cpu"]) if "cpu" in amounts else None

    def memory(amounts: Mapping[str, Any]) -> int | None:
        return parse_bytes(amounts["memory"]) if "memory" in amounts else None

    return Requirements(
        cpu_request=cpu(resources.requests),
        cpu_limit=cpu(resources.limits),
        memory_request=memory(resources.requests),
        memory_limit=memory(resources.limits),
    )
