"""Claims: which devices the containers of a pod were allocated by resource claims (DRA).

Owns when the API server is queried, and which request of a claim belongs to which container. Rule
1: containers wait for it only a moment, and pods without claims cost nothing: the kubelet lists the
pods with claims. Rule 2: the kubelet's own list of a container's claimed devices is not used. It
has every device of a claim for each container that names the claim, and merges the CDI ids of
several entries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from http.client import FORBIDDEN, NOT_FOUND

from msgspec import Struct

from nri_policy.dra.objects import (
    AllocatedClaim,
    ObjectError,
    PodClaims,
    read_claim,
    read_pod,
)
from nri_policy.dra.slices import Slices
from nri_policy.kube.client import Client, ObjectKind
from nri_policy.kube.errors import APIError
from nri_policy.kube.pod_reader import MAX_REQUESTS, PodReader
from nri_policy.manifests.resource_claim import AllocationResult
from nri_policy.workload.claim import DRIVER
from nri_policy.workload.hints import ClaimedDevice
from nri_policy.workload.pod import Pod

log = logging.getLogger(__name__)

CLAIMS = ObjectKind(group="resource.k8s.io", version="v1", plural="resourceclaims")


class Allocated(Struct, frozen=True, kw_only=True):
    """The claims of a pod's containers, and the devices allocated to them."""

    pod: PodClaims
    claims: Mapping[str, AllocatedClaim]  # by name

    def results(self, container: str) -> Iterator[tuple[str, AllocationResult]]:
        """Yield the devices of a container, each with its claim's name.

        The results of the requests that the container names, or of all requests if it names none;
        a request with alternatives has the results of the chosen one, `request/subrequest`. Devices
        with admin access do not count: the container does not work with them.
        """
        for use in self.pod.uses.get(container, ()):
            claim = self.claims.get(use.claim)
            for result in () if claim is None else claim.results:
                name = result.request
                named = not use.request or use.request in {name, name.partition("/")[0]}
                if named and not result.admin_access:
                    yield use.claim, result


class ClaimedDevices:
    """The devices allocated to the pods of one node."""

    def __init__(
        self,
        client: Client,
        pods: PodReader,
        slices: Slices,
        has_claims: Callable[[Pod], Awaitable[bool]],
    ) -> None:
        """Take the slices with locations, and the kubelet's answer whether a pod has claims."""
        self._client = client
        self._pods = pods
        self._slices = slices
        self._has_claims = has_claims
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by the pod's sandbox
        self._found: dict[str, Allocated] = {}  # by the same
        self._asking = asyncio.Semaphore(MAX_REQUESTS)
        self._failed: int | None = None  # HTTP's code of the last failure, if the last try failed

    def ask(self, pod: Pod) -> None:
        """Ask about a pod that is about to run, without waiting."""
        self.forget(pod)
        self._tasks[pod.id] = asyncio.create_task(self._find(pod), name="claims")

    def ask_all(self, pods: Iterable[Pod]) -> None:
        """Ask about pods that run already, and forget all others."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._found.clear()
        for pod in pods:
            self.ask(pod)

    def pending(self, pods: Iterable[Pod]) -> Collection[asyncio.Task[None]]:
        """Return the questions about *pods* that have no answer yet."""
        tasks = (self._tasks.get(pod.id) for pod in pods)
        return [task for task in tasks if task is not None and not task.done()]

    def devices(self, pod: Pod, container: str) -> tuple[ClaimedDevice, ...]:
        """Return the devices of a container with a published location.

        Each once, even if the container has several shares of it. Our own devices are left out: the
        container has CPUs there anyway.
        """
        found = self._found.get(pod.id)
        if found is None:
            return ()
        devices: dict[tuple[str, str, str], ClaimedDevice] = {}
        for claim, result in found.results(container):
            key = result.driver, result.pool, result.device
            where = self._slices.where(*key)
            if where is not None and key not in devices and result.driver != DRIVER:
                devices[key] = ClaimedDevice(
                    claim=claim,
                    driver=result.driver,
                    name=result.device,
                    node=where.node,
                    address=where.address,
                    root=where.root,
                )
        return tuple(devices.values())

    def forget(self, pod: Pod) -> None:
        """Forget a pod that is gone."""
        self._found.pop(pod.id, None)
        task = self._tasks.pop(pod.id, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """End all questions."""
        tasks = [*self._tasks.values()]
        self.ask_all(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self, pod: Pod) -> None:
        """Find out what a pod was allocated, if anything."""
        if not await self._has_claims(pod):
            return
        await self._slices.settled.wait()
        if not self._slices.available:
            return
        async with self._asking:
            try:
                found = await self._read(pod)
            except (APIError, ObjectError) as error:
                self._log(pod, error)
                return
        self._failed = None
        if found is not None:
            self._found[pod.id] = found

    async def _read(self, pod: Pod) -> Allocated | None:
        """Return what the API server knows of a pod; None if it is a namesake's."""
        found = await self._pods.read(pod.namespace, pod.name, pod.uid)
        if found is None:
            return None
        read = read_pod(found)
        claims = [
            read_claim(await self._client.get(CLAIMS, name, namespace=pod.namespace))
            for name in read.names
        ]
        return Allocated(pod=read, claims={claim.name: claim for claim in claims})

    def _log(self, pod: Pod, error: APIError | ObjectError) -> None:
        """Log why a pod's claims are not known, unless that failed before in the same way."""
        code = error.code if isinstance(error, APIError) else 0
        if code == NOT_FOUND:  # it is gone by now
            return
        if code != self._failed:
            remedy = "; configs/kubernetes/rbac.yaml has what is needed" * (code == FORBIDDEN)
            name = f"{pod.namespace}/{pod.name}"
            log.warning("claims-unknown", extra={"pod": name, "reason": f"{error}{remedy}"})
        self._failed = code
